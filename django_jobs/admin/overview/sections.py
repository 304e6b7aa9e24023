"""The parts of the overview below the problems: tiles, chart and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.template.loader import render_to_string
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.histograms import BOUNDS, Histogram
from ...lifecycle.run_totals import TIMES
from ...metrics import overview
from ...metrics.overview import MINUTES
from ...models import DeadLetter, Job, Queue, Run, Schedule, Worker, WorkflowRun
from ...models.worker import in_hand_text
from ...separators import number_text
from ..base.formatting import NOTHING, Visible, badge, shortened
from ..layout.charts import sparkline
from ..layout.tables import Column, Table
from .numbers import Count, Numbers, Row, queue_numbers, rate_text, seconds_text, wait_text

SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Tile:
    number: str
    label: str
    url: str = ""


def tiles(numbers: Numbers, visible: Visible) -> list[Tile]:
    def jobs(state: str, label: str) -> Tile:
        url = visible.list_url(Job, status=state) if visible.sees(Job) else ""
        return Tile(str(numbers.jobs(state)), label, url)

    share = numbers.failed_share
    running = _("running, of %(slots)s slots")
    if numbers.jobs("running").number > numbers.slots:  # workers claim some in advance
        running = _("running or prefetched, %(slots)s slots")
    running %= {"slots": number_text(numbers.slots)}
    return [
        jobs("ready", _("ready")),
        Tile(wait_text(numbers.oldest_seconds), _("oldest ready")),
        jobs("running", running),
        jobs("scheduled", _("scheduled")),
        jobs("blocked", _("blocked")),
        jobs("waiting", _("waiting steps")),
        jobs("dead", _("dead")),
        Tile(rate_text(numbers.finished_per_minute), _("finished a minute")),
        Tile(NOTHING if share is None else number_text(share, ".1%"), _("failed, last hour")),
    ]


def queues(numbers: Numbers, visible: Visible) -> Table:
    """The queues with the most jobs."""
    ids = {row["name"]: row["id"] for row in numbers.own["queue_ids"]}
    rows = [_queue(numbers, visible, name, ids.get(name)) for name in numbers.listed]
    return Table(
        _("Queues"),
        (
            Column(_("Queue")),
            Column(_("State")),
            Column(_("Ready"), number=True),
            Column(_("Scheduled"), number=True, wide=True),
            Column(_("Oldest"), number=True, wide=True),
            Column(_("Running"), number=True, wide=True),
            Column(_("Done / min"), number=True, wide=True),
            Column(_("Failed / min"), number=True, wide=True),
            Column(_("Empty in"), number=True),
            Column(_("Last hour"), wide=True),
        ),
        rows,
        _("No queues. manage.py migrate creates those in the setting QUEUES."),
        (_("All queues"), visible.list_url(Queue)),
    )


def _queue(numbers: Numbers, visible: Visible, name: str, pk: int | None) -> list[str]:
    shown = queue_numbers(numbers, visible, name)
    return [
        visible.link(Queue, pk, name),
        shown.state,
        shown.ready,
        shown.scheduled,
        shown.oldest,
        f"{shown.running} / {shown.limit}",
        shown.done,
        format_html('<span class="jobs-bad">{}</span>', shown.failed) if shown.fails else "0",
        shown.empty_in,
        _spark(*shown.curve),
    ]


def _spark(values: list[float | None], title: str, state: str = "running") -> str:
    chart = sparkline(values, title, state)
    return render_to_string("admin/django_jobs/charts/sparkline.html", {"chart": chart})


def job_types(numbers: Numbers, visible: Visible) -> Table:
    """The job types with the most attempts in the last hour, and how long they wait and run."""
    rows, few = [], False
    for row in numbers.own["types"]:
        times = [Histogram(*row[time]) for time in TIMES]
        few = few or any(histogram.count * (1 - SHARES[-1]) < 1 for histogram in times)
        rows.append(
            [
                visible.list_link(Job, row["job_type"], job_type=row["job_type"]),
                number_text(row["runs"]),
                number_text(row["failed"]),
                *(_time(one.meant_percentile(share)) for one in times for share in SHARES),
            ]
        )
    note = _("p95 takes 20 attempts, and p99 100. The time of a single one is under p50.")
    return Table(
        _("Job types, last hour"),
        (
            Column(_("Job type")),
            Column(_("Attempts"), number=True, wide=True),
            Column(_("Failed"), number=True),
            *_shares(_("Waited")),
            *_shares(),
            *_shares(_("Ran")),
        ),
        rows,
        _("No attempt ended in the last hour."),
        (_("All runs"), visible.list_url(Run)) if visible.sees(Run) else None,
        groups=(("", 3), (_("Waited"), 3), (_("Start lag"), 3), (_("Ran"), 3)),
        note=note if few else "",
    )


def _shares(narrow: str = "") -> list[Column]:
    """The columns of a time. ``narrow`` is its name where there is little room, and only the first
    one is shown, which is known of the fewest attempts; without it none is."""
    return [
        Column(
            format_html('<span class="jobs-narrow">{} </span>p{}', narrow, f"{share * 100:g}"),
            number=True,
            wide=not narrow or share != SHARES[0],
        )
        for share in SHARES
    ]


def _time(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    # A percentile above the last bound is that bound; the time of a single attempt may be longer.
    return f"> {seconds_text(seconds)}" if seconds == BOUNDS[-1] else seconds_text(seconds)


def failures(numbers: Numbers, visible: Visible) -> Table:
    """The most frequent errors of the last hour. If it has more attempts than are read, the job
    types that failed most, of which the totals know all."""
    rows = [
        [
            _error(visible, row),
            number_text(row["runs"]),
            _spark(
                _in_parts([(ago, 1) for ago in row["minutes"]]),
                _failing(row["error_type"]),
                "failed",
            ),
            _ago(row["seconds"]),
        ]
        for row in numbers.own["failures"]
    ]
    url = visible.page_url("django_jobs_failures") or visible.list_url(DeadLetter)
    title, none = _("Failures, last hour"), _("No attempt failed in the last hour.")
    if numbers.own["older_runs"] and conf().totals:
        rows = [_failed_type(numbers, visible, row) for row in numbers.own["failed_types"]]
    elif numbers.own["older_runs"]:
        most = {"most": number_text(overview.BOUNDS["newest"])}
        title = _("Failures, newest %(most)s attempts") % most
        none = _("None of the newest %(most)s attempts failed.") % most
    return Table(
        title,
        (
            Column(_("Error")),
            Column(_("Attempts"), number=True),
            Column(_("Trend"), wide=True),
            Column(_("Last"), number=True),
        ),
        rows,
        none,
        (_("All failures"), url),
    )


def _failed_type(numbers: Numbers, visible: Visible, row: Row) -> list[str]:
    """A job type, with the error that is the most frequent of its newest failures."""
    name = row["job_type"]
    errors = (one["error_type"] for one in numbers.own["failures"] if one["job_type"] == name)
    page = visible.page_url("django_jobs_failures")
    query = urlencode({"q": f"type:{name}", "retried": "1"})
    shown = format_html('<a href="{}?{}">{}</a>', page, query, name) if page else name
    last = max(min(ago for ago, _runs in row["minutes"]), 0)
    return [
        format_html(
            '{} <span class="jobs-quiet">{}</span>', next(errors, "").rpartition(".")[2], shown
        ),
        number_text(row["runs"]),
        _spark(_in_parts(row["minutes"]), _failing(name), "failed"),
        f"< {_ago(60.0 * (last + 1))}",
    ]


def _error(visible: Visible, row: Row) -> str:
    name = row["error_type"].rpartition(".")[2]
    page = visible.page_url("django_jobs_failure_group")
    if page and row["job_type"]:
        group = {"type": row["job_type"], "fingerprint": row["fingerprint"]}
        name = format_html('<a href="{}?{}">{}</a>', page, urlencode(group), name)
    return format_html('{} <span class="jobs-quiet">{}</span>', name, row["job_type"] or "")


def _in_parts(minutes: Iterable[Sequence[int]], parts: int = 12) -> list[float | None]:
    """The numbers of these minutes, each so long ago, in twelfths of the hour, the oldest first."""
    counts = [0.0] * parts
    for ago, number in minutes:
        # Negative, if the clock of the database went back.
        counts[parts - 1 - min(max(ago, 0) * parts // MINUTES, parts - 1)] += number
    return list(counts)


def _failing(error: str) -> str:
    return _("%(error)s in the last hour, each five minutes") % {"error": error}


def workers(numbers: Numbers, visible: Visible) -> Table:
    """The workers, those with problems first, and what they have run longest."""
    rows = [
        [
            format_html(
                '{} <span class="jobs-quiet">{}</span>',
                visible.link(Worker, row["id"], numbers.worker_label(row)),
                row["version"],
            ),
            _worker_state(row["status"]),
            *in_hand_text((row["jobs"], row["threads"], row["async_slots"])),
            _ago(row["seconds"]),
            _longest(visible, row["longest"][:2], row["jobs"]),
        ]
        for row in numbers.own["workers"]
    ]
    return Table(
        _("Workers"),
        (
            Column(_("Worker")),
            Column(_("State")),
            Column(_("Running / threads"), number=True),
            Column(_("Prefetched"), number=True, wide=True),
            Column(_("Heartbeat"), number=True),
            Column(_("Longest"), wide=True),
        ),
        rows,
        _("No worker is alive. Start one with manage.py jobworker."),
        (_("All workers"), visible.list_url(Worker)),
    )


def _worker_state(status: str) -> SafeString:
    labels = {"running": _("running"), "draining": _("draining"), "expired": _("expired")}
    return badge("ok" if status == "running" else status, labels.get(status, status))


def _longest(visible: Visible, jobs: list[list[Any]], number: int) -> str:
    if not visible.sees(Job):
        return NOTHING
    shown = format_html_join(
        ", ",
        "{} {}",
        ((visible.job(id_, name), seconds_text(seconds)) for id_, name, seconds in jobs),
    )
    more = number - len(jobs)
    if more <= 0:
        return shown or NOTHING
    return format_html(_("{} and {} more"), shown, number_text(more))


def next_schedules(numbers: Numbers, visible: Visible) -> Table:
    rows = [
        [
            visible.link(Schedule, row["id"], row["name"]),
            row["job_type"],
            _("in %(time)s") % {"time": seconds_text(row["seconds"])}
            if row["seconds"] >= 0
            else badge("overdue", _ago(-row["seconds"])),
        ]
        for row in numbers.own["due"]
    ]
    return Table(
        _("Next schedules"),
        (Column(_("Schedule")), Column(_("Job type"), wide=True), Column(_("Due"), number=True)),
        rows,
        _("No schedule is due."),
        (_("All schedules"), visible.list_url(Schedule)),
    )


def keys(numbers: Numbers, visible: Visible) -> Table | None:
    """The concurrency keys with the longest lines; None if no job waits for one."""
    rows = [
        [
            shortened(row["key"], 60),
            row["queue"],
            str(Count(int(row["jobs"]), row["more"])),
            visible.job(row["first"]),
        ]
        for row in numbers.own["keys"]
    ]
    heads = (
        *(Column(_("Concurrency key")), Column(_("Queue"), wide=True)),
        *(Column(_("Jobs that wait"), number=True), Column(_("Next in line"))),
    )
    return Table(_("Longest lines of a key"), heads, rows, "") if rows else None


def workflow_runs(numbers: Numbers, visible: Visible) -> Table:
    """Runs of workflows: the oldest that run, and the last that failed."""
    labels = {"running": _("running for %(time)s"), "failed": _("failed %(time)s ago")}
    rows = [
        [
            visible.link(WorkflowRun, row["id"], f"{row['name']} #{row['id']}"),
            badge(row["status"], labels[row["status"]] % {"time": seconds_text(row["seconds"])}),
        ]
        for row in numbers.own["workflows"]
    ]
    (running,) = (row["runs"] for row in numbers.gauges["workflows"])
    ended = {row["status"]: row["runs"] for row in numbers.gauges["ended_workflows"]}
    title = _("Workflows: %(running)s running, %(failed)s failed in the last hour") % {
        "running": number_text(running),
        "failed": number_text(ended.get("failed", 0)),
    }
    return Table(
        title,
        (Column(_("Run")), Column(_("State"))),
        rows,
        _("No workflow runs, and none failed in the last hour."),
        (_("All runs of workflows"), visible.list_url(WorkflowRun)),
    )


def _ago(seconds: float) -> str:
    return _("%(time)s ago") % {"time": seconds_text(seconds)}
