"""The numbers of one queue now, above its form."""

from __future__ import annotations

from typing import Any

from django.db.models import Model
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.pressure import Level
from ...lifecycle.backlog import read_backlog
from ...metrics.stored import NoMetrics
from ...models import DeadLetter, Job
from ...separators import number_text
from ..access.visible import Visible
from ..base.formatting import NOTHING, pause_sentence
from ..layout.charts import sparkline
from ..overview.numbers import Numbers, read_numbers_of
from ..overview.queue_numbers import empty_in, queue_numbers
from ..overview.sections import Tile
from .capacity import needs_of, verdict
from .levels import level_badge

Link = tuple[str, str]


def live(queue: Any, visible: Visible) -> dict[str, Any]:
    """What the template ``queue/live.html`` shows."""
    shown: dict[str, Any] = {
        "pause": pause_sentence(queue),
        "state": "",
        "links": _links(queue, visible),
    }
    try:
        numbers = read_numbers_of(queue.name)
    except NoMetrics:
        return shown
    if queue.name not in numbers.queues:  # it is younger than the numbers
        return shown
    return shown | _numbers(numbers, visible, queue)


def _links(queue: Any, visible: Visible) -> list[Link]:
    pages: tuple[tuple[str, type[Model]], ...] = (
        (_("All its jobs"), Job),
        (_("Its dead letters"), DeadLetter),
    )
    return [
        (text, visible.list_url(model, queue=queue.name))
        for text, model in pages
        if visible.sees(model)
    ]


def _numbers(numbers: Numbers, visible: Visible, queue: Any) -> dict[str, Any]:
    now = queue_numbers(numbers, visible, queue.name)

    def tile(state: str, label: str, model: type[Model] = Job, **filters: Any) -> Tile:
        count = numbers.jobs(state, queue.name)
        url = visible.list_url(model, queue=queue.name, **filters)
        return Tile(str(count), label, url if count.number and visible.sees(model) else "")

    done, failed = (now.done, now.failed) if conf().totals else (NOTHING, NOTHING)
    values, title = now.curve
    return {
        "state": now.state if queue.paused == bool(numbers.queues[queue.name]["paused"]) else "",
        "needs": needs_of(numbers, queue.name),
        "verdict": verdict(numbers, queue.name),
        "level": level_badge(_level(queue.name)) if queue.max_backlog else "",
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
        "age": number_text(numbers.age, ".0f"),
    }


def _level(queue: str) -> Level:
    """Counted, as the enqueues that it may refuse are: the numbers may be estimates."""
    found = read_backlog(queue)
    return found.level if found else "ok"
