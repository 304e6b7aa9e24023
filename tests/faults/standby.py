"""A second server that follows the first, until it is cut off and takes its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from typing import Self

import psycopg

from testproject import embedded
from tests.clusters import Cluster
from tests.patience import PATIENCE
from tests.worker.processes import until


class Standby:
    """A streaming standby of ``primary``, gone when the ``with`` block ends."""

    def __init__(self, primary: Cluster) -> None:
        self._primary = primary
        self._bin = primary._server.bin_path
        self._user = primary._server.system_user
        self.directory = embedded.data_directory(f"standby-{uuid.uuid4().hex[:8]}")
        self.url = f"postgresql://postgres@/postgres?host={self.directory}"

    def __enter__(self) -> Self:
        self.directory.mkdir(mode=0o700)
        if self._user:
            shutil.chown(self.directory, self._user)
        source = os.path.dirname(self.directory) + f"/{self._primary.directory.name}"
        self._run("pg_basebackup", "-h", source, "-U", "postgres", "-R", "-c", "fast", "-P")
        for copied in embedded.LEFTOVERS:
            (self.directory / copied).unlink(missing_ok=True)
        self._pg_ctl("start")
        return self

    def __exit__(self, *error: object) -> None:
        self._pg_ctl("stop", "-m", "immediate")
        shutil.rmtree(self.directory, ignore_errors=True)

    def catch_up(self) -> None:
        """Wait until it has everything that the primary has written by now."""
        ((position,),) = self._primary.fetch("SELECT pg_current_wal_lsn()::text")
        replayed = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        until(lambda: self.fetch(replayed) == [(True,)], what="the standby has caught up")

    def cut_off(self) -> None:
        """What is committed from now on is lost with the primary."""
        self.fetch("ALTER SYSTEM SET primary_conninfo = ''")
        self.fetch("SELECT pg_reload_conf()")
        until(lambda: not self.fetch("SELECT 1 FROM pg_stat_wal_receiver"), what="it is cut off")

    def promote(self) -> None:
        """Take the primary's place."""
        self._pg_ctl("promote")

    def fetch(self, sql: str) -> list[tuple[object, ...]]:
        """Run a statement on a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def _pg_ctl(self, verb: str, *arguments: str) -> None:
        options = ["-l", f"{self.directory}/log", "-o", f'-h "" -k {self.directory}']
        self._run("pg_ctl", verb, "-w", *(options if verb == "start" else ()), *arguments)

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._bin / command), "-D", str(self.directory), *arguments],
            user=self._user,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=PATIENCE,
        )
