"""What a job belongs to: its schedule, its workflow, its parent and children, others of its kind;
and the links of ``DJANGO_JOBS["LINKS"]``, to logs and traces."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any

from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.translation import gettext as _

from ...api.generations import parent_in
from ...conf import conf
from ...domain.links import PAYLOAD, filled, is_safe
from ...domain.payload import KEY_SEPARATOR, key_parts
from ...domain.run_log import MASK
from ...domain.search_terms import term
from ...lifecycle.scope import scope_of
from ...models import Backfill, Job, JobStatus, Schedule, Tick, WorkflowRun
from ..base.formatting import Visible, badge, list_link, moment_in_zone
from ..base.json_display import coding_of, masked, object_of
from ..failures.group_rows import failure_url

KEY = re.compile(r"schedule/(\d{1,18})/")
"""The prefix of a scheduled job's idempotency key."""


def origin(job: Job, visible: Visible) -> str:
    """The schedule of a job by name and the due time that made it."""
    tick = _tick(job)
    pk = job.schedule_id if tick is None else tick.schedule_id
    schedule = None if pk is None else schedule_of(job, pk)
    if schedule is None:
        name = _("schedule %(id)s (deleted)") % {"id": pk} if pk else _("a schedule")
        return _due_text(name, moment_in_zone(job.scheduled_for))
    due_text = _due_text(
        visible.link(Schedule, schedule.pk, schedule.name),
        moment_in_zone(job.scheduled_for, schedule.zone),
    )
    if tick is None or tick.backfill_id is None:
        return due_text
    number = _("backfill #%(id)s") % {"id": tick.backfill_id}
    return format_html("{}, {}", due_text, visible.link(Backfill, tick.backfill_id, number))


def schedule_of(job: Any, pk: int) -> Schedule | None:
    """The schedule with this id, read once for ``job``; None if it was deleted."""
    if not hasattr(job, "schedule_row"):
        rows = Schedule.objects.using(job._state.db).defer("payload")
        job.schedule_row = rows.filter(pk=pk).first()
    row: Schedule | None = job.schedule_row
    return row


def _tick(job: Job) -> Any:
    """The tick of the job, by its unique pair: there is no index on a tick's job."""
    pk = job.schedule_id
    if pk is None and (key := KEY.match(job.idempotency_key or "")):
        pk = int(key[1])
    if pk is None or job.scheduled_for is None:
        return None
    rows = Tick.objects.using(job._state.db).filter(schedule=pk, due_at=job.scheduled_for)
    return rows.filter(job=job.pk).first()


def _due_text(name: str, due: str) -> str:
    return format_html(_("{}, due {}"), name, due)


logger = logging.getLogger("django_jobs")
TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


def links_of(job: Any, payload: str | None, headers: str | None) -> list[str]:
    """The links of ``job`` that can be filled, by JSON text; None for what the user may not see."""
    return [
        format_html('<li><a href="{}">{}</a></li>', url, label)
        for label, url in _links(job, payload, headers)
    ]


def _links(job: Any, payload: str | None, headers: str | None) -> Iterator[tuple[str, str]]:
    if callable(given := _given()):
        try:
            seen = _as_seen(job, payload, headers)
            pairs = [(str(label), url) for label, url in given(seen)]
        except Exception:
            logger.exception('The function of DJANGO_JOBS["LINKS"] failed')
            return
        yield from ((label, url) for label, url in pairs if is_safe(url))
        return
    values, coding = masked(object_of(payload)), coding_of(job.job_type)
    values = values if coding is None else coding.as_text(values)
    value_of = partial(_value, job, values, object_of(headers))
    for link in given:
        if url := filled(link["url"], value_of):
            yield link["label"], url


def _as_seen(job: Any, payload: str | None, headers: str | None) -> Any:
    """A copy of ``job`` that has of its JSON what the user may see, masked, and its trace."""
    seen = copy(job)
    seen.payload, seen.headers = masked(object_of(payload)), masked(object_of(headers))
    if payload is None:
        seen.headers = {name: seen.headers[name] for name in seen.headers.keys() & {"traceparent"}}
        seen.result = seen.signals = None
    return seen


def _given() -> Any:
    links = conf().links
    return import_string(links) if isinstance(links, str) else links


def _value(job: Any, payload: Mapping[str, Any], headers: Mapping[str, Any], field: str) -> Any:
    if field.startswith(PAYLOAD):
        value: Any = payload
        for name in field.removeprefix(PAYLOAD).split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return None if value == MASK else value
    if field == "trace_id":
        found = TRACE_ID.match(str(headers.get("traceparent")))
        return found and found[1]
    if field == "idempotency_key" and job.idempotency_key:
        return key_parts(job.idempotency_key)[1]
    return job.pk if field == "job_id" else getattr(job, field)


def related_links(job: Any, visible: Visible) -> list[str]:
    """A link to each list of jobs that have something in common with ``job``, as the user may see
    them: failures are of all queues."""
    site, user = visible.site, visible.request.user
    # A filter that the list does not have would be an error there.
    filters = {getattr(one, "parameter_name", "") for one in site.get_model_admin(Job).list_filter}
    wanted: list[tuple[str, Any, str]] = [
        ("job_type", job.job_type, _("All jobs of this type")),
        ("schedule", _schedule_name(job), _("All jobs of its schedule")),
        ("workflow_run", job.workflow_run_id, _("All steps of its workflow run")),
        ("worker", job.worker_id, _("All jobs on its worker")),
        ("tenant", job.tenant, _("All jobs of its tenant")),
    ]
    links = [
        list_link(site, Job, text, **{name: value})
        for name, value, text in wanted
        if value is not None and name in filters
    ]
    if job.idempotency_key:
        key = term("key", job.idempotency_key.replace(KEY_SEPARATOR, "/"))
        links.append(list_link(site, Job, _("All jobs with its key"), q=key))
    if job.attempt:
        parent = term("parent", str(job.pk))
        links.append(list_link(site, Job, _("All jobs that its handler enqueued"), q=parent))
    if job.fingerprint and job.status == JobStatus.DEAD:
        query = term("error", job.fingerprint)
        links.append(list_link(site, Job, _("List of the dead jobs with its error"), q=query))
    is_retried = job.status == JobStatus.SCHEDULED and job.failures
    if job.fingerprint and (is_retried or job.status == JobStatus.DEAD) and scope_of(user) is None:
        url = failure_url(site, job.job_type, job.fingerprint)
        links.append(
            format_html(
                '<a href="{}">{}</a>', url, _("Its failure: how often, since when, and replay")
            )
        )
    return [format_html("<li>{}</li>", one) for one in links]


def _schedule_name(job: Any) -> str | None:
    schedule = None if job.schedule_id is None else schedule_of(job, job.schedule_id)
    return None if schedule is None else schedule.name


MOST_CHILDREN = 20
CHILD_IDS = 10_000


def parent_of(job: Any, headers: str | None, visible: Visible) -> str:
    """The job whose handler enqueued ``job``; empty if none did. ``headers`` is JSON text."""
    pk = parent_in(object_of(headers))
    if pk is None or not visible.sees(Job):
        return ""
    text = _("Its parent, whose handler enqueued it: #%(id)s") % {"id": pk}
    jobs = visible.site.get_model_admin(Job).get_queryset(visible.request)
    row = visible.job(pk, text) if jobs.filter(pk=pk).exists() else text
    return format_html("<li>{}</li>", row)


def children(job: Any, visible: Visible) -> list[str]:
    """The newest jobs that the handler of ``job`` enqueued, as links, among those of the ids
    that are read at each view of the page. The search reads more."""
    if not job.attempt or not visible.sees(Job):
        return []
    from ..base.children import children_of

    jobs = visible.site.get_model_admin(Job).get_queryset(visible.request)
    return [
        format_html("{} {}", visible.job(pk, f"{name} #{pk}"), badge(status, _label(status)))
        for pk, name, status in children_of(jobs, job.pk, MOST_CHILDREN, CHILD_IDS)
    ]


def _label(status: str) -> str:
    return str(JobStatus(status).label)


def workflow_of(job: Any, visible: Visible) -> str:
    """The run of a step, and its name there."""
    runs = WorkflowRun.objects.using(job._state.db).only("name")
    run = runs.filter(pk=job.workflow_run_id).first()
    if run is None:
        return _("workflow run %(id)s (deleted)") % {"id": job.workflow_run_id}
    text = format_html(_("{}, step {}"), visible.link(WorkflowRun, run.pk, str(run)), job.step)
    if not job.skipped:
        return text
    return format_html("{} {}", text, badge("skipped", job.get_skipped_display()))
