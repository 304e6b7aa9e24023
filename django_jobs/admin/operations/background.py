"""Offers an action on more rows than a request may change to the workers, as an operation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.search_terms import term
from ...models import BulkAction, BulkOperation, DeadLetter, JobStatus, Schedule
from ...models.bulk_operation import PERMISSIONS
from ...models.database import database_time
from ...separators import number_text
from ..base.actions import Alternative, Choice, ModelAdmin, log_together
from ..base.formatting import change_url, clock_text
from ..base.search import job_search
from ..failures.filters import NO_ERROR
from ..lists.filters import SPANS, id_of

if TYPE_CHECKING:
    from ...domain.replay_plan import ReplayPlan

PLAN = "django_jobs_replay_plan"
SAME = ("status", "queue", "job_type", "tag", "tenant")

SPAN_OF = {"created": "created_since", "finished": "finished_since"}
NOT_FILTERS = frozenset({"p", "o", "all", "e"})
"""Parameters of Django's lists that choose no rows."""


class NotATerm(Exception):
    """What a list is narrowed by, as people read it, and an operation has no term for."""


def terms_of_list(page: ModelAdmin, request: HttpRequest) -> dict[str, Any] | None:
    """The filters and the search of a list of jobs as the terms of an operation. None if one of
    them is not a term, or if two contradict each other."""
    try:
        return _terms(page, request)
    except NotATerm:
        return None


def _terms(page: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    titles = {getattr(one, "parameter_name", ""): one for one in page.list_filter}
    terms: dict[str, Any] = {"status": "dead"} if page.model is DeadLetter else {}
    for name in request.GET:
        value = str(request.GET[name])
        if name in NOT_FILTERS or not value:
            continue
        if name in ("q", "error"):
            new = _searched(value if name == "q" else term(name, value), request.user)
        elif not (new := _filtered(name, value)):
            raise NotATerm(getattr(titles.get(name), "title", name))
        for key, one in new.items():
            if terms.setdefault(key, one) != one:
                raise NotATerm(_two(key))
    return terms or {"all": True}


def _two(key: str) -> str:
    return gettext("two values of %(term)s") % {"term": gettext(key.replace("_", " "))}


def _filtered(name: str, value: str) -> dict[str, Any]:
    """What a filter asks for, as terms; empty if none has it."""
    if name in SAME:
        return {name: value}
    if name == "workflow_run" and (number := id_of(value)) is not None:
        return {name: number}
    if name in SPAN_OF and value in SPANS:
        return {SPAN_OF[name]: (database_time() - SPANS[value][0]).isoformat()}
    if name == "fingerprint":
        return {"error": "" if value == NO_ERROR else value}
    if name == "schedule":
        schedules = Schedule.objects.using(conf().database).filter(name=value)
        pk = schedules.values_list("pk", flat=True).first()
        return {} if pk is None else {name: pk}
    return {}


def _searched(text: str, user: Any) -> dict[str, Any]:
    search = job_search(text, user)
    if search.terms.arguments or search.problems:
        raise NotATerm(gettext("arguments"))
    if search.errors:
        raise NotATerm(gettext("the text of an error"))
    if search.terms.of("parent"):
        raise NotATerm(gettext("the job that enqueued them"))
    found: dict[str, Any] = {"ids": search.numbers} if search.terms.numbers else {}
    if search.is_of_run:
        found["status"] = "dead"  # as on the list
    for name, values in (
        ("job_type", search.terms.of("type")),
        ("key", search.terms.of("key")),
        ("tag", search.terms.of("tag")),
        ("code", search.terms.of("code")),
        ("error", search.of_run["fingerprint"]),
    ):
        if len(set(values)) > 1:
            raise NotATerm(_two(name))
        if values:
            found[name] = values[0]
    return found


def in_background(action: BulkAction) -> Alternative:
    """The offer to do an action to all that match."""

    def offered(page: ModelAdmin, request: HttpRequest, choice: Choice) -> bool:
        return choice.more and not refused(page, request, choice)

    def refused(page: ModelAdmin, request: HttpRequest, choice: Choice) -> str:
        if not choice.more:
            return ""
        try:
            _terms(page, request)
        except NotATerm as what:
            text = gettext(
                "The others cannot be changed in the background: operations do not choose jobs by "
                "%(what)s. Narrow the list to reach them."
            )
            return text % {"what": what}
        return ""

    def go(
        page: ModelAdmin, request: HttpRequest, choice: Choice, given: Mapping[str, Any]
    ) -> HttpResponse:
        terms = terms_of_list(page, request)
        assert terms is not None
        arguments = {name: value for name, value in given.items() if name != "reason"}
        reason = given.get("reason", "")
        return begin(page, request, action, terms, arguments, reason, choice.max_id)

    return Alternative(
        name="background",
        label=_("Change all of them in the background"),
        explanation=_(
            "The workers can change all jobs that match. You see the progress, can stop the "
            "operation, and get a report of the jobs that were not changed, with the "
            "reasons."
        ),
        offered=offered,
        refused=refused,
        go=go,
    )


def begin(
    page: ModelAdmin,
    request: HttpRequest,
    action: BulkAction,
    terms: Mapping[str, Any],
    arguments: Mapping[str, Any],
    reason: str,
    max_id: int | None = None,
    plan: ReplayPlan | None = None,
) -> HttpResponse:
    from ...lifecycle.operations import bulk

    operation = bulk.start(
        action,
        terms,
        arguments=arguments,
        plan=plan,
        actor=request.user,
        reason=reason,
        max_id=max_id,
    )
    to = HttpResponseRedirect(change_url(page.admin_site, BulkOperation, operation.pk))
    if operation.deduplicated:
        text = gettext("This is under way already for these jobs. No other operation was started.")
        page.message_user(request, text, messages.WARNING)
        return to
    which = described(operation.terms, operation.error_class)
    message = ": ".join(filter(None, ["requested", which, reason]))
    entry = {"object_id": str(operation.pk), "action_flag": ADDITION}
    log_together(request, BulkOperation, str(operation), message, **entry)
    text = gettext("The workers carry out this operation. This page shows the progress.")
    page.message_user(request, text, messages.SUCCESS)
    return to


def described(terms: Mapping[str, Any], error: str = "") -> str:
    """The terms as people read them. ``error`` stands for the fingerprint of one: first of all the
    job type and the error, as on the pages of failures."""
    given = dict(terms)
    if len(given) > 1 and given.get("status") == JobStatus.DEAD:
        del given["status"]  # others are neither replayed nor dismissed
    if "error" in given:
        given["error"] = error or given["error"]
    parts = []
    if "job_type" in given and "error" in given:
        parts.append(f"{given.pop('job_type')}: {given.pop('error') or gettext('no error')}")
    for name, value in given.items():
        if name == "all":
            parts.append(gettext("all jobs"))
        elif name == "ids":
            parts.append(gettext("%(count)s chosen jobs") % {"count": number_text(len(value))})
        elif name == "scope":
            names = ", ".join(name for some in value.values() for name in some)
            parts.append(gettext("within %(names)s") % {"names": names})
        elif name == "error" and not value:
            parts.append(gettext("no error"))
        else:
            label = gettext(name.replace("_", " "))
            if name in SPAN_OF.values():
                with suppress(ValueError, TypeError):  # a row that was written by hand
                    at = timezone.localtime(datetime.fromisoformat(value))
                    value = clock_text(at)
            shown = dict(JobStatus.choices).get(value, value) if name == "status" else value
            parts.append(f"{label} {shown}")
    return ", ".join(parts)


def may_replay(request: HttpRequest) -> bool:
    return request.user.has_perms(["django_jobs.view_job", PERMISSIONS[BulkAction.REPLAY]])
