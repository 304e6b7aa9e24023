"""Starts a run by hand: choose the workflow, enter its arguments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...conf import conf
from ...exceptions import JobsError
from ...lifecycle.operations.jobs import demand
from ...models import WorkflowRun
from ...models.database import fetch
from ..base.actions import ModelAdmin
from ..base.formatting import list_url, page_url
from ..forms.arguments import add_arguments, arguments_of, typed_payload
from ..forms.edit_form import KEPT_SECONDS, NUMBER, key_of_form, made_by_hand, number_field
from ..forms.fields import JsonObjectText, key_field
from ..layout.console_page import console_page

if TYPE_CHECKING:
    from ...api.workflows.workflow import Workflow

PERMISSION = "django_jobs.start_workflow"
CHOSEN = "workflow"
"""The parameter with the name of the workflow to start."""
NEWEST = 10_000
"""Runs of the workflow among which a run of the same form is found."""
# There is no index of the keys of runs that have ended.
MADE_BY_FORM = """
SELECT id FROM (
    SELECT id, idempotency_key, started_at FROM django_jobs_workflowrun
    WHERE name = %(name)s
    ORDER BY id DESC
    LIMIT %(newest)s
) AS newest
WHERE idempotency_key = %(key)s
  AND started_at > statement_timestamp() - make_interval(secs => %(kept)s)
LIMIT 1
"""


class StartForm(forms.Form):
    """The options of one run, after the arguments of its workflow."""

    def __init__(self, workflow: Workflow, data: Any = None) -> None:
        super().__init__(data)
        job_type = registry.get(workflow.name)  # the one that starts the workflow
        self._job_type = job_type
        self._arguments = arguments_of(job_type)
        add_arguments(self.fields, job_type, self._arguments)
        text = _("No other run is started until the one with this key has ended.")
        self.fields["idempotency_key"] = key_field(text)
        self.fields[NUMBER] = number_field()
        self.fields["overrides"] = JsonObjectText(
            label=_("Overrides"),
            required=False,
            help_text=_('Arguments by the name of a step, such as {"ship": {"express": true}}.'),
        )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        if not self.errors:
            cleaned["arguments"] = typed_payload(self, self._job_type, self._arguments, {})
        return cleaned


def start_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The workflows to choose from; of the chosen one, the form; once it is sent, start a run."""
    name = request.GET.get(CHOSEN)
    if name is None:
        return _choice(page, request)
    workflow = registry.workflow(name)
    if workflow is None:
        raise Http404
    form = StartForm(workflow, request.POST if request.method == "POST" else None)
    if form.is_valid():
        try:
            run = start_by_hand(workflow, form.cleaned_data, actor=request.user)
        except JobsError as error:
            form.add_error(None, str(error))
        else:
            has_key = form.cleaned_data["idempotency_key"]
            held = gettext("This run has the idempotency key and is running. No other was started.")
            twice = gettext("This form was sent twice. It started one run.")
            # Django begins a message with a capital letter, which is no part of the name.
            made = gettext("The run %(run)s was started.") % {"run": run}
            return made_by_hand(page, request, run, "started", made, held if has_key else twice)
    return console_page(
        page,
        request,
        "workflow/start.html",
        title=gettext("Start a run"),
        media=form.media,
        subtitle=f"{workflow.name} v{workflow.version}",
        form=form,
        back=list_url(page.admin_site, WorkflowRun),
    )


def start_by_hand(workflow: Workflow, given: dict[str, Any], *, actor: Any) -> WorkflowRun:
    """Start a run with the values of a valid form; or return that of the same form, marked as
    ``deduplicated``, which may have ended. Raises ``PermissionDenied`` if ``actor`` may not, and
    what ``start()`` raises."""
    demand(actor, PERMISSION)
    key = given["idempotency_key"]
    if not key and (key := key_of_form(given)) and (made := _made_by_form(workflow.name, key)):
        return made
    chosen = workflow.using(
        idempotency_key=key,
        overrides=json.loads(given["overrides"]) if given["overrides"] else None,
    )
    return chosen.start(**given["arguments"])


def _made_by_form(name: str, key: str) -> WorkflowRun | None:
    wanted = {"name": name, "key": key, "newest": NEWEST, "kept": KEPT_SECONDS}
    found = [pk for (pk,) in fetch(MADE_BY_FORM, wanted)]
    run = WorkflowRun.objects.using(conf().database).filter(pk__in=found).first()
    if run is not None:
        run.deduplicated = True
    return run


def start_url(page: ModelAdmin, name: str | None = None) -> str:
    """The address of the form that starts the workflow ``name``, or of the choice of one."""
    url = page_url(page.admin_site, "django_jobs_workflowrun_start")
    return f"{url}?{urlencode({CHOSEN: name})}" if name else url


def _choice(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    newest = {workflow.name: workflow for workflow in registry.workflows()}  # in order of versions
    choices = [
        {
            "name": f"{workflow.name} v{workflow.version}",
            "url": start_url(page, workflow.name),
            "steps": ", ".join(step.name for step in workflow.steps),
        }
        for workflow in newest.values()
    ]
    return console_page(
        page,
        request,
        "workflow/choose.html",
        title=gettext("Start a run of which workflow?"),
        choices=choices,
        back=list_url(page.admin_site, WorkflowRun),
    )
