"""The numbers of one queue now, above its form, and whether enough workers serve it."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Model
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.pressure import Level
from ...lifecycle.backlog import read_backlog
from ...metrics.forecast import HEADROOM
from ...metrics.stored import NoMetrics
from ...models import DeadLetter, Job
from ...separators import number_text
from ..base.formatting import NOTHING, Visible, level_badge, pause_sentence
from ..layout.charts import sparkline
from ..overview.numbers import (
    Numbers,
    empty_in,
    past_of_queue,
    queue_numbers,
    rates_of_queue,
    read_numbers_of,
    seconds_text,
)
from ..overview.sections import Tile


class Need(NamedTuple):
    """The slots of one kind that a queue needs, and those of the workers that serve it."""

    needed: float
    slots: int
    on_loop: bool

    def __str__(self) -> str:
        label = _("async slots that new jobs need")
        if not self.on_loop:
            label = _("threads that new jobs need")
        slots = _("%(needed)s; there are %(slots)s") % {
            "needed": number_text(self.needed, ",.1f"),
            "slots": number_text(self.slots),
        }
        return f"{capfirst(label)}: {slots}"


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
    row = numbers.queues[name]
    rates, past = rates_of_queue(numbers, name), past_of_queue(numbers, name)
    if past is None or rates is None or row["paused"] or not numbers.jobs("ready", name).number:
        return ""
    if not rates.claimed:
        if numbers.jobs("running", name).number:
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
    if numbers.is_full(name):
        if rates.arrived >= rates.claimed:
            return _("Its limit holds it: a backlog that does not become smaller.")
        return _("Its limit holds it: a backlog that becomes smaller.")
    if any(need.needed > need.slots for need in needs):
        return _("Too few workers: its jobs need more slots than those that serve it have.")
    if rates.arrived >= rates.claimed:
        return _("A backlog that does not become smaller, although its workers have enough slots: "
                 "other queues may take them.")  # fmt: skip
    return _("A backlog that becomes smaller: its workers have enough slots.")


def live(queue: Any, visible: Visible) -> dict[str, Any]:
    pages: tuple[tuple[str, type[Model]], ...] = (
        (_("All its jobs"), Job),
        (_("Its dead letters"), DeadLetter),
    )
    links = [
        (text, visible.list_url(model, queue=queue.name))
        for text, model in pages
        if visible.sees(model)
    ]
    shown: dict[str, Any] = {"kind": "queue", "states": [pause_sentence(queue)], "links": links}
    try:
        numbers = read_numbers_of(queue.name)
    except NoMetrics:
        return shown
    if queue.name not in numbers.queues:  # it is younger than the numbers
        return shown
    return shown | _numbers(numbers, visible, queue)


def _numbers(numbers: Numbers, visible: Visible, queue: Any) -> dict[str, Any]:
    now = queue_numbers(numbers, visible, queue.name)

    def tile(state: str, label: str, model: type[Model] = Job, **filters: Any) -> Tile:
        count = numbers.jobs(state, queue.name)
        url = visible.list_url(model, queue=queue.name, **filters)
        return Tile(str(count), label, url if count.number and visible.sees(model) else "")

    done, failed = (now.done, now.failed) if conf().totals else (NOTHING, NOTHING)
    values, title = now.curve
    is_current = queue.paused == bool(numbers.queues[queue.name]["paused"])
    states = [pause_sentence(queue) or (now.state if is_current else "")]
    if queue.max_backlog:
        states.append(format_html("{} {}", _("Pressure:"), level_badge(_level(queue.name))))
    states += filter(None, [verdict(numbers, queue.name)])
    return {
        "states": [*states, *needs_of(numbers, queue.name)],
        "tiles": [
            tile("ready", _("ready"), status="ready"),
            Tile(now.oldest, _("oldest ready")),
            tile("running", _("running, limit %(limit)s") % {"limit": now.limit}, status="running"),
            tile("scheduled", _("scheduled"), status="scheduled"),
            tile("dead", _("dead"), DeadLetter),
            Tile(done, _("done a minute")),
            Tile(failed, _("failed a minute")),
            Tile(empty_in(numbers, queue.name, paused=queue.paused), _("empty in")),
        ],
        "curve": sparkline(values, title),
    }


def _level(queue: str) -> Level:
    """Counted, as the enqueues that it may refuse are: the numbers may be estimates."""
    found = read_backlog(queue)
    return found.level if found else "ok"
