"""A PostgreSQL of a test's own, for tests that stop it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Self

import psycopg

from testproject import embedded

PROJECT = Path(__file__).resolve().parent.parent
FAST, IMMEDIATE = signal.SIGINT, signal.SIGQUIT
"""What the postmaster takes for ``pg_ctl stop -m fast`` and ``-m immediate``."""


class Cluster:
    """A cluster with the tables of the test project, gone when the ``with`` block ends."""

    def __init__(self, settings: str = "tests.settings") -> None:
        self._settings = settings
        self.directory = embedded.data_directory(f"own-{uuid.uuid4().hex[:8]}")
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        subprocess.run(
            [sys.executable, "-m", "django", "migrate", "-v0", "--run-syncdb", "--skip-checks"],
            check=True,
            env=self.environment,
        )
        return self

    def __exit__(self, *error: object) -> None:
        embedded.stop(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """For a process that is to use this cluster."""
        inherited = {key: value for key, value in os.environ.items() if key != "TEST_DATABASE_NAME"}
        return {
            **inherited,
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": self._settings,
        }

    def start(self) -> None:
        """Start it, also after a stop."""
        self._server = embedded.start(self.directory, cleanup_mode=None)
        self.url = self._server.get_uri()

    def stop(self, how: int) -> None:
        """Stop it and wait until it is gone."""
        process = self._server.get_postmaster_info().process
        os.kill(process.pid, how)
        process.wait(20)

    def execute(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    def fetch(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(sql, parameters).fetchall()
