"""What is shown of one queue."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.forecast import Rates, drain_seconds
from ...lifecycle.backlog_samples import Past
from ...metrics.overview import MINUTES, RATE_MINUTES
from ...models import Job
from ...separators import number_text
from ..access.visible import Visible
from ..base.formatting import NOTHING, badge
from .numbers import Count, Numbers, Row
from .problem import seconds_text

LONGEST_SECONDS = 100 * 86_400.0

Curve = tuple[list[float | None], str]


@dataclass(frozen=True, slots=True)
class QueueNumbers:
    """The numbers of a queue as texts. The rates are attempts a minute. ``curve`` are the ready
    jobs of each minute, and what they say in words."""

    state: SafeString
    ready: str
    scheduled: str
    oldest: str
    running: Count
    limit: str
    done: str
    failed: str
    fails: bool
    empty_in: str
    curve: Curve


def queue_numbers(numbers: Numbers, visible: Visible, name: str) -> QueueNumbers:
    """The numbers of a queue that they are about."""
    row, rates = numbers.queues[name], numbers.of_queue("rates", name)
    ready, running = numbers.jobs("ready", name), numbers.jobs("running", name)
    limit = row["max_concurrency"]
    failed = rates.get("failed", 0) / RATE_MINUTES
    return QueueNumbers(
        state=queue_state(numbers, name),
        ready=_jobs_link(visible, ready, name, "ready"),
        scheduled=_jobs_link(visible, numbers.jobs("scheduled", name), name, "scheduled"),
        oldest=wait_text(row["oldest_ready_seconds"]) if ready.number else NOTHING,
        running=running,
        limit="∞" if limit is None else number_text(limit),
        done=_done(rates),
        failed=rate_text(failed),
        fails=bool(failed),
        empty_in=empty_in(numbers, name, paused=bool(row["paused"])),
        curve=_curve(numbers, name, ready),
    )


def _done(rates: Row) -> str:
    return rate_text(rates.get("done", 0) / RATE_MINUTES)


def done_per_minute(numbers: Numbers, name: str) -> str:
    """How many attempts of the queue succeeded a minute, of the last five minutes that are over; a
    dash if that is not known of it."""
    if name not in numbers.listed or not conf().totals:
        return NOTHING
    return _done(numbers.of_queue("rates", name))


def _jobs_link(visible: Visible, count: Count, queue: str, status: str) -> str:
    if not count.number:
        return str(count)
    return visible.list_link(Job, str(count), queue=queue, status=status)


def queue_state(numbers: Numbers, name: str) -> SafeString:
    """Whether workers take its jobs."""
    row = numbers.queues[name]
    if row["paused"]:
        return badge("paused", _("paused"))
    if not row["slots"]:
        return badge("error" if numbers.jobs("ready", name).number else "gone", _("no worker"))
    if numbers.is_full(name):
        return badge("over_limit", _("limit full"))
    return badge("ok", _("active"))


def past_of_queue(numbers: Numbers, name: str) -> Past | None:
    """What the rates are made of; None of a queue that is not among the numbers."""
    past = numbers.of_queue("past", name)
    return Past(**{column: past[column] for column in Past._fields}) if past else None


def rates_of_queue(numbers: Numbers, name: str) -> Rates | None:
    """The rates of the last five minutes; None if they are not known."""
    known = past_of_queue(numbers, name)
    ready = numbers.jobs("ready", name)
    return known.rates(None if ready.estimate else ready.number) if known else None


def empty_in(numbers: Numbers, name: str, *, paused: bool) -> str:
    """When the backlog will be gone, by the rates of the last five minutes. The numbers may be
    older than a pause or its end."""
    ready, past = numbers.jobs("ready", name), past_of_queue(numbers, name)
    if not ready.number:
        return _("empty")
    if paused:
        return _("after the pause")
    if past and (past.is_young or numbers.queues[name]["paused"]):
        return _("not known yet")
    rates = rates_of_queue(numbers, name)
    if rates is None:
        return NOTHING
    seconds = drain_seconds(ready.number, rates)
    if seconds is not None:
        text = seconds_text(min(seconds, LONGEST_SECONDS))
        return text if seconds < LONGEST_SECONDS else f">\N{NO-BREAK SPACE}{text}"
    return _("growing") if rates.arrived > rates.claimed else _("not moving")


def _curve(numbers: Numbers, name: str, ready: Count) -> Curve:
    values: list[float | None] = [None] * MINUTES
    for ago, number in numbers.of_queue("curves", name).get("points", ()):
        values[MINUTES - 1 - min(max(ago, 0), MINUTES - 1)] = number  # a clock may have gone back
    values[-1] = ready.number
    for place in range(MINUTES - 1, 0, -1):  # samples are a minute apart, but for seconds
        if values[place] is None:
            values[place] = values[place - 1]
    known = [value for value in values if value is not None]
    title = _("Ready jobs of %(queue)s in the last hour: at most %(most)s") % {
        "queue": name,
        "most": number_text(max(known)),
    }
    return values, title


def wait_text(seconds: float) -> str:
    """How long something has waited; a dash for 0."""
    return seconds_text(seconds) if seconds else NOTHING


def rate_text(rate: float) -> str:
    """A rate, with a decimal where it is small and not whole."""
    return (
        number_text(rate, ",.0f") if rate >= 10 or rate == int(rate) else number_text(rate, ".1f")
    )
