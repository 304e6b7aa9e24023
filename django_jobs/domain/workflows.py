"""What the end of one step of a workflow means for the others."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .hints import Explained
from .payload import encode
from .states import JobState

WAIT, SLEEP = "django_jobs.wait", "django_jobs.sleep"
"""The job types of steps that wait."""
END = "django_jobs.end"
"""The job type of the step that ends a workflow within another one."""

CALLBACK = "django_jobs.callback"
"""The job type of a call at the end of a job, and the header of that job with the address."""

LONGEST_CONDITION = 10_000
"""Bytes of a condition on a result, as JSON."""
NOT_GIVEN: Any = object()


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


@dataclass(frozen=True, slots=True, init=False)
class If(metaclass=Explained):
    """A step starts if the one before it succeeded with such a result.

    ``path`` leads to a value in the result: keys of objects and numbers of list items, joined by
    dots. The default is the whole result. Of several comparisons all have to hold:

    - ``equals``, ``not_equals``: JSON.
    - ``at_least``, ``at_most``: a number. They hold for no other value than a number.
    - ``in_``: a list of JSON values, one of which it equals.

    None holds for a value that does not exist, nor for a result that is None or was not stored.
    Raises :class:`ValueError` for what is no condition.
    """

    document: Mapping[str, Any]
    """The condition as it is stored: ``{"path": "approved", "equals": true}``."""

    def __init__(
        self,
        path: str = "",
        *,
        equals: Any = NOT_GIVEN,
        not_equals: Any = NOT_GIVEN,
        at_least: float = NOT_GIVEN,
        at_most: float = NOT_GIVEN,
        in_: Sequence[Any] = NOT_GIVEN,
    ) -> None:
        given = {"equals": equals, "not_equals": not_equals, "in": in_}
        numbers = {"at_least": at_least, "at_most": at_most}
        asked = {word: value for word, value in (given | numbers).items() if value is not NOT_GIVEN}
        if not isinstance(path, str) or (path and not all(path.split("."))):
            raise ValueError(f"If: the path is keys joined by dots, not {path!r}")
        if not asked:
            raise ValueError(
                "If needs one of equals=, not_equals=, at_least=, at_most= and in_=, to say what "
                "the result has to be"
            )
        for word in numbers.keys() & asked.keys():
            if not isinstance(asked[word], int | float) or isinstance(asked[word], bool):
                raise ValueError(f"If: {word} is a number, not {asked[word]!r}")
        if not isinstance(asked.get("in", []), list | tuple):
            raise ValueError(f"If: in_ is a list, not {asked['in']!r}")
        if asked.get("in", True) in ([], ()) or asked.get("at_least", 0) > asked.get(
            "at_most", asked.get("at_least", 0)
        ):
            raise ValueError("If: no result can be that")
        document = {"path": path, **asked}
        encode(document, max_bytes=LONGEST_CONDITION, name="If")
        object.__setattr__(self, "document", document)


SIGNS = {"equals": "=", "not_equals": "≠", "at_least": "≥", "at_most": "≤"}


def condition_text(condition: Mapping[str, Any]) -> str:
    """A stored :class:`If` for people, in any language: ``order.total ≥ 100``."""
    path = condition.get("path") or "result"
    return ", ".join(
        f"{path} {SIGNS.get(word, word)} {json.dumps(value, ensure_ascii=False)}"
        for word, value in condition.items()
        if word != "path"
    )


class Skipped(StrEnum):
    """Why a step was skipped. ``FAILED``: one that it needs failed. ``UNNEEDED``: it is for the
    failure of one that did not fail, or for another result, or its handler skipped it. ``PASSED``:
    a person skipped it, or it is optional and would be dead, and the run continues."""

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
    """Whether one of this fate lets a step that waits with ``when`` start. If not, it never can."""
    return when == When.FINISHED or when.value == fate.value
