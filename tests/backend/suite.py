"""Django's own tests of Tasks, from its source distribution, changed to run with JobsBackend.

Before Django 6.0 those of 6.0 are run with django-tasks, whose source distribution has no tests:
they are the same tests, with the names of its modules.
"""

from __future__ import annotations

import re
from pathlib import Path

import django

VERSION = django.__version__ if django.VERSION >= (6, 0) else "6.0.10"

CHANGES = {r"\bSimpleTestCase\b": "TestCase"}
BACKENDS = r"django\.tasks\.backends\.(dummy|immediate)\b"
OF_DJANGO_TASKS = {
    r"\bdjango\.tasks import Task\b": "django_tasks.base import Task",
    r"(?s)\bfrom django\.tasks import \((.*?)    Task,\n(.*?)\)": (
        r"from django_tasks.base import Task\nfrom django_tasks import (\1\2)"
    ),
    r"\bdjango\.tasks\b": "django_tasks",
    r"\bInvalidTask\b": "InvalidTaskError",
    r"support async Tasks": "support async tasks",
    r"\bInvalidTaskBackend\b": "InvalidTaskBackendError",
    r"\bdjango\.utils\.json\b": "django_tasks.utils",
}


def unpack(source: Path, folder: Path, backends: str) -> None:
    """Write the package ``tasks`` into ``folder``: Django's tests in ``source``, changed. They run
    with the classes of the module ``backends``."""
    package = folder / "tasks"
    package.mkdir()
    for path in source.glob("*.py"):
        (package / path.name).write_text(_changed(path.read_text(), backends))


def _changed(text: str, backends: str) -> str:
    changes = {**CHANGES, BACKENDS: backends}
    if django.VERSION < (6, 0):
        changes |= OF_DJANGO_TASKS
    for pattern, new in changes.items():
        text = re.sub(pattern, new, text)
    return text
