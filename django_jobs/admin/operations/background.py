"""Offers an action on more rows than a request may change to the workers, as an operation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.replay_plan import ReplayPlan
from ...lifecycle.operations import bulk
from ...models import BulkAction, BulkOperation, DeadLetter, Schedule
from ...models.database import database_time
from ..base.actions import Alternative, Choice, ModelAdmin
from ..base.formatting import change_url
from ..base.search import job_search
from ..failures.filters import NO_ERROR
from ..lists.filters import SPANS

SAME = ("status", "queue", "job_type", "tag", "tenant")

SPAN_OF = {"created": "created_since", "finished": "finished_since"}
NOT_FILTERS = frozenset({"p", "o", "all", "e"})
"""Parameters of Django's lists that choose no rows."""


def terms_of_list(page: ModelAdmin, request: HttpRequest) -> dict[str, Any] | None:
    """The filters and the search of a list of jobs as the terms of an operation. None if one of
    them is not a term, or if two contradict each other."""
    terms: dict[str, Any] = {"status": "dead"} if page.model is DeadLetter else {}
    for name in request.GET:
        value = str(request.GET[name])
        new: dict[str, Any] | None
        if name in NOT_FILTERS or not value:
            continue
        if name in SAME:
            new = {name: value}
        elif name == "workflow_run" and len(value) < 19 and value.isascii() and value.isdigit():
            new = {name: int(value)}
        elif name in SPAN_OF and value in SPANS:
            new = {SPAN_OF[name]: (database_time() - SPANS[value][0]).isoformat()}
        elif name == "fingerprint" and value != NO_ERROR:
            new = {"error": value}
        elif name == "schedule":
            schedules = Schedule.objects.using(conf().database).filter(name=value)
            new = {name: pk} if (pk := schedules.values_list("pk", flat=True).first()) else None
        elif name == "q":
            new = _searched(value, request.user)
        else:
            new = None
        if new is None or any(terms.get(key, value) != value for key, value in new.items()):
            return None
        terms |= new
    return terms or {"all": True}


def _searched(text: str, user: Any) -> dict[str, Any] | None:
    search = job_search(text, user)
    if search.problems or search.terms.arguments or search.errors:
        return None  # few are found by them: the admin can change these itself
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
            return None
        if values:
            found[name] = values[0]
    return found


def in_background(action: BulkAction) -> Alternative:
    """The offer to do an action to all that match."""

    def offered(page: ModelAdmin, request: HttpRequest, choice: Choice) -> bool:
        return choice.more and terms_of_list(page, request) is not None

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
    """Start an operation, log it, and go to its page."""
    user = request.user.pk
    assert user is not None
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
    LogEntry.objects.create(
        user_id=user,
        content_type=ContentType.objects.get_for_model(BulkOperation),
        object_id=str(operation.pk),
        object_repr=str(operation),
        action_flag=ADDITION,
        change_message=": ".join(filter(None, ["requested", described(terms), reason])),
    )
    text = gettext("The workers carry out this operation. This page shows the progress.")
    page.message_user(request, text, messages.SUCCESS)
    return to


def described(terms: Mapping[str, Any]) -> str:
    """The terms as people read them."""
    parts = []
    for name, value in terms.items():
        if name == "all":
            parts.append(gettext("all jobs"))
        elif name == "ids":
            parts.append(gettext("%(count)s chosen jobs") % {"count": f"{len(value):,}"})
        else:
            parts.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join(parts)
