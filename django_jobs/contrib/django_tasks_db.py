"""Takes the waiting tasks of django-tasks-db over.

Reads its table with SQL, so that it need not be installed. Never imports what a row names: a row is
taken if its path is that of a Task that this process has declared for :class:`JobsBackend`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from .. import backend
from ..conf import conf
from ..management.base import counted
from . import Source

TABLE = "django_tasks_database_dbtaskresult"
BATCH = 500
"""Rows of one transaction."""
NEVER_AGAIN = timedelta(days=30)
"""How long a row that was taken from another database is not taken again."""
KEY = "django-tasks-db:{}"
NO_RUN_AFTER = "9998-12-31 00:00+00"
"""django-tasks-db writes 9999-01-01, in its own time zone, for a task that is due at once."""
SHAPE = '{"args": [...], "kwargs": {...}}'
FIRST = datetime(1, 1, 2, tzinfo=UTC), "00000000-0000-0000-0000-000000000000"

# In the order of the requests. Skips rows that a worker of django-tasks-db takes at the moment.
# greatest(), because Python cannot read -infinity: both times are past, so the task is due at once.
WAITING = f"""
SELECT id::text, task_path, args_kwargs::text, priority, queue_name,
    CASE WHEN run_after < '{NO_RUN_AFTER}' THEN greatest(run_after, enqueued_at) END, enqueued_at
FROM {TABLE}
WHERE status = 'READY' AND (enqueued_at, id) > (%s, %s::uuid)
ORDER BY enqueued_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED
"""  # noqa: S608 — of constants
TAKEN = f"DELETE FROM {TABLE} WHERE id = ANY(%s::uuid[])"  # noqa: S608 — of constants
RUNNING = f"SELECT count(*) FROM {TABLE} WHERE status = 'RUNNING'"  # noqa: S608 — of constants


class Waiting(NamedTuple):
    """A row that no worker has taken."""

    id: str
    task_path: str
    arguments: str
    priority: int
    queue: str
    run_after: datetime | None
    enqueued_at: datetime


@dataclass(slots=True)
class Takeover:
    """What was taken, by task, and what was refused, by task and reason."""

    taken: Counter[str] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)


def add_options(add: Callable[..., Any]) -> None:
    add("--dry-run", action="store_true", help="print the same output, but write nothing")
    add(
        "--database",
        choices=tuple(connections),
        default=DEFAULT_DB_ALIAS,
        help="the database with the table of django-tasks-db (default)",
    )


def run(options: dict[str, Any]) -> Iterator[str]:
    """Make a job of each waiting row, and delete the row; yield the lines to print.

    Raises ``CommandError`` at the end if any row was refused.
    """
    alias, dry_run = options["database"], options["dry_run"]
    running = _running(alias)
    if not backend.is_configured():
        raise CommandError(
            'no backend in TASKS is "django_jobs.backend.JobsBackend": change the settings first'
        )
    report = Takeover()
    after: tuple[datetime, str] | None = FIRST
    while after is not None:
        after = _take(alias, after, report, dry_run=dry_run)
    verb = "would take" if dry_run else "took"
    for path, count in sorted(report.taken.items()):
        yield f"{verb} {counted(count, 'job')} of {path}"
    for (path, why), count in sorted(report.refused.items()):
        yield f"refused {counted(count, 'row')} of {path}: {why}"
    if running:
        yield (
            f"{counted(running, 'task')} run at the moment. Let the workers of django-tasks-db end "
            "them; nothing takes over what a dead one had begun."
        )
    taken, refused = report.taken.total(), report.refused.total()
    yield f"In all, {verb} {counted(taken, 'job')}, and refused {counted(refused, 'row')}."
    if refused:
        raise CommandError(
            f"{counted(refused, 'row')} cannot be taken, and stay in {TABLE}: correct what is "
            "listed above, and call this again."
        )


def _running(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE])
        if not cursor.fetchone()[0]:
            raise CommandError(f"the database {alias!r} has no table of django-tasks-db ({TABLE})")
        cursor.execute(RUNNING)
        (count,) = cursor.fetchone()
    return int(count)


def _take(
    alias: str, after: tuple[datetime, str], report: Takeover, *, dry_run: bool
) -> tuple[datetime, str] | None:
    """Take a batch; return where the next one begins, or None at the end.

    In one database, a job and the end of its row are one transaction. In two, the jobs are
    committed first, and their keys prevent that they are made twice.
    """
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute(WAITING, [*after, BATCH])
        rows = [Waiting(*row) for row in cursor.fetchall()]
        with transaction.atomic(using=conf().database):
            taken = [row.id for row in rows if _make_job(row, alias, report)]
            if dry_run:
                transaction.set_rollback(True, using=conf().database)
        if not dry_run:
            cursor.execute(TAKEN, [taken])
    return (rows[-1].enqueued_at, rows[-1].id) if len(rows) == BATCH else None


def _make_job(row: Waiting, alias: str, report: Takeover) -> bool:
    """Whether a job was made of the row. Otherwise the report has the reason."""
    from ..backend import declared, jobs_backend

    known = declared.find(row.task_path)
    try:
        if known is None:
            raise ValueError("this code declares no such Task for a JobsBackend")
        match json.loads(row.arguments):
            case {"args": list(args), "kwargs": dict(kwargs)}:
                pass
            case _:
                raise ValueError(f"its args_kwargs is not {SHAPE}")
        jobs_backend.insert(
            known,
            known.task,
            args,
            kwargs,
            queue=row.queue,
            priority=row.priority,
            run_at=row.run_after,
            idempotency_key=KEY.format(row.id),
            unique_for=None if alias == conf().database else NEVER_AGAIN,
        )
    except (TypeError, ValueError, RecursionError) as error:  # before any statement
        report.refused[row.task_path, str(error)] += 1
        return False
    report.taken[row.task_path] += 1
    return True


SOURCE = Source(
    meaning="take the waiting tasks of django-tasks-db over", add_options=add_options, run=run
)
