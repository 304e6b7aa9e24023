"""Links from a job to the lists that have it among others of its kind."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.sites import AdminSite
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...domain.search_terms import term
from ...lifecycle.scope import scope_of
from ...models import Job, JobStatus
from ..base.formatting import list_link
from ..failures.group_rows import failure_url
from .schedule_origin import schedule_of


def related_links(job: Any, site: AdminSite, user: Any) -> list[str]:
    """A link to each list of jobs that have something in common with ``job``, as ``user`` may see
    them: failures are of all queues."""
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
        key = term("key", job.idempotency_key)
        links.append(list_link(site, Job, _("All jobs with its key"), q=key))
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
