"""A PgBouncer of a test's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import psycopg

from tests.patience import PATIENCE
from tests.worker.processes import until

from .proxy import address_of

CONFIGURATION = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 100
query_wait_timeout = {wait}
ignore_startup_parameters = extra_float_digits
"""


def missing() -> str:
    """Why no PgBouncer can be started here; empty if one can."""
    if shutil.which("pgbouncer") is None and not Path("/usr/sbin/pgbouncer").exists():
        return "there is no pgbouncer (Debian: apt-get install pgbouncer)"
    return ""


class Pooler:
    """A PgBouncer in front of the database of Django's ``settings``, inside the ``with`` block. It
    has ``size`` connections to it, for which a statement waits for ``wait`` seconds."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        size: int = 6,
        wait: int = 120,
        mode: str = "transaction",
    ) -> None:
        self._settings = settings
        self._mode = mode
        self._size = size
        self._wait = wait
        self._directory = Path(tempfile.mkdtemp(prefix="pooler-"))
        self._log = self._directory / "log"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])

    def __enter__(self) -> Self:
        settings = self._settings
        text = CONFIGURATION.format(
            name=settings["NAME"],
            host=settings["HOST"] or settings.get("OPTIONS", {}).get("host"),
            port=settings["PORT"] or 5432,
            user=settings["USER"],
            password=f" password={settings['PASSWORD']}" if settings["PASSWORD"] else "",
            own_port=self._port,
            size=self._size,
            mode=self._mode,
            wait=self._wait,
        )
        (self._directory / "ini").write_text(text)
        user = self._user()
        if user is not None:
            shutil.chown(self._directory, user)
        command = shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [command, str(self._directory / "ini")], user=user, stdout=log, stderr=log
            )
        until(self._answers, what="pgbouncer answers")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        print(self._log.read_text())  # shown with a test that failed
        shutil.rmtree(self._directory)

    @property
    def url(self) -> str:
        """For a process that is to connect through it."""
        user, name = quote(self._settings["USER"]), self._settings["NAME"]
        return f"postgresql://{user}@127.0.0.1:{self._port}/{name}"

    def _user(self) -> int | str | None:
        """It refuses to run as root, and only the server's user may reach an embedded one."""
        if os.geteuid() != 0:
            return None
        address = address_of(self._settings)
        owner = os.stat(address).st_uid if isinstance(address, str) else 0
        return owner or "nobody"

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        try:
            psycopg.connect(self.url, prepare_threshold=None, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
