"""``python -m tests.chaos.dropper``: make partitions of seconds and drop old ones, until SIGTERM.

Some times have no partition. Some partitions are read while they are to be dropped. Some processes
or sessions that drop one are ended meanwhile. Some of jobs are written to a file first, as by
``jobarchive --drop``, by a process that is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import django
import psycopg

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
django.setup()

from django.db import connection, transaction  # noqa: E402 — after setup

from django_jobs.lifecycle import history  # noqa: E402 — after setup
from django_jobs.lifecycle.archiving import drop_archived  # noqa: E402 — after setup
from django_jobs.lifecycle.dropping import drop  # noqa: E402 — after setup
from django_jobs.lifecycle.history import JOBS, RUNS, TABLES, Partition  # noqa: E402 — after setup
from django_jobs.management.archive_files import archived  # noqa: E402 — after setup
from django_jobs.models.database import database_time, fetch  # noqa: E402 — after setup

from .enqueuer import AWAY, until_it_works  # noqa: E402 — after setup

PAUSE = 0.2
SOON, AHEAD = timedelta(seconds=1), timedelta(seconds=5)
"""How long before its time a partition is made: no earlier, and no later."""

GAPS = 0.2
"""The share of the time that has no partition."""

KEPT = timedelta(seconds=10)
"""How long a partition outlives its time. Longer than a lease and an outage, so that no settle is
that late; and who has lost the answer to an enqueue has found the job by then."""

UP = "SELECT clock_timestamp() - pg_postmaster_start_time() > interval '3 seconds'"
"""Who was cut off by an outage has connected again."""

MANNERS = {
    "plainly": 40,
    "while it is read": 15,
    "and be killed": 15,
    "and be cut off": 15,
    "from a file": 15,
}
LONGEST_DROP, LONGEST_ARCHIVE = 0.03, 0.3
"""Seconds in which a drop is mostly over, without and with a file."""

DISAPPEARED = {None, "57P01", "57P02", "57P03", "08006"}
"""SQLSTATEs of a connection that was ended or refused."""

IN_DEFAULT = "23514"
"""A row of its time is in the default partition, so a partition comes too late."""

NOT_NOW = {*history.NOT_NOW, IN_DEFAULT}


class Dropper:
    """Makes and drops. ``wrong`` says what was not as promised."""

    def __init__(self, choice: random.Random, files: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.slowest = 0.0
        self.archived: list[str] = []
        self._files = files
        self._choice = choice
        self._begun: Partition | None = None
        self._planned: datetime | None = None

    def go_on(self) -> None:
        """One step: make the next partition, if it is time, and drop the oldest ones."""
        self._make_next()
        for table in TABLES:
            if oldest := self._oldest(table):
                self._drop(oldest)

    def finish(self) -> bool:
        """Finish the last drop of jobs: if it was cut short, some may have lost early runs."""
        begun = self._begun
        return begun is None or not _is_there(begun) or _drop(begun)

    def _make_next(self) -> None:
        now = database_time()
        ends = [one.end for one in history.partitions(JOBS)[-1:]]
        start = max([now + SOON, *ends, *filter(None, [self._planned])])
        if start > now + AHEAD:
            return
        end = start + timedelta(seconds=self._choice.uniform(1.0, 3.0))
        if self._choice.random() >= GAPS:
            try:
                _make(start, end)
            except AWAY as error:
                if _state(error) in NOT_NOW:
                    self.counts["partitions not made for now"] += 1
                    return
                raise
            self.counts["partitions made"] += 2
        self._planned = end

    def _oldest(self, table: history.PartitionedTable) -> Partition | None:
        """The next to be dropped. Runs go after the jobs of their time, as in maintenance."""
        if fetch(UP, {}) != [(True,)]:
            return None
        over = database_time() - KEPT
        oldest = next((one for one in history.partitions(table) if one.end <= over), None)
        jobs = history.partitions(JOBS)[:1] if table is RUNS else []
        waits = oldest and any(one.start <= oldest.start for one in jobs)
        return None if waits else oldest

    def _drop(self, partition: Partition) -> None:
        (manner,) = self._choice.choices(list(MANNERS), list(MANNERS.values()))
        seconds = self._choice.uniform(0.0, LONGEST_DROP)
        if partition.table is JOBS:
            self._begun = partition
        match manner:
            case "plainly":
                self._judge(partition, _drop(partition))
            case "while it is read":
                self._drop_while_read(partition)
            case "from a file" if partition.table is JOBS:
                seconds = self._choice.uniform(0.0, LONGEST_ARCHIVE)
                ended = _end(lambda: _archive(partition, self._files), seconds, kill=True)
                there = _is_there(partition)
                self.counts[f"archives cut short: {'there' if there else 'gone'}"] += ended
                self.counts["partitions dropped"] += not there
                self.counts["partitions dropped from a file"] += not there
                self.archived += [] if there else [partition.name]
            case _:
                kill = manner != "and be cut off"
                ended = _end(lambda: _drop(partition), seconds, kill=kill)
                there = _is_there(partition)
                self.counts[f"drops cut short: {'there' if there else 'gone'}"] += ended
                self.counts["partitions dropped"] += not there

    def _drop_while_read(self, partition: Partition) -> None:
        with (
            contextlib.suppress(psycopg.OperationalError),  # the storm cut off the reader
            psycopg.connect(os.environ["DATABASE_URL"]) as reader,
        ):
            reader.execute(f"SELECT count(*) FROM {partition.name}".encode())
            begun = time.monotonic()
            dropped = _drop(partition)
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self._judge(partition, dropped)
            reader.execute("SELECT 1")
            if dropped:
                self.wrong.append(f"{partition.name} was dropped while it was read")

    def _judge(self, partition: Partition, dropped: bool) -> None:
        there = _is_there(partition)
        self.counts["partitions dropped"] += dropped
        self.counts["drops refused"] += not dropped
        if there is dropped:
            self.wrong.append(f"drop({partition.name}) was {dropped}, and it is there: {there}")


def _drop(partition: Partition) -> bool:
    return bool(drop(partition, with_runs=True))


def _make(start: datetime, end: datetime) -> None:
    """Of jobs and runs at once, or of none: a job and its success end at the same moment."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(history.WAIT_A_MOMENT)
        for table in TABLES:
            name = f"{table.prefix}{start:%Y%m%d%H%M%S%f}"
            cursor.execute(f"CREATE TABLE {name} (LIKE {table.default} INCLUDING ALL)")
            cursor.execute(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ('{start}') TO ('{end}')"
            )


def _archive(partition: Partition, files: Path) -> None:
    file = archived(partition, files, "jsonl")
    drop_archived(partition, file.contents)


def _end(work: Callable[[], object], seconds: float, *, kill: bool) -> bool:
    """Do it in a child, and end the child or its session meanwhile; return whether it was in
    time. Returns when the server has ended the session too."""
    connection.close()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            ((session,),) = fetch("SELECT pg_backend_pid()", {})
            os.write(writing, str(session).encode())
            work()
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        session = int(pipe.read1(20) or 0)
        time.sleep(seconds)
        if kill:
            os.kill(child, signal.SIGKILL)
        elif session:
            _try(f"SELECT pg_terminate_backend({session})")
    _, status = os.waitpid(child, 0)
    while until_it_works(
        lambda: fetch("SELECT 1 FROM pg_stat_activity WHERE pid = %(pid)s", {"pid": session})
    ):
        time.sleep(0.01)
    return os.WIFSIGNALED(status) or not kill


def _try(statement: str) -> None:
    try:
        fetch(statement, {})
    except AWAY:
        connection.close()


def _is_there(partition: Partition) -> bool:
    query = "SELECT to_regclass(%(name)s) IS NOT NULL"
    ((there,),) = until_it_works(lambda: fetch(query, {"name": partition.name}))
    return bool(there)


def _state(error: Exception) -> str | None:
    return getattr(error.__cause__ or error, "sqlstate", None)


def main() -> None:
    """Write down what was done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_end.append(number))
    files = asked.file.with_name("archive")
    files.mkdir()
    dropper = Dropper(random.Random(f"{asked.seed}-partitions"), files)
    while not asked_to_end:
        try:
            dropper.go_on()
        except AWAY as error:
            if _state(error) not in DISAPPEARED:
                dropper.wrong.append(f"{type(error).__name__}: {error}")
            connection.close()
        time.sleep(PAUSE)
    while not until_it_works(dropper.finish):
        time.sleep(PAUSE)
    found = {"counts": dropper.counts, "wrong": dropper.wrong, "slowest": dropper.slowest}
    asked.file.write_text(json.dumps({**found, "archived": dropper.archived}))


if __name__ == "__main__":
    main()
