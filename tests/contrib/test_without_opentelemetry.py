"""The package without OpenTelemetry: all works but its hook, and a check names that."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PATIENCE

PROGRAM = """
import importlib, pkgutil, sys
sys.modules["opentelemetry"] = None
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_jobs"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
    DJANGO_JOBS={"HOOKS": %(hooks)r},
)
django.setup()
import django_jobs
for room in ("api", "lifecycle", "worker", "maintenance", "metrics", "doctor", "management"):
    package = importlib.import_module(f"django_jobs.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
from django_jobs.checks.settings import check_settings
for message in check_settings():
    print(message.id, message.msg)
"""


def messages(hooks: list[str]) -> list[str]:
    """What the checks say in a process that cannot import OpenTelemetry."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM % {"hooks": hooks}],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nothing_needs_opentelemetry_without_the_hook() -> None:
    assert messages([]) == []


def test_a_check_names_the_hook_that_cannot_be_imported() -> None:
    (message,) = messages(["django_jobs.contrib.opentelemetry.trace"])
    assert message.startswith("django_jobs.E019 The hook 'django_jobs.contrib.opentelemetry.trace'")
    assert "cannot be imported: ModuleNotFoundError" in message
