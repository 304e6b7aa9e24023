"""``manage.py jobimport celery``: import beat's tables, or list what will be different."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from ....management.base import counted
from ... import Source
from ..beat.importing import BROKERS, import_beat


def add_options(add_argument: Callable[..., Any]) -> None:
    add_argument(
        "--check",
        action="store_true",
        help="List what will be different; exit with 1 if something will not work.",
    )
    add_argument(
        "--app", metavar="MODULE:NAME", help="With --check: the Celery app, if none was imported."
    )
    pairs: dict[str, Any] = {"action": "append", "default": []}
    add_argument("--map", metavar="TASK=JOB_TYPE", help="The job type of a task.", **pairs)
    add_argument("--queue", metavar="OLD=NEW", help="Map a queue to another.", **pairs)
    add_argument(
        "--broker",
        choices=BROKERS,
        default=BROKERS[0],
        help="The broker that defines the priorities of job types that are no tasks (amqp).",
    )
    add_argument("--paused", action="store_true", help="Pause the imported schedules.")
    add_argument("--dry-run", action="store_true", help="Print the same, but write nothing.")
    aliases = {"choices": tuple(connections), "default": DEFAULT_DB_ALIAS}
    add_argument("--database", help="The database with the tables of beat (default).", **aliases)


def run(options: dict[str, Any]) -> Iterator[str]:
    """Import the tables of django-celery-beat, or check the project. Yield the lines to print;
    raise ``CommandError`` if something cannot be imported or will not work."""
    return _check(options) if options["check"] else import_beat(options)


def _check(options: dict[str, Any]) -> Iterator[str]:
    if find_spec("celery") is None:
        raise CommandError("Celery is not installed")
    from .app import apps_of, findings_in_code, findings_of
    from .code import Level, files_of

    apps = apps_of(options["app"])
    files = files_of(apps)
    found = []
    for app in apps:
        own = sum(not name.startswith("celery.") for name in app.tasks)
        yield f"{app.main}: {counted(own, 'task')}"
        found += (of_app := list(findings_of(app)))
        yield from map(_line, of_app)
    yield f"code: {counted(len(files), 'file')}"
    found += (in_code := list(findings_in_code(files, apps[0])))
    yield from map(_line, in_code)
    errors = sum(finding.level is Level.ERROR for finding in found)
    yield f"{counted(errors, 'error')}, {counted(len(found) - errors, 'note')}."
    if errors:
        raise CommandError(f"{counted(errors, 'thing')} will not work as jobs")


def _line(finding: Any) -> str:
    return f"{finding.level.value:<6}{finding.where}: {finding.text}"


SOURCE = Source(
    meaning="import the tables of django-celery-beat, or check a Celery project",
    add_options=add_options,
    run=run,
)
