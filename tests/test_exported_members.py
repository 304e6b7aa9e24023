"""The public names: a change here is a change for every project."""

from __future__ import annotations

import subprocess
import sys

import pytest

import django_jobs

PUBLIC = {
    "Backoff",
    "Cancel",
    "Cancelled",
    "Concurrency",
    "Discard",
    "DuplicateJob",
    "EnqueueError",
    "HookError",
    "HookEvent",
    "If",
    "JobStatus",
    "JobType",
    "JobsError",
    "LeaseLost",
    "NotMigrated",
    "OperationRefused",
    "PayloadError",
    "Pressure",
    "ResourcePressure",
    "QueueFull",
    "ResultNotStored",
    "Retry",
    "RunContext",
    "RunOutcome",
    "SignalTimeout",
    "Skip",
    "Snooze",
    "Stored",
    "TimeLimitExceeded",
    "UnknownJobType",
    "UnknownQueue",
    "change_occurrence",
    "move_occurrence",
    "pause",
    "restore_occurrence",
    "resume",
    "run_now",
    "skip_occurrence",
    "aqueue_pressure",
    "aresource_pressure",
    "UnknownResource",
    "Workflow",
    "WorkflowError",
    "cancel",
    "chain",
    "current_run",
    "enqueue",
    "enqueue_many",
    "group",
    "job",
    "queue_pressure",
    "resource_pressure",
    "schedule",
}


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(django_jobs.__all__) == PUBLIC
    assert list(django_jobs.__all__) == sorted(django_jobs.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_name_can_be_imported(name: str) -> None:
    assert getattr(django_jobs, name) is not None


def test_any_other_name_is_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'django_jobs' has no attribute 'nope'"):
        django_jobs.nope  # noqa: B018


def test_the_package_imports_without_settings() -> None:
    code = "import django_jobs; django_jobs.Backoff.fixed(1); django_jobs.Retry(after=1)"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
