"""Workflows that are declared in one test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobs import registry
from django_jobs.api.workflows.workflow import Workflow
from tests.worker.conftest import start_worker

__all__ = ["start_worker"]


@pytest.fixture
def workflow() -> Iterator[Callable[..., Workflow]]:
    """Declares a workflow that is forgotten after the test."""
    names = set()

    def declare(name: str = "test.flow", **options: Any) -> Workflow:
        names.add(name)
        return Workflow(name, **options)

    yield declare
    for name in names:
        registry.forget_workflow(name)
