"""Handlers for the faults of the database."""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from pathlib import Path

from django.db import connection, transaction
from django.utils import timezone, translation

from django_jobs import Backoff, current_run, job

from .models import Effect


@job(delivery="exactly_once", backoff=Backoff.fixed(0.05), max_attempts=50)
def write_once() -> None:
    """A row in the transaction that settles the job."""
    Effect.objects.create(note="once")


@job(delivery="exactly_once", backoff=Backoff.fixed(0.05), max_attempts=2)
def write_once_or_die() -> None:
    """:func:`write_once`, that may fail once."""
    Effect.objects.create(note="once")


@job(delivery="exactly_once", timeout=1.5, max_attempts=1)
def lose_and_hang(path: str) -> None:
    """Loses a race, and hangs when it is called once more."""
    with open(path, "a") as file:
        file.write("called\n")
    if len(Path(path).read_text().splitlines()) == 1:
        with connection.cursor() as cursor:
            cursor.execute("DO $$ BEGIN RAISE SQLSTATE '40001'; END $$")
    while True:
        time.sleep(0.01)


@job
def hold_without_a_database(path: str) -> str:
    """Say on disk that it started, and wait there until it is let go."""
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
    return "went on"


@job
def look_for_others(path: str) -> list[int]:
    """The processes that began this job before and are alive. The first to begin never ends."""
    with open(path, "a+") as file:
        file.seek(0)
        before = [int(line.split()[0]) for line in file]
        alive = [pid for pid in before if Path(f"/proc/{pid}").exists()]
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    while not before:
        time.sleep(0.01)
    return alive


@job(max_attempts=5)
def lock_crosswise(first: int, second: int, mine: str, other: str) -> None:
    """Lock one row, wait until the other has locked the other one, and lock that as well."""
    with transaction.atomic():
        Effect.objects.select_for_update().get(pk=first)
        Path(mine).touch()
        run = current_run()
        while not Path(other).exists() and run is not None and run.attempt == 1:
            time.sleep(0.01)
        Effect.objects.select_for_update().get(pk=second)


@job
def tell_isolation() -> str:
    """The isolation level of a handler's own transactions."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


SESSION = "current_setting('search_path'), current_setting('role'), current_setting('TimeZone')"


@job
def leave_behind(what: str) -> None:
    """Leaves its thread, or its connection, as no handler should."""

    with connection.cursor() as cursor:
        match what:
            case "search_path":
                cursor.execute("SET search_path TO pg_catalog")
            case "role":
                cursor.execute("SET ROLE pg_monitor")
            case "function":
                cursor.execute("SELECT set_config('TimeZone', 'Asia/Tokyo', false)")
            case "temporary":
                cursor.execute("CREATE TEMP TABLE app_effect (LIKE app_effect)")
            case "advisory":
                cursor.execute("SELECT pg_advisory_lock(4711)")
            case "prepared":
                cursor.execute("PREPARE left_behind AS SELECT 1")
            case "closed":
                connection.connection.close()
            case "translation":
                translation.activate("de")
            case "time zone":
                timezone.activate("Asia/Tokyo")
            case "context":
                LEFT.set("something")


LEFT: ContextVar[str] = ContextVar("LEFT", default="nothing")


@job
def tell_what_is_left() -> list[str]:
    """What a handler finds: settings of its session, its context, temporary tables, locks."""

    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {SESSION}")
        found = list(cursor.fetchone())
        cursor.execute(
            "SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relname = 'app_effect'"
        )
        found += [str(cursor.fetchone()[0])]
        cursor.execute(  # other tests on this server hold it in their databases
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        found += [str(cursor.fetchone()[0])]
        cursor.execute("SELECT count(*) FROM pg_prepared_statements")
        found += [str(cursor.fetchone()[0])]
    return [
        *found,
        translation.get_language() or "",
        timezone.get_current_timezone_name(),
        LEFT.get(),
    ]


@job(backoff=Backoff.fixed(600, jitter=0.5))
def depend() -> None:
    """On something that is down."""
    raise ConnectionError("down")


@job(max_attempts=1)
def leave_effect_slowly(seconds: float) -> None:
    """A row that is committed at once; then its connection is idle for a while."""
    run = current_run()
    Effect.objects.create(note="slow", job_id=run.job_id if run else None)
    time.sleep(seconds)


@job
def hold_with_a_connection(path: str) -> None:
    """Uses the database, reports, and waits until it is let go."""
    run = current_run()
    assert run is not None
    run.progress(0.5)
    Effect.objects.create(note="held", job_id=run.job_id)
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {time.monotonic()}\n")
    while not Path(f"{path}.go").exists():
        time.sleep(0.01)
