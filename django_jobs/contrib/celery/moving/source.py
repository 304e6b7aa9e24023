"""``manage.py jobimport celery --check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from django.core.management.base import CommandError

from ....management.base import counted
from ...sources import Source

BROKER = (
    "the messages of a broker cannot be taken over: let the workers of Celery empty its queues "
    "before you move. `jobimport celery --check` lists what will be different"
)


def add_options(add_argument: Callable[..., Any]) -> None:
    add_argument(
        "--check",
        action="store_true",
        help="List what will be different; exit with 1 if something will not work.",
    )
    add_argument("--app", metavar="MODULE:NAME", help="The Celery app, if no app was imported.")


def run(options: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each finding, by app. Raises ``CommandError`` if one of them is an error."""
    if not options["check"]:
        raise CommandError(BROKER)
    if find_spec("celery") is None:
        raise CommandError("Celery is not installed")
    from .findings import Level, apps_of, findings_of

    errors = notes = 0
    for app in apps_of(options["app"]):
        yield f"{app.main}: {counted(sum(1 for _ in own_tasks(app)), 'task')}"
        for finding in findings_of(app):
            errors += finding.level is Level.ERROR
            notes += finding.level is Level.NOTE
            yield f"{finding.level.value:<6}{finding.where}: {finding.text}"
    yield f"{counted(errors, 'error')}, {counted(notes, 'note')}."
    if errors:
        raise CommandError(f"{counted(errors, 'thing')} will not work as jobs")


def own_tasks(app: Any) -> Iterator[str]:
    """The names of the tasks that are not Celery's."""
    return (name for name in app.tasks if not name.startswith("celery."))


SOURCE = Source(
    meaning="list what in a Celery project will be different",
    add_options=add_options,
    run=run,
)
