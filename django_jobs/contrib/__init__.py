"""Help for projects that come from other libraries.

Here are the queues from which ``manage.py jobimport`` takes jobs or schedules over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

MODULES = {"celery": "celery.checking.source", "django-tasks-db": "django_tasks_db"}
"""The module of each source in this room, by the name of its subcommand. It is imported when the
command runs, and defines ``SOURCE``."""


class Source(NamedTuple):
    """One subcommand of ``jobimport``."""

    meaning: str
    """What it does, for ``--help``: lower case, without a full stop."""
    add_options: Callable[[Callable[..., Any]], None]
    """Gets the ``add_argument`` of its parser."""
    run: Callable[[dict[str, Any]], Iterator[str]]
    """Gets the options, and yields the lines to print. Raises ``CommandError``."""


def sources() -> Mapping[str, Source]:
    return {name: import_module(f".{path}", __package__).SOURCE for name, path in MODULES.items()}
