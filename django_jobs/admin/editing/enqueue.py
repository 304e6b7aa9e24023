"""The views that enqueue a job by hand: choose the job type, or a job to copy; enter the arguments.
Or run a schedule now with other arguments."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...api.editing import TO_COPY, enqueue_by_hand, stored_arguments
from ...api.job_type import JobType
from ...api.schedules import request_of
from ...exceptions import JobsError
from ...lifecycle.operations.schedules import run_now
from ...lifecycle.scope import Scope, scope_of
from ...models import Job, Schedule
from ..base.actions import ModelAdmin, log_change
from ..base.formatting import change_url, link, list_url, page_url, refusal_text
from ..base.json_display import texts
from ..base.search import SEE_PAYLOADS
from ..forms.arguments import is_hidden
from ..forms.edit_form import KEPT_SECONDS, NUMBER, key_of_form, made_by_hand, number_field
from ..forms.fields import key_field
from ..layout.console_page import console_page, list_crumb
from ..schedules.form import upgraded_payload
from .form import JobForm

CHOSEN, LIKE = "job_type", "like"
"""The parameters with the name of the job type, and with the id of the job to copy."""
NAMED = {
    "tenant": _("tenant"),
    "concurrency_key": _("concurrency key"),
    "resources": _("resources"),
    "tags": _("tags"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Like:
    """What a new job takes of another one: ``stored`` are arguments that the user may see, and
    ``options`` those of its request that the form does not have. ``notes`` say so."""

    stored: dict[str, Any] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class EnqueueForm(JobForm):
    def __init__(
        self,
        job_type: JobType[..., Any],
        data: Any = None,
        *,
        like: Like | None = None,
        scope: Scope | None = None,
    ) -> None:
        like = like or Like()
        super().__init__(job_type, data, stored=like.stored, scope=scope)
        self.initial.update(like.initial)
        text = _("No other job is enqueued until the one with this key has ended.")
        self.fields["idempotency_key"] = key_field(text)
        self.fields[NUMBER] = number_field()


def enqueue_url(page: ModelAdmin, name: str | None = None, **like: int) -> str:
    """The address of the form of the job type ``name``, or of the choice of one."""
    url = page_url(page.admin_site, "django_jobs_job_enqueue")
    chosen: dict[str, str | int] = {CHOSEN: name or "", **like}
    return f"{url}?{urlencode(chosen)}" if name else url


def like_url(page: Any, request: HttpRequest, job: Job) -> str:
    """The address of the form filled in with what ``job`` has; empty if the user may not use it."""
    job_type = registry.find(job.job_type)
    if job_type is None or not page.has_enqueue_permission(request):
        return ""
    may = job_type in _offered(request, job)
    return enqueue_url(page, job_type.name, like=job.pk) if may else ""


def enqueue_view(page: Any, request: HttpRequest) -> HttpResponse:
    """The job types to choose from; of the chosen one, the form; once it is sent, enqueue."""
    name = request.GET.get(CHOSEN)
    if name is None:
        return _choice(page, request)
    copied = _copied(page, request)
    job_type = {one.name: one for one in _offered(request, copied)}.get(name)
    if job_type is None:
        raise Http404
    sent = request.POST if request.method == "POST" else None
    like = _like(request, job_type, copied)
    form = EnqueueForm(job_type, sent, like=like, scope=scope_of(request.user))
    if form.is_valid():
        given = form.cleaned_data
        typed = given["idempotency_key"] or None
        key = typed or key_of_form(given)
        try:
            job = enqueue_by_hand(
                job_type.name,
                given["payload"],
                actor=request.user,
                like=None if copied is None else copied.pk,
                queue=given["queue"] or None,
                priority=given["priority"],
                run_at=given["run_at"],
                idempotency_key=key,
                unique_for=KEPT_SECONDS if key and not typed else None,
                **like.options,
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
        notes=like.notes,
        back=enqueue_url(page),
    )


def _copied(page: Any, request: HttpRequest) -> Job | None:
    """The job that the address names, if the user may see it."""
    pk = request.GET.get(LIKE, "")
    is_id = pk.isascii() and pk.isdigit() and len(pk) < 19 and page.has_view_permission(request)
    job: Job | None = page.get_queryset(request).filter(pk=pk).first() if is_id else None
    return job


def _like(request: HttpRequest, job_type: JobType[..., Any], job: Job | None) -> Like:
    """What the form takes of the job that the address names."""
    if not request.GET.get(LIKE):
        return Like()
    if job is None or registry.find(job.job_type) is not job_type:
        return Like(notes=(gettext("The job to copy does not exist. Nothing is filled in."),))
    text, _length = texts(job, ["payload"])["payload"]
    payload = stored_arguments(job_type, text or "", job.payload_version)
    seen = request.user.has_perm(SEE_PAYLOADS)
    shown = {} if payload is None or not seen else payload
    hidden = [name for name, value in shown.items() if is_hidden(name, value)]
    options = _options(job_type, job, payload)
    notes, named = [], {"job": f"#{job.pk}"}
    if not seen:
        notes.append(gettext("You may not see the arguments of %(job)s. They are not filled in."))
    elif payload is None:
        notes.append(gettext("The arguments of %(job)s cannot be read. They are not filled in."))
    elif hidden:
        named["names"] = ", ".join(hidden)
        notes.append(gettext("Secrets of %(job)s are not filled in: %(names)s."))
    if options:
        named["options"] = "; ".join(
            f"{NAMED[name]} {value if isinstance(value, str) else ', '.join(value)}"
            for name, value in options.items()
        )
        notes.append(gettext("It has what the request of %(job)s named: %(options)s."))
    declared = {"queue": job_type.queue, "priority": job_type.priority}
    own = {name: value for name in declared if (value := getattr(job, name)) != declared[name]}
    stored = {name: value for name, value in shown.items() if name not in hidden}
    return Like(
        stored=stored, initial=own, options=options, notes=tuple(note % named for note in notes)
    )


def _options(
    job_type: JobType[..., Any], job: Job, payload: dict[str, Any] | None
) -> dict[str, Any]:
    """The gates and the tags of ``job`` that follow neither from its type nor from its payload."""
    try:
        gates = None if payload is None else job_type.gates_of(payload)
    except JobsError:
        gates = None
    had = {
        "tenant": job.tenant,
        "concurrency_key": job.concurrency_key,
        "resources": sorted(job.resources or ()),
        "tags": sorted(job.tags or ()),
    }
    follows: dict[str, Any] = {"tags": sorted(job_type.tags)}
    if gates is not None:
        follows |= {"tenant": gates.tenant, "concurrency_key": gates.key}
        follows["resources"] = sorted(gates.resources)
    return {name: value for name, value in had.items() if value and value != follows.get(name)}


def _offered(request: HttpRequest, copied: Job | None = None) -> list[JobType[..., Any]]:
    """The job types in the user's scope that allow it, and that of a job to copy if the user may
    edit it."""
    may_copy = copied and request.user.has_perms(TO_COPY)
    of_copied = registry.find(copied.job_type) if copied and may_copy else None
    return [one for one in _in_scope(request) if one.schedulable or one is of_copied]


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


class ArgumentsForm(JobForm):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.fields[NUMBER] = number_field()

    def _add_options(self, *given: Any) -> None:
        """The schedule says them."""


def run_view(page: Any, request: HttpRequest, pk: int) -> HttpResponse:
    """The form with the arguments of a schedule; once it is sent, make a job with what it says."""
    schedule = get_object_or_404(page.get_queryset(request), pk=pk)
    if (job_type := registry.find(schedule.job_type)) is None:
        raise Http404
    back = change_url(page.admin_site, Schedule, pk)
    try:
        stored = upgraded_payload(job_type, schedule)
    except (ValueError, RecursionError):  # JSON that Python cannot read
        stored = {}
    sent = request.POST if request.method == "POST" else None
    form: forms.Form = ArgumentsForm(job_type, sent, stored=stored)
    if form.is_valid():
        given = form.cleaned_data
        try:
            made = run_now(
                [pk],
                request_of,
                payload=given["payload"],
                actor=request.user,
                form=(key_of_form(given) or "").removeprefix("form-"),
            )
        except JobsError as error:
            form.add_error(None, refusal_text(error))
        else:
            _report(page, request, schedule, made)
            return HttpResponseRedirect(back)
    return console_page(
        page,
        request,
        "editing/enqueue.html",
        title=gettext("Run now with other arguments"),
        media=form.media,
        parents=[list_crumb(page), (str(schedule), back)],
        about=gettext("The schedule keeps its own. %(name)s makes one job with these at once.")
        % {"name": schedule},
        form=form,
        button=gettext("Run now"),
        back=back,
    )


def _report(page: Any, request: HttpRequest, schedule: Schedule, made: list[int]) -> None:
    if not made:
        text = gettext("This form was sent twice. It made one job.")
        page.message_user(request, text, messages.WARNING)
        return
    log_change(request, schedule, "run now with other arguments")
    shown = link(page.admin_site, Job, made[0], f"#{made[0]}")
    text = format_html("{} {}", gettext("The schedule made a job."), shown)
    page.message_user(request, text, messages.SUCCESS)
