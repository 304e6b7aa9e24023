"""The view that runs a schedule now with other arguments."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext

from ... import registry
from ...api.schedules import request_of
from ...exceptions import JobsError
from ...lifecycle.operations.schedules import run_now
from ...models import Job, Schedule
from ..base.formatting import change_url, link, refusal_text
from ..forms.edit_form import NUMBER, key_of_form, number_field
from ..layout.console_page import console_page, list_crumb
from ..schedules.form import upgraded_payload
from .form import JobForm


class ArgumentsForm(JobForm):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.fields[NUMBER] = number_field()

    def _add_options(self, *given: Any) -> None:
        """The schedule says them."""


def run_view(page: Any, request: HttpRequest, pk: int) -> HttpResponse:
    """The form with the arguments of a schedule; once it is sent, make a job with what it says."""
    schedule = page.get_queryset(request).filter(pk=pk).first()
    job_type = None if schedule is None else registry.find(schedule.job_type)
    if job_type is None:
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
    user = request.user.pk
    assert user is not None
    message = "run now with other arguments"
    LogEntry.objects.log_actions(user, [schedule], CHANGE, message, single_object=True)
    shown = link(page.admin_site, Job, made[0], f"#{made[0]}")
    text = format_html("{} {}", gettext("The schedule made a job."), shown)
    page.message_user(request, text, messages.SUCCESS)
