"""Runs an operator's action: choose the rows, confirm, execute, report, log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...conf import conf
from ...exceptions import OperationRefused
from ...lifecycle.operations import OperationResult
from ...models import Job, Quarantine, Queue, Resource, Schedule, Tenant, WorkflowRun
from ...models.database import is_canceled
from ...separators import number_text
from ..layout.console_page import console_page, time_limit
from .formatting import NAMED, change_url, link, refusal_text, refusals_text

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

ADMIN_BULK_LIMIT = 10_000
"""Rows that one action on "all matching" may change."""
CHUNK = 1_000
LOGGED_ONE_BY_ONE = 100
PREVIEWED = 10

Link = tuple[str, str]


class OperatorAction(NamedTuple):
    """An action of an operator on rows: its confirmation, its operation and its messages."""

    action: str
    permission: str
    """The page has a method ``has_<permission>_permission``."""
    label: _StrOrPromise
    question: _StrOrPromise
    explanation: _StrOrPromise
    execute: Callable[..., OperationResult]
    """Takes the ids, and by name ``actor`` and what the form was given."""
    done: Callable[[int], str]
    """Says how many rows changed, with ``%(count)s``. A lazy plural would be a class each."""
    logged: str
    applies: Callable[[Any], bool]
    restarts: bool = False
    """Whether it starts a step of a workflow again or ends it, which its run may refuse."""
    form: type[forms.Form] = forms.Form
    only_asks: bool = False  # and changes nothing
    named_by: str = "job_type"  # the columns of which the name of a row is made
    asked: Callable[[int], str] | None = None
    """The message about rows that were only asked to change; ``done`` is then about the others."""
    among: Q = Q()
    """The rows that it can change at all, of those that match."""
    leads_to: Callable[[ModelAdmin, HttpRequest, Sequence[int]], Sequence[Link]] = (
        lambda page, request, done: ()
    )
    """Where the rows are that it changed, if they leave their list: a label and an address each."""
    fill: Callable[[Any, QuerySet[Any]], None] = lambda form, rows: None
    """Completes the form, given the chosen rows."""
    row_name: Callable[[Any], str] = str
    """What the question calls a single row."""
    caution: Callable[[QuerySet[Any]], str] = lambda rows: ""
    """What the confirmation page warns of, given the chosen rows."""
    unlogged: frozenset[str] = frozenset()
    """Fields of the form whose values may be secret."""
    alternatives: tuple[Alternative, ...] = ()
    button: Callable[[int], str] | None = None
    """The button that confirms, like ``done``; by default the label."""


class Choice(NamedTuple):
    """The rows of an action. ``max_id`` excludes rows added after the confirmation page; ``missed``
    were counted there and do not match any more."""

    ids: Sequence[int]
    gone: Sequence[int] = ()
    across: bool = False
    more: bool = False
    missed: int = 0
    max_id: int = 0


class Alternative(NamedTuple):
    """Another way to do an action, as a button on its confirmation page."""

    name: str
    label: _StrOrPromise
    explanation: _StrOrPromise
    offered: Callable[[ModelAdmin, HttpRequest, Choice], bool]
    go: Callable[[ModelAdmin, HttpRequest, Choice, Mapping[str, Any]], HttpResponse]
    refused: Callable[[ModelAdmin, HttpRequest, Choice], str] = lambda page, request, choice: ""
    """Why it is not offered, if its user would expect it."""
    preferred: Callable[[Choice], bool] = lambda choice: False
    """Whether its button is the first one, before that which confirms."""


def log_change(request: HttpRequest, row: Model, message: str, flag: int = CHANGE) -> None:
    """Write in the history of a row what the user did with it."""
    user = cast(int, request.user.pk)
    LogEntry.objects.log_actions(user, [row], flag, message, single_object=True)


def log_together(request: HttpRequest, model: Any, which: str, message: str, **entry: Any) -> None:
    """Write in the history what the user did with several rows."""
    LogEntry.objects.create(
        user_id=cast(int, request.user.pk),
        content_type=ContentType.objects.get_for_model(model),
        object_repr=which,
        change_message=message,
        **{"action_flag": CHANGE, **entry},
    )


def admin_action(action: OperatorAction) -> Callable[..., HttpResponse | None]:
    def run(page: ModelAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return run_action(page, request, queryset, action)

    run.__name__ = action.action
    return admin.action(run, permissions=[action.permission], description=action.label)


def run_action(
    page: ModelAdmin, request: HttpRequest, matching: QuerySet[Any], action: OperatorAction
) -> HttpResponse | None:
    """Show the confirmation page; once confirmed, execute the action and return to its page."""
    ceiling = ceiling_of(request)
    with time_limit():
        choice = _choice(page, request, matching.filter(action.among), ceiling)
    confirmed = "confirmed" in request.POST and not (choice.across and ceiling is None)
    form = action.form(request.POST if confirmed else None)
    action.fill(form, page.get_queryset(request).filter(pk__in=choice.ids))
    if not confirmed or not form.is_valid():
        return _question(page, request, choice, action, form)
    if instead := request.POST.get("instead"):
        other = next((one for one in action.alternatives if one.name == instead), None)
        if other is not None and other.offered(page, request, choice):
            return other.go(page, request, choice, form.cleaned_data)
        # The rows are others now. The action would change them all at once.
        text = _("Nothing was changed. “%(way)s” is no longer offered for what was chosen.")
        text %= {"way": other.label if other else instead}
        page.message_user(request, text, messages.ERROR)
        return _question(page, request, choice, action, form)
    _act(page, request, choice, action, form.cleaned_data)
    if "from_page" in request.POST and len(choice.ids) + len(choice.gone) == 1:
        # The page of a dead letter that was replayed is gone, and the row of a tenant may be.
        pk = [*choice.ids, *choice.gone][0]
        if _number(request, "from_run") or _rows(page, action, [pk]).exists():
            return HttpResponseRedirect(_page_of(page, request, pk))
    return None


def ceiling_of(request: HttpRequest) -> int | None:
    """The newest row when the action was asked for. It leaves those alone that came later."""
    return _number(request, "max_id")


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.POST.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _choice(
    page: ModelAdmin, request: HttpRequest, matching: QuerySet[Any], ceiling: int | None
) -> Choice:
    if request.POST.get("select_across") == "1":
        if ceiling is None:
            newest = page.get_queryset(request).order_by("-pk").values_list("pk", flat=True)
            ceiling = newest.first() or 0
        rows = matching.filter(pk__lte=ceiling).order_by("-pk").values_list("pk", flat=True)
        found = list(rows[: ADMIN_BULK_LIMIT + 1])
        ids = found[:ADMIN_BULK_LIMIT]
        return Choice(
            ids=ids,
            across=True,
            more=len(found) > ADMIN_BULK_LIMIT,
            missed=max((_number(request, "expected") or 0) - len(ids), 0),
            max_id=ceiling,
        )
    # Rows chosen by hand stay chosen, even if the list's filter no longer matches them.
    chosen = sorted({int(id_) for id_ in request.POST.getlist(ACTION_CHECKBOX_NAME)})
    rows = page.get_queryset(request).filter(pk__in=chosen).order_by("-pk")
    ids = list(rows.values_list("pk", flat=True))
    return Choice(ids=ids, gone=sorted(set(chosen) - set(ids)))


def _question(
    page: ModelAdmin, request: HttpRequest, choice: Choice, action: OperatorAction, form: forms.Form
) -> HttpResponse:
    rows = page.get_queryset(request)
    preview = list(rows.filter(pk__in=list(choice.ids[:PREVIEWED])).order_by("-pk"))
    count = len(choice.ids)
    if action.among and not choice.across:
        count = rows.filter(action.among, pk__in=choice.ids).count()
    others = [it for it in action.alternatives if count and it.offered(page, request, choice)]
    title = action.question
    if len(choice.ids) == len(preview) == 1:
        row = action.row_name(preview[0])
        title = _("%(action)s: %(row)s?") % {"action": action.label, "row": row}
    return console_page(
        page,
        request,
        "confirm_action.html",
        title=title,
        media=form.media,
        action=action,
        form=form,
        choice=choice,
        caution=action.caution(rows.filter(pk__in=choice.ids)),
        count=count,
        unchanged=len(choice.ids) - count,
        chosen_by=_chosen_by(request, choice),
        asks=count or (choice.gone and choice.ids) or (not choice.across and not action.among),
        notes=_notes(page, request, choice, action) if choice.across else (),
        preview=preview,
        unnamed=max(len(choice.ids) - PREVIEWED, 0),
        selected=[0] if choice.across else [*choice.ids, *choice.gone],
        checkbox_name=ACTION_CHECKBOX_NAME,
        from_page="from_page" in request.POST,
        from_run=_number(request, "from_run"),
        back=_back(page, request, choice),
        button=_counted(action.button, count) if action.button else action.label,
        preferred=[one for one in others if one.preferred(choice)],
        alternatives=[one for one in others if not one.preferred(choice)],
    )


def _chosen_by(request: HttpRequest, choice: Choice) -> str:
    """Which rows of the list were chosen, by its filters and its search."""
    rows: Any = getattr(request, "console_list", None)
    filters = "" if rows is None else rows.chosen_by(request)
    if not filters:
        return _("All of the list.") if choice.across else ""
    text = _("All that match: %(filters)s.") if choice.across else _("Chosen from: %(filters)s.")
    return text % {"filters": filters}


def _notes(
    page: ModelAdmin, request: HttpRequest, choice: Choice, action: OperatorAction
) -> list[str]:
    """What the search and the filters of the list have left out, and why nobody else does it."""
    search: Any = getattr(request, "search", None)
    notes = [] if search is None else search.problems or search.notes
    refusals = (one.refused(page, request, choice) for one in action.alternatives)
    return [*notes, *getattr(request, "filter_notes", ()), *filter(None, refusals)]


def _back(page: ModelAdmin, request: HttpRequest, choice: Choice) -> str:
    if "from_page" in request.POST and choice.ids:
        return _page_of(page, request, choice.ids[0])
    return request.get_full_path()


def _page_of(page: ModelAdmin, request: HttpRequest, pk: int) -> str:
    """The page from which the action on a row was asked for: its own, or that of its run."""
    run = _number(request, "from_run")
    return change_url(page.admin_site, WorkflowRun if run else _concrete(page), run or pk)


def _act(
    page: ModelAdmin,
    request: HttpRequest,
    choice: Choice,
    action: OperatorAction,
    given: Mapping[str, Any],
) -> None:
    result = _result(choice.gone, [], _("it no longer exists"))
    few = len(choice.ids) <= LOGGED_ONE_BY_ONE
    named = list(_rows(page, action, choice.ids)) if few else []  # some may be deleted
    try:
        for start in range(0, len(choice.ids), CHUNK):
            ids = list(choice.ids[start : start + CHUNK])
            part = action.execute(ids, actor=request.user, **given)
            result.done += part.done
            result.asked += part.asked
            result.made += part.made
            result.refused.update(part.refused)
    except OperationRefused as error:
        page.message_user(request, refusal_text(error), messages.ERROR)
    except OperationalError as error:
        if not is_canceled(error):
            raise
        text = _("The database stopped it because of its time limit. The others were not changed.")
        page.message_user(request, text, messages.ERROR)
    finally:
        # If a later chunk fails, the earlier ones stay done, so they are logged in any case.
        if result.done:
            _log(page, request, action, result.done, given, named)
    _show_result(page, request, action, result)
    if choice.missed:
        text = ngettext(
            "%(count)s no longer matched and was left alone.",
            "%(count)s no longer matched and were left alone.",
            choice.missed,
        )
        page.message_user(request, text % {"count": number_text(choice.missed)}, messages.WARNING)


def _show_result(
    page: ModelAdmin, request: HttpRequest, action: OperatorAction, result: OperationResult
) -> None:
    asked = len(result.asked) if action.asked else 0
    if len(result.done) > asked:
        text = _counted(action.done, len(result.done) - asked)
        if result.made:
            made = ((link(page.admin_site, Job, pk, f"#{pk}"),) for pk in result.made[:NAMED])
            text = format_html("{} {}", text, format_html_join(", ", "{}", made))
        if "from_page" not in request.POST and (
            links := action.leads_to(page, request, result.done)
        ):
            shown = ((url, label) for label, url in links)
            text = format_html("{} {}", text, format_html_join(" · ", '<a href="{}">{}</a>', shown))
        page.message_user(request, text, messages.SUCCESS)
    if action.asked and asked:
        page.message_user(request, _counted(action.asked, asked), messages.SUCCESS)
    if result.refused:
        page.message_user(request, refusals_text(result.refused), messages.WARNING)
    elif not result.done:
        page.message_user(request, _("No rows were changed."), messages.WARNING)


def _counted(text: Callable[[int], str], number: int) -> str:
    return text(number) % {"count": number_text(number)}


def by_name(
    model: type[Queue | Schedule | Quarantine | Resource | Tenant],
    change: Callable[..., list[str]],
    refusal: _StrOrPromise,
    column: str = "name",
    *,
    takes_ids: bool = False,
) -> Callable[..., OperationResult]:
    """What executes an action by ``change``, which takes names or ids and what the form was given,
    and returns the names that it changed. The other rows are refused with ``refusal``."""

    def execute(ids: list[int], **given: Any) -> OperationResult:
        rows = model._default_manager.using(conf().database).filter(pk__in=ids)
        names = dict(rows.values_list("pk", column))
        changed = set(change(names if takes_ids else names.values(), **given))
        return _result(ids, [pk for pk, name in names.items() if name in changed], refusal)

    return execute


def by_id(
    change: Callable[..., list[int]], refusal: _StrOrPromise
) -> Callable[..., OperationResult]:
    """The same by an operation that returns the ids that it changed."""

    def execute(ids: list[int], **given: Any) -> OperationResult:
        return _result(ids, change(ids, **given), refusal)

    return execute


def _result(ids: Sequence[int], done: list[int], refusal: _StrOrPromise) -> OperationResult:
    return OperationResult(done=done, refused={pk: str(refusal) for pk in ids if pk not in done})


def _log(
    page: ModelAdmin,
    request: HttpRequest,
    action: OperatorAction,
    done: Sequence[int],
    given: Mapping[str, Any],
    named: Sequence[Model],
) -> None:
    message = action.logged
    for name, value in given.items():
        if value not in ("", None) and name not in action.unlogged:
            is_time = isinstance(value, datetime)
            message += f": {name} {value:%Y-%m-%d %H:%M:%S %Z}" if is_time else f": {value}"
    if len(done) <= LOGGED_ONE_BY_ONE:
        rows: Any = [row for row in named if row.pk in done]
        rows += _rows(page, action, [*set(done).difference(row.pk for row in rows)])
        LogEntry.objects.log_actions(cast(int, request.user.pk), rows, CHANGE, message)
        return
    model = _concrete(page)
    log_together(request, model, f"{len(done):,} {model._meta.verbose_name_plural}", message)


def _rows(page: ModelAdmin, action: OperatorAction, ids: Sequence[int]) -> QuerySet[Any]:
    rows = _concrete(page)._default_manager.using(conf().database).filter(pk__in=ids)
    return rows.only(*action.named_by.split())


def _concrete(page: ModelAdmin) -> type[Model]:
    return cast(type[Model], page.model._meta.concrete_model)
