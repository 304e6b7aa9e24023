"""Imports the periodic tasks of django-celery-beat as schedules.

Reads its tables with SQL, so that neither it nor Celery need be installed. Never imports code that
the tables name: a task is mapped to a registered job type.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from django.core.management.base import CommandError
from django.db import connections, transaction
from django.db.models.functions import Now

from .... import registry
from ....conf import conf
from ....lifecycle.operations import schedules as schedule_operations
from ....management.base import counted, operator
from ....management.schedules import when
from ....models import Schedule
from ....models.database import database_time
from .periodic_task import NotImportable, Row, Translation, missed, read_json, translate

BROKERS = ("amqp", "redis")

TABLE = "django_celery_beat_periodictask"
NO_TABLES = (
    f"the database {{!r}} has no tables of django-celery-beat ({TABLE}), and nothing else is "
    "imported: let the workers of Celery empty the queues of the broker before you move. "
    "`jobimport celery --check` lists what will be different"
)

# As JSON, because older versions lack some columns: they are then missing in the object.
TASKS = """
SELECT to_jsonb(task_row) || jsonb_build_object(
    'crontab', to_jsonb(crontab_row), 'interval', to_jsonb(interval_row))
FROM django_celery_beat_periodictask AS task_row
LEFT JOIN django_celery_beat_crontabschedule AS crontab_row
    ON crontab_row.id = task_row.crontab_id
LEFT JOIN django_celery_beat_intervalschedule AS interval_row
    ON interval_row.id = task_row.interval_id
ORDER BY task_row.name
"""
CLOCKED_TABLE = "django_celery_beat_clockedschedule"
CLOCKED = "SELECT id, to_jsonb(clocked_row) FROM django_celery_beat_clockedschedule AS clocked_row"
DECLARED = (
    "it is disabled, and its entry of beat_schedule is a schedule: `jobschedule pause {!r}`, or "
    "remove the entry"
)
OF_BEAT = {"last_run_at", "total_run_count", "date_changed"}
"""Columns that beat writes when it sends the task."""

FOLLOWING, FOLLOW = "django-celery-beat", "django_jobs.follow_beat"
"""The name of the schedule that imports the rows that have changed, and of its job type."""
EVERY = 30.0
"""Seconds between two looks."""
FIELDS = (
    *("name", "job_type", "payload", "payload_version", "queue", "priority", "enabled"),
    *("cron", "every", "timezone", "starts_at", "ends_at", "max_jobs"),
)
"""What a row says of its schedule."""

logger = logging.getLogger("django_jobs")


@dataclass(slots=True)
class ImportResult:
    """The counts of an import, and the line to print for each task."""

    imported: int = 0
    changed: int = 0
    existing: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    not_schedulable: set[str] = field(default_factory=set)

    def add(self, verb: str, schedule: Schedule, notes: Sequence[str]) -> None:
        if not registry.get(schedule.job_type).schedulable:
            self.not_schedulable.add(schedule.job_type)
        zone = "" if schedule.every is not None else f" {schedule.timezone}"
        off = "" if schedule.enabled else ", disabled"
        shown = f"{schedule.name}: {schedule.job_type} {when(schedule)}{zone}{off}"
        self.lines.append(f"{verb}  {shown}")
        self.lines += [f"          note: {note}" for note in notes]


def import_beat(options: dict[str, Any]) -> Iterator[str]:
    """Make a schedule for each periodic task that has an equivalent, and yield a line for each.
    Those whose rows have changed since an import are changed. From then on a schedule does the
    same every half minute, if this project has django-celery-beat, whose admin changes rows.

    All schedules are written in one transaction. Raises ``CommandError`` at the end if any task was
    refused.
    """
    job_types = _pairs("--map", options["map"])
    for name in job_types.values():
        registry.get(name)
    queues, redis = _pairs("--queue", options["queue"]), options["broker"] == "redis"
    tasks = _read(options["database"])
    report = ImportResult()
    alias, dry_run, paused = conf().database, options["dry_run"], options["paused"]
    with transaction.atomic(using=alias):
        translation = Translation(job_types=job_types, queues=queues, redis=redis)
        _import(tasks, translation, report, paused=paused)
        follows = registry.find(FOLLOW) is not None
        if dry_run:
            transaction.set_rollback(True, using=alias)
        else:
            if follows:
                payload = {"job_types": job_types, "queues": queues, "redis": redis}
                _follow_from_now_on({**payload, "database": options["database"]}, paused)
            schedule_operations.changed()
    yield from report.lines
    unused = sorted(set(job_types) - {str(task["task"]) for task in tasks})
    yield from (f"--map {task}: no periodic task has this name." for task in unused)
    for name in sorted(report.not_schedulable):
        yield f"{name} is not declared with schedulable=True; the admin cannot save its schedules."
    if follows:
        yield f"Rows that change are followed, every {EVERY:g} s, by the schedule {FOLLOWING}."
    else:
        yield "Rows that change are not followed: django_celery_beat is not in INSTALLED_APPS."
    verb = "Would import" if dry_run else "Imported"
    changed = f"{report.changed} changed, " if report.changed else ""
    yield (
        f"{verb} {counted(report.imported, 'schedule')}; {changed}{report.existing} existed "
        f"already and {len(report.refused)} cannot be imported."
    )
    if report.refused:
        counts = f"{len(report.refused)} of {counted(len(tasks), 'task')}"
        raise CommandError(f"{counts} cannot be imported")


def follow(translation: Translation, database: str) -> None:
    """Import what has changed in the tables since. A row that cannot be imported is logged once by
    each process; a schedule of it is not due any longer, and its error says why."""
    report = ImportResult()
    try:
        tasks = _read(database)
    except CommandError as problem:
        _log_once(TABLE, str(problem))
        return
    with transaction.atomic(using=conf().database):
        _import(tasks, translation, report)
        if report.imported or report.changed:
            schedule_operations.changed()
    for name, reason in report.refused.items():
        _log_once(name, reason)


@cache
def _log_once(name: str, reason: str) -> None:
    logger.warning("%s of django-celery-beat is not followed: %s", name, reason)


def _follow_from_now_on(payload: dict[str, Any], paused: bool) -> None:
    rows = Schedule.objects.using(conf().database)
    if not rows.filter(name=FOLLOWING).update(payload=payload):
        made = Schedule(name=FOLLOWING, job_type=FOLLOW, payload=payload, every=EVERY)
        _pause(made, paused)
        made.save(using=conf().database)


def _pause(schedule: Schedule, paused: bool) -> None:
    if paused:
        schedule.paused_at, schedule.paused_reason = Now(), f"imported by {operator()}"


def _import(
    tasks: Sequence[Row], translation: Translation, report: ImportResult, *, paused: bool = False
) -> None:
    """Write the schedules of rows that are new or have changed, and disable those of rows that are
    gone. What was changed here stays until the row changes."""
    rows = Schedule.objects.using(conf().database)
    made = {
        row.origin.partition(" ")[0]: row for row in rows.exclude(origin="").exclude(declared=True)
    }
    named = {row.name: row for row in rows.filter(name__in=[task["name"] for task in tasks])}
    now = database_time()
    for task in tasks:
        known = made.pop(str(task["id"]), None)
        try:
            said = _said(task, known, named.get(task["name"]), translation)
        except NotImportable as problem:
            report.refused[task["name"]] = str(problem)
            report.lines.append(f"refused   {task['name']} ({task['task']}): {problem}")
            if known is not None and known.enabled:
                known.enabled, known.error = False, str(problem)
                known.origin = f"{task['id']} refused"  # the row may be changed back
                known.save(using=rows.db, update_fields=["enabled", "error", "origin"])
            continue
        if said is None:
            report.existing += 1
            report.lines.append(f"exists    {task['name']}: not changed")
            continue
        schedule, notes = said
        if known is not None:
            _change(known, schedule)
            report.changed += 1
        else:
            _pause(schedule, paused)
            schedule.save(using=rows.db)
            if not paused and (due := missed(schedule, task, now)):
                rows.filter(pk=schedule.pk).update(next_due_at=due, stale=False)
            report.imported += 1
        report.add("imported" if known is None else "changed ", schedule, notes)
    for gone in made.values():
        if gone.enabled:
            gone.enabled = False
            gone.save(using=rows.db, update_fields=["enabled"])
            report.changed += 1
            report.lines.append(f"disabled  {gone.name}: its row is gone")


def _said(
    task: Row, known: Schedule | None, other: Schedule | None, translation: Translation
) -> tuple[Schedule, list[str]] | None:
    """The schedule that a row asks for, and notes; None to leave all as it is. ``known`` was made
    of the row, ``other`` has its name. Raises :class:`NotImportable`."""
    name, origin = task["name"], _origin(task)
    if known is None:
        is_declared = name in registry.schedules() if other is None else other.declared
        if is_declared and not task["enabled"] and (other is None or other.is_armed):
            raise NotImportable(DECLARED.format(name))
        if is_declared or other is not None:
            return None
    elif known.origin == origin:
        return None
    elif known.name != name and other is not None:
        raise NotImportable("there is another schedule of its name")
    schedule, notes = translate(task, translation)
    schedule.origin = origin
    return schedule, notes


def _change(known: Schedule, schedule: Schedule) -> None:
    """Write what a row says now. A row that runs once, and is due again, runs again."""
    rule = ("enabled", "cron", "every", "starts_at")
    is_new = any(getattr(known, one) != getattr(schedule, one) for one in rule)
    for name in (*FIELDS, "origin"):
        setattr(known, name, getattr(schedule, name))
    known.save(using=conf().database)
    if schedule.max_jobs is not None and is_new:
        Schedule.objects.using(conf().database).filter(pk=known.pk).update(jobs_made=0)


def _origin(task: Row) -> str:
    """The id of a row, and a hash of what does not change while beat runs."""
    said = {column: value for column, value in task.items() if column not in OF_BEAT}
    text = json.dumps(said, sort_keys=True)
    return f"{task['id']} {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _read(alias: str) -> list[Row]:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT to_regclass(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
            [TABLE, CLOCKED_TABLE],
        )
        there, with_clocked = cursor.fetchone()
        if not there:
            raise CommandError(NO_TABLES.format(alias))
        cursor.execute(TASKS)
        tasks: list[Row] = [read_json(text) for (text,) in cursor.fetchall()]
        if with_clocked:
            cursor.execute(CLOCKED)
            clocked = {pk: read_json(text) for pk, text in cursor.fetchall()}
            for task in tasks:
                task["clocked"] = clocked.get(task.get("clocked_id"))
    return tasks


def _pairs(option: str, texts: Sequence[str]) -> Mapping[str, str]:
    pairs = {}
    for text in texts:
        old, equals, new = (part.strip() for part in text.partition("="))
        if not (old and equals and new):
            raise CommandError(f"{option} takes two names such as old=new, not {text!r}")
        pairs[old] = new
    return pairs
