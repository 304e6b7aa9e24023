"""Imports the periodic tasks of django-celery-beat as schedules.

Reads its tables with SQL, so that neither it nor Celery need be installed. Never imports code that
the tables name: a task is mapped to a registered job type.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models.functions import Now

from .... import registry
from ....conf import conf
from ....lifecycle.operations import schedules as schedule_operations
from ....management.base import counted, operator
from ....management.schedules.table import when
from ....models import Schedule
from .periodic_task import NotImportable, Translation, read_json, translate

BROKERS = ("amqp", "redis")

TABLE = "django_celery_beat_periodictask"
NO_TABLES = (
    f"the database {{!r}} has no tables of django-celery-beat ({TABLE}), and nothing else is "
    "imported: let the workers of Celery empty the queues of the broker before you move. "
    "`jobimport celery --check` lists what will be different"
)

# As JSON, because older versions lack some columns: they are then missing in the object.
TASKS = """
SELECT to_jsonb(task_row), to_jsonb(crontab_row), to_jsonb(interval_row)
FROM django_celery_beat_periodictask AS task_row
LEFT JOIN django_celery_beat_crontabschedule AS crontab_row
    ON crontab_row.id = task_row.crontab_id
LEFT JOIN django_celery_beat_intervalschedule AS interval_row
    ON interval_row.id = task_row.interval_id
ORDER BY task_row.name
"""


@dataclass(slots=True)
class ImportResult:
    """The counts of an import, and the line to print for each task."""

    imported: int = 0
    existing: int = 0
    refused: int = 0
    lines: list[str] = field(default_factory=list)
    not_schedulable: set[str] = field(default_factory=set)


def import_beat(options: dict[str, Any]) -> Iterator[str]:
    """Make a schedule for each periodic task that has an equivalent, and yield a line for each.

    All schedules are written in one transaction. Raises ``CommandError`` at the end if any task was
    refused.
    """
    job_types = _pairs("--map", options["map"])
    for name in job_types.values():
        registry.get(name)
    translation = Translation(
        job_types=job_types,
        queues=_pairs("--queue", options["queue"]),
        redis=options["broker"] == "redis",
    )
    tasks = _read(options["database"])
    report = ImportResult()
    alias, dry_run = conf().database, options["dry_run"]
    with transaction.atomic(using=alias):
        _import(tasks, translation, options["paused"], report)
        if dry_run:
            transaction.set_rollback(True, using=alias)
        else:
            schedule_operations.changed()
    yield from report.lines
    unused = sorted(set(job_types) - {str(task["task"]) for task, *_ in tasks})
    yield from (f"--map {task}: no periodic task has this name." for task in unused)
    for name in sorted(report.not_schedulable):
        yield f"{name} is not declared with schedulable=True; the admin cannot save its schedules."
    verb = "Would import" if dry_run else "Imported"
    yield (
        f"{verb} {counted(report.imported, 'schedule')}; {report.existing} existed already and "
        f"{report.refused} cannot be imported."
    )
    if report.refused:
        raise CommandError(f"{report.refused} of {counted(len(tasks), 'task')} cannot be imported")


def _import(
    tasks: Sequence[tuple[Any, ...]], translation: Translation, paused: bool, report: ImportResult
) -> None:
    rows = Schedule.objects.using(conf().database)
    names = [task["name"] for task, *_ in tasks]
    existing = set(rows.filter(name__in=names).values_list("name", flat=True))
    for task, crontab, period in tasks:
        name = task["name"]
        if name in existing:
            report.existing += 1
            report.lines.append(f"exists    {name}: not changed")
            continue
        try:
            schedule, notes = translate(task, crontab, period, translation)
        except NotImportable as problem:
            report.refused += 1
            report.lines.append(f"refused   {name} ({task['task']}): {problem}")
            continue
        if paused:
            schedule.paused_at, schedule.paused_reason = Now(), f"imported by {operator()}"
        schedule.save(using=conf().database)
        report.imported += 1
        if not registry.get(schedule.job_type).schedulable:
            report.not_schedulable.add(schedule.job_type)
        zone = "" if schedule.every is not None else f" {schedule.timezone}"
        off = "" if schedule.enabled else ", disabled"
        report.lines.append(f"imported  {name}: {schedule.job_type} {when(schedule)}{zone}{off}")
        report.lines += [f"          note: {note}" for note in notes]


def _read(alias: str) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [TABLE])
        if not cursor.fetchone()[0]:
            raise CommandError(NO_TABLES.format(alias))
        cursor.execute(TASKS)
        return [tuple(map(read_json, row)) for row in cursor.fetchall()]


def _pairs(option: str, texts: Sequence[str]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        old, equals, new = (part.strip() for part in text.partition("="))
        if not (old and equals and new):
            raise CommandError(f"{option} takes two names such as old=new, not {text!r}")
        pairs[old] = new
    return pairs
