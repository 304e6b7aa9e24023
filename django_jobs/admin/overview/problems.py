"""What is wrong now: a sentence for each, and a link to what mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Model
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import registry
from ...domain.pressure import level_of
from ...lifecycle.backlog import read_backlog
from ...metrics.gauges import BOUNDS
from ...metrics.schedules import MAX_LAG
from ...metrics.slo import BURNING, SloSnapshot
from ...models import DeadLetter, Job, Quarantine, Queue, Resource, Schedule, Worker, WorkflowRun
from ...models.queue import SloSince
from ...separators import number_text
from ..base.formatting import Visible, change_url
from .numbers import Count, Numbers, Row, is_taken, job_text, jobs_text, seconds_text, waiting_text

ERROR, CAUTION = "error", "caution"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``state`` is that of its icon, ``link`` a text and an address."""

    state: str
    text: str
    link: tuple[str, str]

    @property
    def severity(self) -> str:
        return _("Error") if self.state == ERROR else _("Warning")


Found = Iterator[Problem]


MOST_OF_A_KIND = 5
MOST_RECENTLY_DEAD = BOUNDS["recent"]
"""How many dead jobs of the last hour are counted in a queue."""
COUNTED_SECONDS = 60.0
"""After this long without a count of new runs, the rates are not those of now."""


def problems(numbers: Numbers, visible: Visible) -> list[Problem]:
    """All problems that the user may see, errors first."""
    found = [
        problem
        for model, look in LOOKS
        if visible.sees(model)
        for problem in look(numbers, visible)
    ]
    return sorted(found, key=lambda problem: problem.state != ERROR)


def _of_workers(numbers: Numbers, visible: Visible) -> Found:
    link = (_("Workers"), visible.list_url(Worker))
    if not numbers.workers:
        text = _("<strong>No worker is alive.</strong> {jobs}.")
        yield Problem(ERROR, format_html(text, jobs=waiting_text(numbers.waiting())), link)
    expired = [row for row in numbers.own["workers"] if row["status"] == "expired"]
    for row in expired[:MOST_OF_A_KIND]:
        text = _("<strong>{name}</strong> has sent no heartbeat for {time}.")
        if numbers.workers:
            text = _("<strong>{name}</strong> has sent no heartbeat for {time}. Its jobs "
                     "start again on other workers.")  # fmt: skip
        shown = format_html(text, name=numbers.worker_label(row), time=seconds_text(row["seconds"]))
        yield Problem(ERROR, shown, (_("Worker"), change_url(visible.site, Worker, row["id"])))
    age = next((row["age"] for row in numbers.gauges["watermark"]), 0)
    if (age or 0) > COUNTED_SECONDS:
        text = _("No worker has counted runs for {time}: rates and curves end there.")
        yield Problem(CAUTION, format_html(text, time=seconds_text(age)), link)


def _of_types(numbers: Numbers, visible: Visible) -> Found:
    for row in numbers.gauges["unclaimable"][:MOST_OF_A_KIND]:
        if row["reason"] == "unknown_type":
            text = _(
                "<strong>{type}</strong>: no live worker of its queue knows this type. {jobs}."
            )
        else:
            text = _(
                "<strong>{type}</strong>: its payload is of a newer version than any live worker "
                "of its queue reads. {jobs}."
            )
        count = Count(int(row["jobs"]))
        shown = format_html(text, jobs=waiting_text(count), type=row["job_type"])
        url = visible.list_url(Job, status="ready", job_type=row["job_type"])
        yield Problem(ERROR, shown, (_("Show the jobs"), url))


def _of_resources(numbers: Numbers, visible: Visible) -> Found:
    rows = {row["name"]: row for row in numbers.own["resources"]}
    for gauge in numbers.gauges["resources"]:
        row = rows.get(gauge["resource"])
        waiting = Count(int(gauge["waiting"] or 0))
        most = gauge["max_waiting"]
        if most is not None and waiting.number >= most:
            shown = _overfull(gauge["resource"], waiting, most)
            yield Problem(ERROR, shown, (_("Resources"), visible.list_url(Resource)))
        if row is None:
            continue
        values = {"name": row["name"], "jobs": waiting_text(waiting)}
        link = (_("Resource"), change_url(visible.site, Resource, row["id"]))
        since = seconds_text(row["seconds"] or 0)
        if row["paused"]:
            if waiting.number:
                text = _("<strong>{name}</strong> is paused{reason}. {jobs}.")
                reason = f": {row['paused_reason'].rstrip('.')}" if row["paused_reason"] else ""
                yield Problem(CAUTION, format_html(text, **values, reason=reason), link)
        elif row["breaker"] == "open":
            text = _("<strong>{name}</strong> is failing: its breaker has been open for {time}. "
                     "{jobs}.")  # fmt: skip
            yield Problem(ERROR, format_html(text, **values, time=since), link)
        elif row["breaker"] == "half_open":
            text = _("<strong>{name}</strong> is being tested: its half-open breaker lets a "
                     "few jobs through. {jobs}.")  # fmt: skip
            yield Problem(CAUTION, format_html(text, **values), link)
        elif is_taken(gauge):
            sentence = _taken(values, gauge["max_concurrency"])
            jobs = numbers.holders("resource_holders", row["name"])
            if jobs and visible.sees(Job):
                sentence = format_html(_("{} Held by {}."), sentence, jobs_text(visible, jobs))
            yield Problem(CAUTION, sentence, link)


def _overfull(name: str, jobs: Count, limit: int) -> str:
    text = _("<strong>{name}</strong> is full: {jobs}, and the limit is {limit}. "
             "Enqueues are refused, or drop jobs.")  # fmt: skip
    return format_html(text, name=name, jobs=waiting_text(jobs), limit=number_text(limit))


def _taken(values: dict[str, str], limit: int) -> str:
    text = ngettext(
        "<strong>{name}</strong>: its only slot is taken, and {jobs}.",
        "<strong>{name}</strong>: all {limit} slots are taken, and {jobs}.",
        limit,
    )
    return format_html(text, **values, limit=number_text(limit))


def _of_schedules(numbers: Numbers, visible: Visible) -> Found:
    link = (_("Schedules"), visible.list_url(Schedule))
    for row in numbers.own["broken"]:
        text = _("<strong>{name}</strong> does not fire: {error}")
        url = change_url(visible.site, Schedule, row["id"])
        shown = format_html(text, name=row["name"], error=row["error"])
        yield Problem(ERROR, shown, (_("Schedule"), url))
    late = next(iter(numbers.gauges["lag"]), {})
    states = {row["state"]: row["schedules"] for row in numbers.gauges["schedules"]}
    if overdue := states.get("overdue", 0):
        text = ngettext(
            "<strong>{count} schedule is overdue</strong>, by {time}.",
            "<strong>{count} schedules are overdue</strong>, the first by {time}.",
            overdue,
        )
        shown = format_html(
            text, count=number_text(overdue), time=seconds_text(late.get("lag") or 0)
        )
        yield Problem(ERROR, shown, (link[0], visible.list_url(Schedule, state="overdue")))
    looked = late.get("looked")
    due = numbers.workers and states.get("on", 0) + overdue
    if due and looked is None:
        yield Problem(ERROR, _("No worker checks the schedules."), link)
    elif due and looked is not None and looked > MAX_LAG:
        text = _("No worker has checked the schedules for {time}.")
        yield Problem(ERROR, format_html(text, time=seconds_text(looked)), link)


def _of_quarantines(numbers: Numbers, visible: Visible) -> Found:
    for row in numbers.gauges["quarantines"][:MOST_OF_A_KIND]:
        if row["jobs"]:
            text = _("<strong>{type}</strong> is quarantined. {jobs}.")
            shown = format_html(
                text, type=row["job_type"], jobs=waiting_text(Count(int(row["jobs"])))
            )
            yield Problem(CAUTION, shown, (_("Quarantines"), visible.list_url(Quarantine)))


def _of_dead_jobs(numbers: Numbers, visible: Visible) -> Found:
    """What died in the last hour, and was not replayed or dismissed since. A step whose run has
    ended is left to the problem of the run, if the user may see that: a failed run is one, and a
    cancelled one has been dealt with."""
    rows = numbers.gauges["queues"]
    named = visible.sees(WorkflowRun)
    recent = {
        row["queue"]: row["recently_dead"] - (row["recently_dead_of_ended_runs"] if named else 0)
        for row in rows
    }
    recent = {name: dead for name, dead in recent.items() if dead}
    if not recent:
        return
    capped = {row["queue"] for row in rows if row["recently_dead"] >= MOST_RECENTLY_DEAD}
    text = ngettext(
        "<strong>{count} job</strong> of the last hour is dead: {queues}.",
        "<strong>{count} jobs</strong> of the last hour are dead: {queues}.",
        sum(recent.values()),
    )
    most = sorted(recent, key=lambda name: (-recent[name], name))[:MOST_OF_A_KIND]
    queues = ", ".join(
        _("%(count)s in %(queue)s")
        % {"count": number_text(recent[name], more=name in capped), "queue": name}
        for name in most
    )
    if len(recent) > len(most):
        queues = _("%(queues)s and others") % {"queues": queues}
    count = number_text(sum(recent.values()), more=bool(capped & recent.keys()))
    shown = format_html(text, count=count, queues=queues)
    page = visible.page_url("django_jobs_failures")
    url = f"{page}?span=1h" if page else visible.list_url(DeadLetter)
    yield Problem(CAUTION, shown, (_("Failures"), url))


def _of_workflows(numbers: Numbers, visible: Visible) -> Found:
    """Runs that failed in the last hour, and have a step that is still dead."""
    failed = numbers.own["failed_runs"]
    not_undone = {row["id"] for row in numbers.own["not_undone"]}
    for row in failed:
        if row["id"] in not_undone:
            continue  # an error, below
        text = _("<strong>{name}</strong> failed {time} ago.")
        name = f"{row['name']} #{row['id']}"
        shown = format_html(text, name=name, time=seconds_text(row["seconds"]))
        yield Problem(CAUTION, shown, (_("Run"), change_url(visible.site, WorkflowRun, row["id"])))
    others = failed[0]["runs"] - len(failed) if failed else 0
    if others:
        text = ngettext(
            "{count} more run of a workflow failed in the last hour.",
            "{count} more runs of workflows failed in the last hour.",
            others,
        )
        url = visible.list_url(WorkflowRun, status="failed")
        shown = format_html(text, count=number_text(others))
        yield Problem(CAUTION, shown, (_("Runs"), url))


def _of_compensations(numbers: Numbers, visible: Visible) -> Found:
    """Runs of which not all was undone that should be, until a person sees to it."""
    for row in numbers.own["not_undone"]:
        text = _("<strong>{name}</strong> is not fully undone: {steps} failed.")
        steps = ", ".join(row["steps"][:MOST_OF_A_KIND])
        if len(row["steps"]) > MOST_OF_A_KIND:
            steps += " …"
        shown = format_html(text, name=f"{row['name']} #{row['id']}", steps=steps)
        yield Problem(ERROR, shown, (_("Run"), change_url(visible.site, WorkflowRun, row["id"])))


def _of_people(numbers: Numbers, visible: Visible) -> Found:
    """Steps that have waited for a person for more than a day."""
    for row in numbers.own["asking"]:
        text = ngettext(
            "<strong>{count} step waits for a person</strong>: {step} of {run} has waited for "
            "{time}.",
            "<strong>{count} steps wait for a person</strong>, the first for {time}: {step} of "
            "{run}.",
            row["steps"],
        )
        shown = format_html(
            text,
            count=number_text(row["steps"]),
            step=row["step"],
            run=f"{row['name']} #{row['id']}",
            time=seconds_text(row["seconds"]),
        )
        yield Problem(CAUTION, shown, (_("Runs"), visible.list_url(WorkflowRun, waits="person")))


def _of_queues(numbers: Numbers, visible: Visible) -> Found:
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
            text = _overfull(name, held, row["max_backlog"])
            yield Problem(ERROR, text, link)


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
    sentence = _taken(values, row["max_concurrency"])
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


def _of_objectives(numbers: Numbers, visible: Visible) -> Found:
    """Queues whose error budget does not last."""
    for one in map(SloSnapshot.of, numbers.own["objectives"]):
        share, burn_rate = one.hour.ratio, one.hour.burn_rate
        if share is not None and burn_rate is not None and burn_rate > BURNING:
            text = _("<strong>{name}</strong>: {share} of the last hour's jobs started "
                     "within {time}; the objective is {target}. The error budget burns "
                     "{rate} times too fast.")  # fmt: skip
            time = seconds_text(one.seconds)
            if one.since == SloSince.READY:
                time = format_html(_("{} after they were ready"), time)
            shown = format_html(
                text,
                name=one.queue,
                share=number_text(share, ".1%"),
                time=time,
                target=number_text(one.target * 100, ".4g") + "%",
                rate=number_text(burn_rate, ",.1f"),
            )
            yield Problem(ERROR, shown, _queue_link(numbers, visible, one.queue))


LOOKS: tuple[tuple[type[Model], Callable[[Numbers, Visible], Found]], ...] = (
    (Worker, _of_workers),
    (Job, _of_types),
    (Queue, _of_queues),
    (Queue, _of_objectives),
    (Resource, _of_resources),
    (Schedule, _of_schedules),
    (Quarantine, _of_quarantines),
    (DeadLetter, _of_dead_jobs),
    (WorkflowRun, _of_workflows),
    (WorkflowRun, _of_compensations),
    (WorkflowRun, _of_people),
)
"""What looks for problems, and the model whose list a user has to be allowed to see."""
