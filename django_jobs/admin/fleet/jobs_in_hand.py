"""The jobs that a worker has claimed, and for how long it runs each."""

from __future__ import annotations

from datetime import timedelta
from operator import itemgetter
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.utils.translation import gettext as _

from ...conf import conf
from ...models import Job, JobStatus, Progress, Worker
from ...separators import number_text
from ..base.formatting import NOTHING, duration, link
from ..layout.tables import Column, Table

MOST = 100
"""Jobs that the page shows."""


def jobs_in_hand(worker: Any, site: AdminSite) -> Table:
    """Those that run longest first, and then those that wait for a thread.

    How long each has run is known since the last heartbeat, which has up to 200 jobs.
    """
    running = Job.objects.using(conf().database).filter(status=JobStatus.RUNNING, worker=worker.pk)
    rows = running.order_by("claimed_at").values_list("pk", "job_type", "queue")[:MOST]
    since_beat = max((worker.read_at - worker.heartbeat_at).total_seconds(), 0.0)
    in_hand = started(worker.started_jobs)
    lines = sorted((_line(row, in_hand, since_beat, site) for row in rows), key=itemgetter(0))
    columns = (
        *(Column(_("Job")), Column(_("Job type")), Column(_("Queue"))),
        *(Column(_("Runs for"), number=True), Column(_("Where"))),
    )
    about = _("The jobs that it has claimed, those that run longest first")
    shown, empty = [cells for _order, *cells in lines], _("It has no job now.")
    return Table(_("What it does"), columns, shown, empty, about=about)


def _line(
    row: tuple[int, str, str],
    in_hand: dict[int, tuple[float, int | None]],
    since_beat: float,
    site: AdminSite,
) -> tuple[Any, ...]:
    pk, job_type, queue = row
    seconds, megabytes = in_hand.get(pk, (None, None))
    if seconds is None:
        runs_for, process = _("claimed"), NOTHING
    else:
        runs_for = duration(timedelta(seconds=seconds + since_beat))
        process = _("a thread") if megabytes is None else _("isolated")
        if megabytes:
            process = _("isolated, %(size)s MB") % {"size": number_text(megabytes)}
    order = 1.0 if seconds is None else -seconds
    return order, link(site, Job, pk, f"#{pk}"), job_type, queue, runs_for, process


def add_running(jobs: list[Any]) -> None:
    """Give each running job ``holder``, its worker; ``ran``, for how long its handler runs, or None
    while it waits for a thread; and ``report``, the progress of its attempt. Two statements."""
    alias = conf().database
    workers = Worker.objects.using(alias).in_bulk({job.worker_id for job in jobs} - {None})
    reports = Progress.objects.using(alias).defer("checkpoint").in_bulk([job.pk for job in jobs])
    in_hand = {pk: started(worker.started_jobs) for pk, worker in workers.items()}
    for job in jobs:
        job.holder, report = workers.get(job.worker_id), reports.get(job.pk)
        seconds, _megabytes = in_hand.get(job.worker_id, {}).get(job.pk, (None, None))
        since_beat = timedelta() if job.holder is None else job.read_at - job.holder.heartbeat_at
        job.ran = seconds and timedelta(seconds=seconds) + max(since_beat, timedelta())
        job.report = report if report and report.attempt == job.attempt else None


def started(stored: Any) -> dict[int, tuple[float, int | None]]:
    """For how long each job runs and the memory of an isolated one, as the worker has written it.
    Anything else in the column is no job."""
    found = {}
    for entry in stored if isinstance(stored, list) else ():
        match entry:
            case [int(job), int() | float() as seconds, None | int() as megabytes]:
                found[job] = float(seconds), megabytes
    return found
