"""When a job should start, from what was claimed lately, or from how long such jobs take."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext as _

from ..domain.durations import duration_text
from ..domain.states import JobState
from ..lifecycle.backlog_samples import past
from ..models import Job
from ..models.fields import DistantTime
from ..separators import localized, number_text
from .admission import gates_of
from .explanation import Expected, Gate, GateState
from .facts import Facts, jobs_text, moment
from .queue import before
from .workers import LONGER

FEWEST_CLAIMS = 5
"""In the last five minutes. With fewer, the rate says little."""


def expected_start(job: Job, gates: Sequence[Gate], facts: Facts) -> Expected | None:
    """None where it is not known."""
    closed = {gate.name for gate in gates if gate.holds}
    if any(gate.holds and gate.lasting for gate in gates):
        return None
    match job.status:
        case JobState.SCHEDULED if closed <= {"due"}:
            if isinstance(job.available_at, DistantTime):
                return None
            seconds = max((job.available_at - facts.now).total_seconds(), 0.0)
            return Expected(seconds=seconds, basis=_("its due time"))
        case JobState.READY if closed <= {"limit", "threads", "before"}:
            unknown = {gate.name for gate in gates if gate.state == GateState.UNKNOWN}
            return _of_ready(job, closed | unknown, facts)
        case JobState.BLOCKED if "key" in closed and closed <= {"key", "turn"}:
            wanted, pace = gates_of(job), _pace(facts, "of_type")
            if wanted is None or wanted.tenant is not None or wanted.resources or pace is None:
                return None
            return _by_slots(facts, pace, wanted.limit, "key")
    return None


def _of_ready(job: Job, closed: set[str], facts: Facts) -> Expected | None:
    count, more = before(facts)
    if count is None:
        return None
    if not closed:
        return Expected(seconds=0.0, basis=_("nothing holds it"))
    known = past(job.queue).get(job.queue)
    claims = None if known is None else known.claims
    if known is not None and known.seconds and claims is not None and claims >= FEWEST_CLAIMS:
        if "limit" in closed and _unmoved_seconds(facts, "limit") > known.seconds:
            return None
        values = {"jobs": jobs_text(claims), "time": localized(duration_text(known.seconds))}
        basis = _("%(jobs)s of its queue were claimed in the last %(time)s") % values
        seconds = (count + 1) * known.seconds / claims
        return Expected(seconds=seconds, basis=basis, at_least=more)
    row, pace = facts.row("queue"), _pace(facts, "of_queue")
    if "limit" in closed and row is not None and pace is not None:
        return _by_slots(facts, pace, row["max_concurrency"], "limit")
    return None


def _unmoved_seconds(facts: Facts, part: str) -> float:
    """Seconds in which no job of a part has taken a slot; 0 if some have yet to start."""
    row = facts.row(part)
    newest = None if row is None else moment(row["newest"])
    return 0.0 if newest is None else (facts.now - newest).total_seconds()


def _pace(facts: Facts, name: str) -> float | None:
    row = facts.row("pace")
    return None if row is None else row[name]


def _by_slots(facts: Facts, pace: float, slots: int, part: str) -> Expected | None:
    count, more = before(facts)
    if count is None or slots < 1 or _unmoved_seconds(facts, part) > LONGER * pace:
        return None
    values = {"time": localized(duration_text(pace)), "slots": number_text(slots)}
    basis = _("such jobs ran for %(time)s each in the last day, %(slots)s at a time") % values
    return Expected(seconds=(count + 1) * pace / slots, basis=basis, at_least=more)
