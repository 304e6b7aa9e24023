"""The view that enqueues a job by hand: choose the job type, enter its arguments."""

from __future__ import annotations

import inspect
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...api.editing import enqueue_by_hand
from ...api.job_type import JobType
from ...exceptions import JobsError
from ...lifecycle.scope import Scope, scope_of
from ...models import Job
from ..base.actions import ModelAdmin
from ..base.formatting import list_url, refusal_text
from ..forms.edit_form import KEPT_SECONDS, NUMBER, key_of_form, made_by_hand, number_field
from ..layout.console_page import console_page
from .form import JobForm

CHOSEN = "job_type"
"""The parameter with the name of the job type."""


class EnqueueForm(JobForm):
    """The arguments and the options of a new job."""

    def __init__(
        self, job_type: JobType[..., Any], data: Any = None, *, scope: Scope | None = None
    ) -> None:
        super().__init__(job_type, data, stored={}, scope=scope)
        self.fields["idempotency_key"] = forms.CharField(
            label=_("Idempotency key"),
            required=False,
            max_length=200,
            widget=forms.TextInput(attrs={"class": "vTextField"}),
            help_text=_("No other job is enqueued until the one with this key has ended."),
        )
        self.fields[NUMBER] = number_field()


def enqueue_url(page: ModelAdmin, name: str | None = None) -> str:
    """The address of the form of the job type ``name``, or of the choice of one."""
    url = reverse("admin:django_jobs_job_enqueue", current_app=page.admin_site.name)
    return f"{url}?{urlencode({CHOSEN: name})}" if name else url


def enqueue_view(page: Any, request: HttpRequest) -> HttpResponse:
    """The job types to choose from; of the chosen one, the form; once it is sent, enqueue."""
    name = request.GET.get(CHOSEN)
    if name is None:
        return _choice(page, request)
    job_type = {one.name: one for one in _offered(request)}.get(name)
    if job_type is None:
        raise Http404
    sent = request.POST if request.method == "POST" else None
    form = EnqueueForm(job_type, sent, scope=scope_of(request.user))
    if form.is_valid():
        given = form.cleaned_data
        typed = given["idempotency_key"] or None
        key = typed or key_of_form(given)
        try:
            job = enqueue_by_hand(
                job_type.name,
                given["payload"],
                actor=request.user,
                queue=given["queue"] or None,
                priority=given["priority"],
                run_at=given["run_at"],
                idempotency_key=key,
                unique_for=KEPT_SECONDS if key and not typed else None,
            )
        except JobsError as error:
            form.add_error(None, refusal_text(error))
        else:
            held = gettext(
                "This job has the idempotency key and has not ended. No other was enqueued."
            )
            twice = gettext("This form was sent twice. It made one job.")
            made = gettext("The job was enqueued.")
            return made_by_hand(page, request, job, "enqueued", made, held if typed else twice)
    return console_page(
        page,
        request,
        "editing/enqueue.html",
        title=gettext("Enqueue %(name)s") % {"name": job_type.name},
        media=form.media,
        about=(inspect.getdoc(job_type.handler) or "").split("\n\n", 1)[0],
        form=form,
        back=enqueue_url(page),
    )


def _offered(request: HttpRequest) -> list[JobType[..., Any]]:
    """The job types that allow it, of these the ones in the user's scope."""
    return [job_type for job_type in _in_scope(request) if job_type.schedulable]


def _in_scope(request: HttpRequest) -> list[JobType[..., Any]]:
    scope = scope_of(request.user) or Scope()
    job_types = map(registry.get, registry.names())
    return [one for one in job_types if scope.has_declared(one.queue, one.name)]


def _choice(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    choices = [
        {
            "name": job_type.name,
            "url": enqueue_url(page, job_type.name),
            "about": (inspect.getdoc(job_type.handler) or "").split("\n\n", 1)[0],
        }
        for job_type in _offered(request)
    ]
    return console_page(
        page,
        request,
        "editing/choose.html",
        title=gettext("Enqueue a job of which type?"),
        choices=choices,
        not_offered=[one.name for one in _in_scope(request) if not one.schedulable],
        has_scope=scope_of(request.user) is not None,
        back=list_url(page.admin_site, Job),
    )
