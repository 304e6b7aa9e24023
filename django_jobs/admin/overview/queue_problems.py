"""What is wrong with queues: the jobs of one wait, and the reason."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import registry
from ...domain.pressure import level_of
from ...lifecycle.backlog import read_backlog
from ...metrics.slo import BURNING, SloSnapshot
from ...models import Job, Queue, Worker
from ...models.queue import SloSince
from ...separators import number_text
from ..access.visible import Visible
from ..base.formatting import change_url
from .numbers import Count, Numbers, Row
from .problem import CAUTION, ERROR, Found, Problem, job_text, jobs_text, seconds_text, waiting_text


def of_queues(numbers: Numbers, visible: Visible) -> Found:
    """Queues that are gone, paused, unserved, full or late."""
    for name in numbers.lost:
        text = _("<strong>{name}</strong> has no row, so no worker claims its jobs. {jobs}.")
        shown = format_html(text, name=name, jobs=waiting_text(numbers.waiting(name)))
        yield Problem(ERROR, shown, (_("Queues"), visible.list_url(Queue)))
    for name, row in numbers.queues.items():
        waiting = numbers.waiting(name)
        values = {"name": name, "jobs": waiting_text(waiting)}
        of_ready = {**values, "jobs": waiting_text(numbers.jobs("ready", name))}
        link = _queue_link(numbers, visible, name)
        if row["paused"]:
            if waiting.number:
                yield Problem(CAUTION, _paused(numbers.of_queue("paused", name), values), link)
        elif waiting.number and not row["slots"] and numbers.workers:
            text = _("<strong>{name}</strong>: no running worker serves this queue. {jobs}.")
            url = visible.list_url(Worker) if visible.sees(Worker) else link[1]
            yield Problem(ERROR, format_html(text, **values), (_("Workers"), url))
        elif numbers.is_full(name):
            yield Problem(CAUTION, _full(numbers, visible, row, of_ready), link)
        elif numbers.is_late(name) and (busy := _busy(numbers, visible, row, of_ready)):
            yield Problem(CAUTION, busy, link)
        if held := _in_full(numbers, row):
            text = _("<strong>{name}</strong> is full: {jobs}, and the limit is {limit}. "
                     "Enqueues are refused, or drop jobs.")  # fmt: skip
            limit = number_text(row["max_backlog"])
            values["jobs"] = waiting_text(held)
            yield Problem(ERROR, format_html(text, **values, limit=limit), link)


def _in_full(numbers: Numbers, row: Row) -> Count | None:
    """The jobs that a full queue holds. Of the blocked ones those count that wait at their gates:
    where these decide, they are counted as by an enqueue."""
    name, limit = row["queue"], row["max_backlog"]
    ready, blocked = numbers.jobs("ready", name), numbers.jobs("blocked", name)
    if limit is None or level_of(ready.number + blocked.number, limit) != "full":
        return None
    if not blocked.number:
        return ready
    found = read_backlog(name)
    if found is None or found.level != "full":
        return None
    return Count(max(ready.number, found.ready), ready.estimate) + Count(found.gated)


def _queue_link(numbers: Numbers, visible: Visible, name: str) -> tuple[str, str]:
    ids = {row["name"]: row["id"] for row in numbers.own["queue_ids"]}
    if name in ids:
        return _("Queue"), change_url(visible.site, Queue, ids[name])
    return _("Queues"), visible.list_url(Queue)


def _paused(pause: Row, values: dict[str, str]) -> str:
    since = seconds_text(pause.get("seconds") or 0)
    if reason := pause.get("reason"):
        text = _("<strong>{name}</strong> has been paused for {time}: {reason}. {jobs}.")
        return format_html(text, **values, time=since, reason=reason.rstrip("."))
    text = _("<strong>{name}</strong> has been paused for {time}. {jobs}.")
    return format_html(text, **values, time=since)


def _full(numbers: Numbers, visible: Visible, row: Row, values: dict[str, str]) -> str:
    jobs = numbers.holders("queue_holders", row["queue"]) if visible.sees(Job) else []
    limit = row["max_concurrency"]
    start = ngettext(
        "<strong>{name}</strong>: its only slot is taken, and {jobs}.",
        "<strong>{name}</strong>: all {limit} slots are taken, and {jobs}.",
        limit,
    )
    sentence = format_html(start, **values, limit=number_text(limit))
    if not jobs:
        return sentence
    return format_html(_("{} Longest: {}."), sentence, jobs_text(visible, jobs))


def _busy(numbers: Numbers, visible: Visible, row: Row, values: dict[str, str]) -> str:
    """Its workers have no free slot of a kind that its ready jobs need; empty if they have."""
    name = row["queue"]
    pools = {one["on_loop"]: one for one in numbers.own["pools"]
             if one["queue"] == name}  # fmt: skip
    on_loop = set(registry.loop_types()) if True in pools else set()
    ready = {one["job_type"] in on_loop for one in numbers.gauges["types"]
             if one["queue"] == name and one["state"] == "ready"}  # fmt: skip
    busy = [pools[kind] for kind in ready & pools.keys()
            if pools[kind]["taken"] >= pools[kind]["slots"]]  # fmt: skip
    if not busy:
        return ""
    slots = busy[0]["slots"]
    if busy[0]["on_loop"]:
        text = ngettext(
            "<strong>{name}</strong>: its only async slot is busy{types}; {jobs}, the first for "
            "{time}.",
            "<strong>{name}</strong>: all {slots} async slots are busy{types}; {jobs}, the first "
            "for {time}.",
            slots,
        )
    else:
        text = ngettext(
            "<strong>{name}</strong>: its only thread is busy{types}; {jobs}, the first for "
            "{time}.",
            "<strong>{name}</strong>: all {slots} threads are busy{types}; {jobs}, the first for "
            "{time}.",
            slots,
        )
    types = _types(visible, busy[0]["types"]) if visible.sees(Job) else ""
    waited = seconds_text(row["oldest_ready_seconds"])
    return format_html(text, **values, slots=number_text(slots), types=types, time=waited)


def _types(visible: Visible, types: list[list[Any]]) -> str:
    """`` with 6 media.encode (#7 for 22 min), 2 app.add (#9 for 3 s)``."""
    texts = (
        (number_text(jobs), job_type, job_text(visible, id_, "", seconds))
        for job_type, jobs, id_, seconds in types
    )
    return format_html(_(" with {}"), format_html_join(", ", "{} {} ({})", texts))


def of_objectives(numbers: Numbers, visible: Visible) -> Found:
    """Queues whose error budget does not last."""
    for one in map(SloSnapshot.of, numbers.own["objectives"]):
        if one.hour.ratio is not None and (one.hour.burn_rate or 0) > BURNING:
            text = _("<strong>{name}</strong>: {share} of the last hour's jobs started "
                     "within {time}; the objective is {target}. The error budget burns "
                     "{rate} times too fast.")  # fmt: skip
            time = seconds_text(one.seconds)
            if one.since == SloSince.READY:
                time = format_html(_("{} after they were ready"), time)
            shown = format_html(
                text,
                name=one.queue,
                share=number_text(one.hour.ratio, ".1%"),
                time=time,
                target=number_text(one.target * 100, ".4g") + "%",
                rate=number_text(one.hour.burn_rate, ",.1f"),
            )
            yield Problem(ERROR, shown, _queue_link(numbers, visible, one.queue))
