"""Evaluates all gates of a job, and says why it is not running, and when it should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..domain.numbers import duration_text
from ..domain.states import LIVE, JobState
from ..lifecycle.backlog_samples import past
from ..models import Job
from ..models.fields import DistantTime
from ..separators import localized, number_text
from . import admission, due, queue, running, workers
from .admission import gates_of
from .explanation import Expected, Explanation, Gate, GateState, Text, fill
from .facts import Facts, jobs_text, moment
from .queue import before
from .workers import LONGER

OVERDUE_SECONDS = 60.0
"""A job that nothing holds starts far sooner."""


def explain(job: Job, *, names_jobs: bool = True) -> Explanation:
    """Why ``job`` is not running, or since when it runs, or how it ended. Two statements.

    Without ``names_jobs`` other jobs are named by a ``Ref`` alone, and by no plain text.
    """
    facts = Facts(job, parts_of(job), parameters_of(job), names_jobs=names_jobs)
    if job.status not in LIVE:
        sentence = running.ended_sentence(job, facts)
        return Explanation(job=job.pk, status=job.status, sentence=sentence)
    if job.status == JobState.RUNNING:
        return Explanation(
            job=job.pk,
            status=job.status,
            sentence=running.running_sentence(job, facts),
            gates=tuple(running.gates(job, facts)),
        )
    gates = tuple(_gates(job, facts))
    start = expected_start(job, gates, facts)
    before, more = queue.before(facts)
    return Explanation(
        job=job.pk,
        status=job.status,
        sentence=_sentence(job, gates, start, facts),
        gates=gates,
        before=before,
        more_before=more,
        expected=start,
    )


def parts_of(job: Job) -> dict[str, str]:
    rooms: tuple[Any, ...] = ()
    if job.status == JobState.RUNNING:
        rooms = (running,)
    elif job.status in LIVE:
        rooms = due, admission, queue, workers
    return {name: sql for room in rooms for name, sql in room.parts(job).items()}


def _gates(job: Job, facts: Facts) -> Iterator[Gate]:
    """In the order in which a job passes them. Other jobs do not hold one that is not due."""
    found = [
        *due.gates(job, facts),
        *admission.gates(job, facts),
        *queue.gates(job, facts),
        *workers.gates(job, facts),
        *queue.line(facts),
    ]
    is_later = job.status == JobState.WAITING or any(
        gate.name == "due" and gate.holds for gate in found
    )
    for gate in found:
        if is_later and gate.momentary and gate.holds:
            yield replace(gate, state=GateState.UNKNOWN)
        else:
            yield gate


def _sentence(job: Job, gates: tuple[Gate, ...], start: Expected | None, facts: Facts) -> Text:
    holding = [gate for gate in gates if gate.holds and gate.sentence]
    if not holding:
        unknown = [gate.sentence for gate in gates if gate.state == GateState.UNKNOWN]
        return next(filter(None, unknown), None) or _of_free(job, start, facts)
    sentence = holding[0].sentence
    others = [gate.phrase for gate in holding[1:] if gate.phrase]
    if others:
        also = fill(_("Also: %(others)s."), others="; ".join(others))
        sentence = fill("%(first)s %(also)s", first=sentence, also=also)
    if job.status in (JobState.READY, JobState.BLOCKED) and (line := _line(start, facts)):
        sentence = fill("%(first)s %(line)s", first=sentence, line=line)
    return sentence


def _of_free(job: Job, start: Expected | None, facts: Facts) -> Text:
    """Of a job that nothing holds but those before it."""
    if line := _line(start, facts):
        return (line,)
    waited = (facts.now - job.available_at).total_seconds()
    if job.status == JobState.SCHEDULED:
        text = _("Due since %(age)s: a worker makes it ready in the next moment.")
        if waited >= OVERDUE_SECONDS:
            text = _("Due since %(age)s, and no worker has made it ready: look at their logs.")
        return fill(text, age=facts.since(job.available_at))
    if waited < OVERDUE_SECONDS:
        return (_("Nothing holds it: a worker starts it in the next moment."),)
    text = _(
        "No gate holds it, and yet it has waited for %(time)s: look at the logs of its workers."
    )
    sentence = text % {"time": localized(duration_text(waited))}
    failures = workers.claim_failures(facts)
    if failures:
        more = ngettext(
            "%(count)s of their claims failed.", "%(count)s of their claims failed.", failures
        )
        sentence = f"{sentence} {more % {'count': number_text(failures)}}"
    return (sentence,)


def _line(start: Expected | None, facts: Facts) -> str:
    """How many are before it, and its expected start; empty if it is the first."""
    count, more = queue.before(facts)
    if not count:
        if start is None or start.seconds == 0:
            return ""
        text = _start(start)
        return text[:1].upper() + text[1:]
    template = ngettext("%(number)s job is before it", "%(number)s jobs are before it", count)
    text = template % {"number": number_text(count, more=more)}
    if start is None:
        return f"{text}."
    return f"{text}; {_start(start)}"


def _start(start: Expected) -> str:
    template = _("expected start in about %(time)s.")
    if start.at_least:
        template = _("expected start in more than %(time)s.")
    return template % {"time": localized(duration_text(start.seconds))}


def blocked_by(job: Job) -> str:
    """What a blocked or waiting job waits for, in a list; until when a handler sleeps."""
    match job.status:
        case JobState.SCHEDULED if job.attempt:
            rooms: tuple[Any, ...] = (due,)
        case JobState.WAITING:
            rooms = (due,)
        case JobState.BLOCKED:
            rooms = (admission,)
        case _:
            return ""
    parts = {name: sql for room in rooms for name, sql in room.parts(job).items()}
    facts = Facts(job, parts, parameters_of(job))
    gates = [gate for room in rooms for gate in room.gates(job, facts)]
    if job.status == JobState.BLOCKED and job.gates is not None:
        gates += [*queue.gates(job, facts), *workers.unable(job, facts)]
    return "; ".join(gate.phrase for gate in gates if gate.holds and gate.phrase)


def parameters_of(job: Job) -> dict[str, Any]:
    gates = gates_of(job)
    return {
        "id": job.pk,
        "queue": job.queue,
        "job_type": job.job_type,
        "rank": job.rank,
        "attempt": job.attempt,
        "worker": job.worker_id,
        "schedule": job.schedule_id,
        "awaits": job.awaits,
        "gates": job.gates,
        "tenant": gates.tenant if gates else None,
        "names": list(gates.resources) if gates else [],
        "key": gates.key if gates else None,
        "limit": gates.limit if gates else None,
    }


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
