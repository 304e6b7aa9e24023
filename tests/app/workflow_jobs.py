"""Handlers of the tests of workflows."""

from __future__ import annotations

from django_jobs import job
from django_jobs.domain.workflows import When
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start


@job
def pass_by() -> None:
    """A step that does nothing."""


@job(max_attempts=1)
def fail_at_once() -> None:
    """A step that fails."""
    raise RuntimeError("as planned")


@job
def start_a_pair(key: str) -> None:
    """Starts a run with this key: ``b`` after ``a``."""
    new = pass_by.request()
    first = NewStep(name="a", new=new, payload="{}")
    second = NewStep(name="b", new=new, payload="{}", after={0: When.SUCCEEDED})
    start(NewRun(name="pair", idempotency_key=key), [first, second])
