"""A PostgreSQL of a test's own, for tests that stop it."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import psutil
import psycopg

from testproject import embedded
from tests.patience import PATIENCE

PROJECT = Path(__file__).resolve().parent.parent
SOURCES = ("django_jobs", "testproject", "tests/app", "tests/chaos", "tests/soak")
"""What is migrated, and what ``migrate`` writes into the tables."""
FAST, IMMEDIATE = signal.SIGINT, signal.SIGQUIT
"""What the postmaster takes for ``pg_ctl stop -m fast`` and ``-m immediate``."""


def _copy_migrated(settings: str, directory: Path) -> None:
    """Copy a stopped cluster with the tables of today and of this code. Another process, for which
    it is another day or other code, removes what was made before, but not while it is copied."""
    code = hashlib.sha256()
    for source in sorted(path for top in SOURCES for path in (PROJECT / top).rglob("*.py")):
        code.update(source.read_bytes())
    name = f"migrated-{settings}"
    today = datetime.datetime.now(datetime.UTC).date()
    wanted = embedded.data_directory(f"{name}-{today}-{code.hexdigest()[:12]}")
    with wanted.with_name(f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of the processes of xdist, one makes it
        if not wanted.exists():
            for former in wanted.parent.glob(f"{name}-*"):
                shutil.rmtree(former)
            made = Cluster(settings)
            made._make()
            made.directory.rename(wanted)
        subprocess.run(["cp", "-Rp", str(wanted), directory], check=True)


class Cluster:
    """A cluster with the tables of the test project, gone when the ``with`` block ends."""

    def __init__(self, settings: str = "tests.settings") -> None:
        self._settings = settings
        self.directory = embedded.data_directory(f"own-{uuid.uuid4().hex[:8]}")
        self._server: Any = None

    def __enter__(self) -> Self:
        # To make one takes four seconds of a CPU, and to copy one a tenth of one.
        _copy_migrated(self._settings, self.directory)
        with contextlib.ExitStack() as undo:
            undo.push(self)  # or a cluster that does not start would run on for ever
            self.start()
            undo.pop_all()
        return self

    def _make(self) -> None:
        """Make it, and stop it again."""
        with contextlib.ExitStack() as undo:
            undo.push(self)
            self.start()
            # As in tests/settings.py: nothing here has to outlive a power failure, and the disk of
            # a shared machine may stall for seconds. A server that is killed loses nothing by it.
            self.execute("ALTER SYSTEM SET fsync = off")
            self.execute("SELECT pg_reload_conf()")
            subprocess.run(
                [sys.executable, "-m", "django", "migrate", "-v0", "--run-syncdb", "--skip-checks"],
                check=True,
                env=self.environment,
            )
            embedded.stop(self.directory)
            undo.pop_all()

    def __exit__(self, *error: object) -> None:
        try:
            embedded.stop(self.directory)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to use this cluster."""
        of_this = ("TEST_DATABASE_NAME", "PYTEST_CURRENT_TEST")
        inherited = {key: value for key, value in os.environ.items() if key not in of_this}
        return {
            **inherited,
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": self._settings,
        }

    def url_as(self, role: str) -> str:
        """The same database for ``role``, which needs no password."""
        parts = urlsplit(self.url)
        _, _, place = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{role}@{place}").geturl()

    def start(self) -> None:
        """Start it, also after a stop."""
        embedded.PATIENCE = 60.0  # a machine that others use may stand still for seconds
        self._server = embedded.start(self.directory, cleanup_mode=None)
        self.url = self._server.get_uri()

    @property
    def postmaster(self) -> psutil.Process:
        """The first of its processes."""
        return psutil.Process(self._server.get_postmaster_info().process.pid)

    def stop(self, how: int) -> None:
        """Stop it and wait until it is gone."""
        process = self.postmaster
        os.kill(process.pid, how)
        process.wait(PATIENCE)

    def execute(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    def fetch(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql, parameters).fetchall()
