"""The view that edits a job: the form, then what it would change, then the change."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...api.editing import edit_job, edited, stored_arguments, taken_of
from ...conf import conf
from ...exceptions import JobsError
from ...lifecycle.editing.edits import CHANGED_MEANWHILE, EDITABLE, stored_job
from ...lifecycle.scope import scope_of
from ...models import Job, JobStatus
from ..base.actions import log_change
from ..base.formatting import change_url, refusal_text
from ..forms.fields import reason_field
from ..layout.console_page import console_page, list_crumb
from ..operator_actions import may_repeat, refusal_of
from .difference import differences, time_of
from .form import JobForm


class ConfirmationForm(forms.Form):
    """Why, and the state that the operator has seen."""

    reason = reason_field(_("Stored with the job and in the history."), required=True)
    state = forms.CharField(widget=forms.HiddenInput, max_length=64)


def may_edit(page: Any, request: HttpRequest, job: Any, refused: str | None) -> bool:
    """Whether the user may edit ``job`` now. ``refused``: why its workflow run denies a replay."""
    is_dead = job.status == JobStatus.DEAD
    return (
        job.status in EDITABLE
        and page.has_edit_permission(request)
        and (not is_dead or (page.has_replay_permission(request) and not refused))
        and registry.find(job.job_type) is not None
    )


def edit_view(page: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """The form of a job; once it is valid, the question; once that is answered, the change."""
    stored = stored_job(job_id) if job_id < 2**63 else None
    job_type = None if stored is None else registry.find(stored.job_type)
    scope = scope_of(request.user)
    outside = stored and scope and not scope.has(stored.queue, stored.job_type)
    if stored is None or job_type is None or outside:
        raise Http404
    back = change_url(page.admin_site, Job, job_id)
    is_dead = stored.status == JobStatus.DEAD
    if is_dead and not page.has_replay_permission(request):
        raise PermissionDenied
    if stored.status not in EDITABLE:
        text = gettext("The job is %(status)s and cannot be edited.")
        text %= {"status": JobStatus(stored.status).label}
        page.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(back)
    if is_dead and (why := refusal_of(stored)):
        text = gettext("The job cannot be replayed: %(why)s.") % {"why": refusal_text(why)}
        page.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(back)
    before = stored_arguments(job_type, stored.payload, stored.payload_version)
    seen = request.user.has_perm("django_jobs.view_job_payload")
    sent = request.POST if request.method == "POST" else None
    form = JobForm(
        job_type,
        sent,
        stored=(before or {}) if seen else None,
        taken=taken_of(stored),
        queue=stored.queue,
        priority=stored.priority,
        run_at=None if is_dead else time_of(stored.available_at),
        scope=scope,
    )
    confirmation = None
    rows: list[Any] = []
    if "confirmed" not in request.POST and request.POST.get("state", stored.state) != stored.state:
        form.add_error(None, _not_changed(CHANGED_MEANWHILE))
    elif form.is_valid():
        changes = _changes(form)
        try:
            rows = differences(stored, edited(stored, **changes), before)
        except JobsError as error:
            form.add_error(None, refusal_text(error))
        else:
            confirmed = request.POST if "confirmed" in request.POST else None
            initial = {"state": stored.state, "reason": request.POST.get("reason", "")}
            confirmation = ConfirmationForm(confirmed, initial=initial)
            if confirmation.is_valid():
                given = confirmation.cleaned_data
                problem = _edit(page, request, job_id, changes, given)
                if problem is None:
                    return HttpResponseRedirect(back)
                form.add_error(None, problem)
                confirmation = None
    label = f"{stored.job_type} #{job_id}"
    return console_page(
        page,
        request,
        "editing/edit.html",
        title=gettext("Edit and replay") if is_dead else gettext("Edit"),
        media=form.media,
        parents=[list_crumb(page), (label, back)],
        subtitle=label,
        form=form,
        confirmation=confirmation,
        state=stored.state,
        differences=rows,
        is_dead=is_dead,
        caution=may_repeat(1) if is_dead and stored.at_most_once else "",
        reason=request.POST.get("reason", ""),
        seen=seen,
        unreadable=seen and before is None,
        back=back,
    )


def _changes(form: JobForm) -> dict[str, Any]:
    given = form.cleaned_data
    return {
        "payload": given["payload"],
        "queue": given["queue"],
        "priority": given["priority"],
        "run_at": given["run_at"] if "run_at" in form.changed_data else None,
    }


def _edit(
    page: Any, request: HttpRequest, job_id: int, changes: dict[str, Any], given: dict[str, Any]
) -> str | None:
    """Change the job, and log it; or return why it was not changed."""
    try:
        result = edit_job(job_id, actor=request.user, **changes, **given)
    except JobsError as error:
        return refusal_text(error)
    if result.refused:
        return _not_changed(result.refused[job_id])
    for job in Job.objects.using(conf().database).filter(pk=job_id).only("job_type"):
        log_change(request, job, f"edited: {given['reason']}")
    page.message_user(request, gettext("The job was changed."), messages.SUCCESS)
    return None


def _not_changed(why: str) -> str:
    return gettext("The job was not changed: %(why)s.") % {"why": refusal_text(why)}
