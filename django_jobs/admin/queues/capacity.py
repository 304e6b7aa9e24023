"""Whether enough workers serve a queue, by the jobs that arrive and how long they run."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.translation import gettext as _

from ...metrics.sizing import HEADROOM
from ...separators import number_text
from ..overview.numbers import Numbers, is_full
from ..overview.problem import seconds_text
from ..overview.queue_numbers import past_of_queue, rates_of_queue


@dataclass(frozen=True, slots=True)
class Need:
    """The slots of one kind that a queue needs, and those of the workers that serve it."""

    needed: float
    slots: int
    on_loop: bool

    @property
    def label(self) -> str:
        """What the number is."""
        if self.on_loop:
            return _("async slots that new jobs need")
        return _("threads that new jobs need")

    def __str__(self) -> str:
        return _("%(needed)s of %(slots)s") % {
            "needed": number_text(self.needed, ",.1f"),
            "slots": number_text(self.slots),
        }


def needs_of(numbers: Numbers, name: str) -> list[Need]:
    """What the jobs need that arrive, as many a second as in the last five minutes, if they run for
    as long as those of the last hour. Empty if that is not known."""
    row, hour = numbers.queues[name], numbers.of_queue("rates", name)
    rates = rates_of_queue(numbers, name)
    if rates is None or not hour.get("runs"):
        return []
    kinds = (("seconds", "threads", False), ("seconds_on_loop", "loop_slots", True))
    found = []
    for seconds, slots, on_loop in kinds:
        needed = rates.arrived * float(hour[seconds]) / hour["runs"] * HEADROOM
        if hour[seconds] and (row["loop_slots"] or not on_loop):
            found.append(Need(needed, int(row[slots]), on_loop))
    return found


def verdict(numbers: Numbers, name: str) -> str:
    """What a backlog means: an outage, too few workers, a limit that holds it, or a burst that is
    being worked off. Empty without one, of a paused queue, if the rates or the running times are
    not known, and while jobs run but none was claimed."""
    row, rates, past = (
        numbers.queues[name],
        rates_of_queue(numbers, name),
        past_of_queue(numbers, name),
    )
    counts = {(name, state): numbers.jobs(state, name) for state in ("ready", "running")}
    if past is None or rates is None or row["paused"] or not counts[name, "ready"].number:
        return ""
    if not rates.claimed:
        if counts[name, "running"].number:
            return ""
        text = _("An outage: none of its jobs was claimed in the last %(time)s.")
        return text % {"time": seconds_text(past.seconds or 0)}
    needs = needs_of(numbers, name)
    if not needs:
        return ""
    together = sum(need.needed for need in needs)
    limit = row["max_concurrency"]
    if limit is not None and together > limit:
        text = _("Its limit is too low: its jobs need %(needed)s slots, and %(limit)s may run.")
        return text % {"needed": number_text(together, ",.1f"), "limit": number_text(limit)}
    if is_full(row, counts):
        if rates.arrived >= rates.claimed:
            return _("Its limit holds it: a backlog that does not become smaller.")
        return _("Its limit holds it: a backlog that becomes smaller.")
    if any(need.needed > need.slots for need in needs):
        return _("Too few workers: its jobs need more slots than those that serve it have.")
    if rates.arrived >= rates.claimed:
        return _("A backlog that does not become smaller, although its workers have enough slots: "
                 "other queues may take them.")  # fmt: skip
    return _("A backlog that becomes smaller: its workers have enough slots.")
