"""What the end of one step of a workflow means for the others."""

from __future__ import annotations

from enum import StrEnum

from .states import JobState


class WorkflowState(StrEnum):
    """The status of a run of a workflow. Of one that is ``EXPIRED`` retention has deleted steps."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class When(StrEnum):
    """How a step has to end so that one that comes after it may start."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FINISHED = "finished"


class Skipped(StrEnum):
    """Why a step was skipped. ``FAILED``: one that it needs failed. ``UNNEEDED``: it is for the
    failure of one that did not fail, or its handler skipped it. ``PASSED``: a person skipped it,
    or it is optional and would be dead, and the run continues."""

    FAILED = "failed"
    UNNEEDED = "unneeded"
    PASSED = "passed"


class Fate(StrEnum):
    """How a step ended, for the steps that come after it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNNEEDED = "unneeded"


def fate_of(status: JobState, skipped: Skipped | None = None) -> Fate:
    """The fate of a step that ended with this status. A cancelled step counts as failed, unless it
    was skipped as unneeded or passed over."""
    if status == JobState.SUCCEEDED or skipped == Skipped.PASSED:
        return Fate.SUCCEEDED
    return Fate.UNNEEDED if skipped == Skipped.UNNEEDED else Fate.FAILED


def is_met(when: When, fate: Fate) -> bool:
    """Whether a step that waits with ``when`` may start, as far as one with this fate decides. If
    not, it never can."""
    return when == When.FINISHED or when.value == fate.value
