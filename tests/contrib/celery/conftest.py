"""Fixtures of the tests with Celery tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobs import registry
from tests.worker.conftest import start_worker

__all__ = ["start_worker"]


@pytest.fixture(scope="module")
def project() -> Iterator[None]:
    """The tasks are job types, for these tests only. A test names them as ``tasks.add``: of a
    name in its module pytest asks attributes, which registers the task."""
    from django_jobs.contrib.celery.running.job_types import register
    from tests.contrib.celery.project import celery_app

    celery_app.loader.import_default_modules()
    names = list(celery_app.tasks)
    for name in names:
        register(celery_app, name)
    yield
    for name in names:
        registry.unregister(name)


@pytest.fixture
def configure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Changes settings of the project, for one test. Until 5.6, Celery prefers those that have the
    prefix of the app, so both are changed."""
    from tests.contrib.celery.project import celery_app

    def configure(**values: Any) -> None:
        for name, value in values.items():
            for key in (name, f"celery_{name}".upper()):
                monkeypatch.setitem(celery_app.conf.changes, key, value)

    return configure


@pytest.fixture
def declare(project: None) -> Iterator[Callable[..., Any]]:
    """Declares a task of the project, for one test."""
    from tests.contrib.celery.project import celery_app

    names = []

    def declare(function: Callable[..., Any], **options: Any) -> Any:
        name = f"project.{function.__name__}"
        names.append(name)
        return celery_app.task(name=name, lazy=False, shared=False, **options)(function)

    yield declare
    for name in names:
        registry.unregister(name)
        del celery_app.tasks[name]
