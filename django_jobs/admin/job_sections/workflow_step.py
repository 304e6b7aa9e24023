"""The workflow of a job."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _

from ...models import WorkflowRun
from ..access.visible import Visible
from ..base.formatting import badge


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
