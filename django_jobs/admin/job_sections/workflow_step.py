"""The workflow of a job, and the steps that it waits for."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.sites import AdminSite
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _

from ...domain.states import LIVE
from ...domain.workflows import When
from ...models import Dependency, Job, StepCondition, WorkflowRun
from ..base.formatting import badge, link

MOST_NAMED = 5
CONDITIONS = dict(StepCondition.choices)


def workflow_of(job: Any, site: AdminSite) -> str:
    """The run of a step, and its name there."""
    runs = WorkflowRun.objects.using(job._state.db).only("name")
    run = runs.filter(pk=job.workflow_run_id).first()
    if run is None:
        return _("workflow run %(id)s (deleted)") % {"id": job.workflow_run_id}
    text = format_html(_("{}, step {}"), link(site, WorkflowRun, run.pk, str(run)), job.step)
    if not job.skipped:
        return text
    return format_html("{} {}", text, badge("skipped", job.get_skipped_display()))


def waits_for(job: Any, site: AdminSite) -> str:
    """The steps that have not ended and that a waiting step comes after; empty if none is left."""
    edges = Dependency.objects.using(job._state.db).filter(child=job.pk, parent__status__in=LIVE)
    columns = "parent_id", "parent__step", "parent__status", "when"
    parents = list(edges.order_by("parent_id").values_list(*columns)[: MOST_NAMED + 1])
    named = format_html_join(
        ", ",
        "{} {}{}",
        (
            (
                link(site, Job, pk, step),
                badge(status, status),
                "" if when == When.SUCCEEDED else f" ({CONDITIONS[when]})",
            )
            for pk, step, status, when in parents[:MOST_NAMED]
        ),
    )
    return format_html(_("{} and more"), named) if len(parents) > MOST_NAMED else named
