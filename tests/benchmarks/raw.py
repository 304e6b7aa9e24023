"""What the database gives to plain psycopg with the statements of ``lifecycle``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Any

import psycopg

from django_jobs.lifecycle.claiming import CLAIM, START, UNBOUNDED
from django_jobs.lifecycle.settling_statements import NO_COSTS, SETTLE
from django_jobs.lifecycle.workers import WorkerInfo, register

from .database import NOOP
from .workers import environment

BATCH = 200


def connect() -> psycopg.Connection:
    """A connection to the benchmark's database, as Django makes them: bound on the client."""
    from django.db import connection

    parameters = connection.get_connection_params()
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    return psycopg.connect(
        **parameters, autocommit=True, cursor_factory=psycopg.ClientCursor, prepare_threshold=None
    )


def boot() -> WorkerInfo:
    """A worker that only the database knows."""
    return WorkerInfo(
        name="raw", host="raw", pid=1, queues=["default"], threads=1, job_types={NOOP: 1}, lease=600
    )


def drain(count: int) -> float:
    """Claim and settle ``count`` jobs, 200 a statement; jobs per second."""
    worker = register(boot())
    with connect() as connection:
        place, done = START, 0
        begun = time.perf_counter()
        while done < count:
            rows = _locking(
                connection,
                CLAIM,
                {
                    "queue": "default",
                    "rank": place[0],
                    "id": place[1],
                    "job_types": [NOOP],
                    "versions": "{}",
                    "worker": worker,
                    "limit": min(BATCH, count - done),  # another may share the queue
                    "within_limit": False,
                    "bytes": UNBOUNDED,
                    "largest": 2**20,
                },
            )
            rows.sort()
            if not rows:
                raise RuntimeError("the queue is empty too early")
            place = rows[-1][0], rows[-1][1]
            settled = {
                "rows": "[]",
                "ids": _array(row[1] for row in rows),
                "attempts": _array(row[2] for row in rows),
                "workers": _array(worker for _ in rows),
                "ran": _array("0" for _ in rows),
                "ago": _array("0" for _ in rows),
                "traceparents": "{}",
                **NO_COSTS,
            }
            done += len(connection.execute(SETTLE, settled).fetchall())
        return done / (time.perf_counter() - begun)


def _locking(connection: psycopg.Connection, sql: str, values: dict[str, Any]) -> list[Any]:
    """The rows of a statement, which is repeated as in ``lifecycle`` if another process has moved
    a row to the history meanwhile."""
    while True:
        with contextlib.suppress(psycopg.errors.SerializationFailure):
            return connection.execute(sql, values).fetchall()


def _array(items: Iterable[object]) -> str:
    return f"{{{','.join(map(str, items))}}}"


def copy(count: int) -> float:
    """COPY ``count`` jobs into the table; rows per second."""
    columns = (
        "queue, job_type, payload, payload_version, status, priority, rank, available_at, attempt, "
        "failures, crashes, max_attempts, max_crashes, last_error, reason, replays, headers, "
        "created_at"
    )
    with connect() as connection, connection.cursor() as cursor:
        begun = time.perf_counter()
        with cursor.copy(f"COPY django_jobs_job_live ({columns}) FROM STDIN") as stream:
            for number in range(count):
                rank = 1.7e9 + number
                stream.write(
                    f"default\t{NOOP}\t{{}}\t1\tready\t0\t{rank}\tnow\t0\t0\t0\t5\t3\t\t\t0\t{{}}\tnow\n"
                )
        return count / (time.perf_counter() - begun)


def insert_and_commit(count: int) -> float:
    """One row a transaction, as a web request would; rows per second."""
    sql = (
        "INSERT INTO django_jobs_job_live (queue, job_type, payload, payload_version, status, "
        "priority, rank, available_at, attempt, failures, crashes, max_attempts, max_crashes, "
        "last_error, reason, replays, headers, created_at) VALUES (%s, %s, %s, 1, 'ready', 0, %s, "
        "now(), 0, 0, 0, 5, 3, '', '', 0, '{}', now()) RETURNING id"
    )
    with connect() as connection:
        begun = time.perf_counter()
        for number in range(count):
            with connection.transaction():
                connection.execute(sql, ["default", NOOP, "{}", 1.7e9 + number]).fetchone()
        return count / (time.perf_counter() - begun)


DRAIN_WHEN_TOLD = """
import sys, django
django.setup()  # before that module, which imports models
from tests.benchmarks.raw import drain
print("up", flush=True)
sys.stdin.readline()
print(drain(int(sys.argv[1])), flush=True)
"""


def drain_with(processes: int, count: int) -> float:
    """:func:`drain` by several processes at once; jobs per second of all together."""
    share = count // processes
    command = [sys.executable, "-c", DRAIN_WHEN_TOLD, str(share)]
    running = [
        subprocess.Popen(
            command,
            env=environment("tests.benchmarks.settings"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for process in running:
            _line_of(process)  # it is up
        begun = time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in running:
            _line_of(process)
        return share * processes / (time.perf_counter() - begun)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a raw drain failed")
    return line


def late(count: int) -> list[float]:
    """How late, in seconds, a thread that sleeps until an instant has its first answer from the
    database after it."""
    found = []
    with connect() as connection:
        for _ in range(count):
            due = time.perf_counter() + 0.3
            time.sleep(due - time.perf_counter())
            connection.execute("SELECT 1").fetchone()
            found.append(time.perf_counter() - due)
    return found


def notified(count: int) -> list[float]:
    """Seconds from a NOTIFY to its arrival on another connection."""
    waits = []
    with connect() as listener, connect() as sender:
        listener.execute("LISTEN bench")
        for _ in range(count):
            begun = time.perf_counter()
            sender.execute("NOTIFY bench")
            for _ in listener.notifies(timeout=5, stop_after=1):
                waits.append(time.perf_counter() - begun)
    return waits
