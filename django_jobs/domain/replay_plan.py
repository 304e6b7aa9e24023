"""Replays dead jobs in waves: first a few, then some more, then the rest at a rate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from .numbers import is_whole
from .states import JobState, RunState

REMEMBERED = 100
"""Outcomes of which the share is taken: the last ones."""
MOST_AWAITED = 1_000
"""Replayed jobs whose outcome is awaited. A plan waits rather than replay more; without one, the
outcome of more jobs is not looked for."""
LONGEST_BURST = 2.0
"""Seconds. After a pause a plan does not catch up on more than this."""


class Outcome(StrEnum):
    """How a replayed job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


OUTCOME_OF: dict[str, Outcome] = {
    RunState.SUCCEEDED: Outcome.SUCCEEDED,
    RunState.CANCELLED: Outcome.CANCELLED,
    RunState.FAILED: Outcome.FAILED,
    RunState.TIMED_OUT: Outcome.FAILED,
    RunState.LOST: Outcome.FAILED,
    JobState.DEAD: Outcome.FAILED,
}
"""By the state of the first run, or of the job that ended without one."""

LETTERS = {Outcome.SUCCEEDED: ".", Outcome.FAILED: "x"}
"""How outcomes are remembered. One that was cancelled says nothing of the next ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """First a few jobs, then some more, then the rest at a rate. Each wave waits for the last."""

    first: int = 1
    then: int = 20
    rate: int = 10
    """Jobs per second."""
    most_failed: int = 20
    """Percent of the last outcomes that may be failures."""

    def __post_init__(self) -> None:
        limits = {"first": 1_000, "then": 10_000, "rate": 1_000, "most_failed": 100}
        for name, most in limits.items():
            least = 0 if name in ("then", "most_failed") else 1
            value = getattr(self, name)
            if not (is_whole(value) and least <= value <= most):
                raise ValueError(f"{name!r} must be from {least} to {most:,}, not {value!r}")

    @classmethod
    def from_json(cls, given: Any) -> ReplayPlan:
        """The plan of a row. Raises ``ValueError``."""
        if not isinstance(given, Mapping) or not given.keys() <= set(cls.__slots__):
            raise ValueError(f"a plan has {', '.join(cls.__slots__)}")
        return cls(**given)

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    def seconds(self, jobs: int) -> float:
        """About how long ``jobs`` take, without the time that the waves wait for outcomes."""
        return max(jobs - self.first - self.then, 0) / self.rate

    def phase(self, sent: int) -> str:
        """Where the plan is after ``sent`` jobs: ``first``, ``then`` or ``rest``."""
        if sent < self.first:
            return "first"
        return "then" if sent < self.first + self.then else "rest"

    def may_send(self, sent: int, awaited: int, elapsed: float) -> int:
        """How many jobs to replay now, ``elapsed`` seconds after the last ones."""
        if sent < self.first:
            return self.first - sent
        if sent in (self.first, self.first + self.then) and awaited:
            return 0
        if sent < self.first + self.then:
            return self.first + self.then - sent
        due = int(self.rate * min(elapsed, LONGEST_BURST))
        return max(min(due, MOST_AWAITED - awaited), 0)

    def paced(self, last: float, now: float, sent: int) -> float:
        """The time from which the next jobs are due, after ``sent`` more at ``now``. Jobs that were
        due and not sent are still due."""
        return max(last, now - LONGEST_BURST) + sent / self.rate

    def problem(self, outcomes: str) -> str | None:
        """Why the plan stops after these last ``outcomes``, or None."""
        failed = outcomes.count(LETTERS[Outcome.FAILED])
        if failed * 100 <= self.most_failed * len(outcomes):
            return None
        share = round(100 * failed / len(outcomes))
        return (
            f"{failed} of the last {len(outcomes)} replayed jobs failed again: {share} %, more "
            f"than {self.most_failed} %"
        )


def remembered(outcomes: str, new: Iterable[Outcome]) -> str:
    return (outcomes + "".join(LETTERS.get(outcome, "") for outcome in new))[-REMEMBERED:]
