"""The base class of all admin pages, which count and page a bounded number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, SEARCH_VAR, ChangeList
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import IntegerField, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.utils.html import format_html
from django.utils.module_loading import import_string
from django.utils.text import smart_split
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.search_terms import MOST_TERMS
from ...lifecycle.scope import Scope, scope_of
from ...models.fields import TimestampNow
from ..layout.console_page import (
    ConsoleView,
    console_path,
    is_unconfirmed,
    limited,
    time_limit,
    timed_out,
)
from ..lists.change_list import ConsoleList
from .actions import ModelAdmin, OperatorAction, admin_action
from .formatting import MOST_COUNTED, Visible, list_url

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise
    from django.utils.safestring import SafeString

    BasePaginator = Paginator[Any]
else:
    BasePaginator = Paginator


class CappedPaginator(BasePaginator):
    """Counts and pages at most ``cap`` rows: a full count of a large table takes seconds."""

    cap = 10_000

    @cached_property
    def _capped_count(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: self.cap + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._capped_count, self.cap)

    @property
    def capped(self) -> bool:
        """Whether there are more rows than ``cap``."""
        return self._capped_count > self.cap


class CappedCount(Subquery):
    """The number of rows of a subquery, up to ``MOST_COUNTED + 1``."""

    template = "(SELECT COUNT(*) FROM (%(subquery)s) AS counted)"

    def __init__(self, rows: QuerySet[Any]) -> None:
        super().__init__(
            rows.order_by().values("pk")[: MOST_COUNTED + 1], output_field=IntegerField()
        )


REFRESH_SECONDS = 5
"""Between two answers to a page that is looked at."""
MAY_BE_EMPTY = {SEARCH_VAR, ALL_VAR}
"""Parameters of a list that Django sends without a value."""


def allowed_by(*permissions: str) -> Callable[..., bool]:
    """A page's check, of all rows or of one: the user needs one of these permissions."""

    def check(page: Any, request: HttpRequest, obj: Any = None) -> bool:
        if scope_of(request.user) is not None and page.scoped_by is None:
            return False
        return any(request.user.has_perm(f"django_jobs.{permission}") for permission in permissions)

    return check


def unlimited(*permissions: str) -> Callable[..., bool]:
    """The same for what no permission gives to a user with a scope."""
    allowed = allowed_by(*permissions)

    def check(page: Any, request: HttpRequest, obj: Any = None) -> bool:
        return scope_of(request.user) is None and allowed(page, request, obj)

    return check


def section(title: _StrOrPromise | None, *rows: str | tuple[str, ...]) -> tuple[Any, Any]:
    """A fieldset. A row is a field, or several side by side."""
    return title, {"fields": rows}


def row_button(action: OperatorAction, row: Any) -> str:
    """The button of an action on one row of a list. Its form is above the list."""
    return format_html(
        '<button type="submit" class="button jobs-row-button" form="row-{}" name="{}" value="{}" '
        'aria-label="{} {}">{}</button>',
        *(action.action, ACTION_CHECKBOX_NAME, row.pk, action.label, row, action.label),
    )


class ConsoleAdmin(ModelAdmin):
    """Fast on a table of any size, and read-only: rows change by ``lifecycle.operations``."""

    paginator = CappedPaginator
    show_full_result_count = False
    # Counting for the filters took more than ten minutes on a million rows.
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_class: ClassVar[type[ChangeList]] = ConsoleList
    ordering: ClassVar[tuple[str, ...]] = ("-id",)
    list_select_related: ClassVar[tuple[str, ...]] = ()
    sortable_by: ClassVar[tuple[str, ...]] = ()
    """The columns that sort a list of at most 1,000 rows."""
    sorted_here: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Those of them whose values :meth:`add_numbers` reads: what to sort a row by. None is last."""

    unread: ClassVar[tuple[str, ...]] = ()
    """Columns that are deferred: a page reads them separately or not at all."""
    operator_actions: ClassVar[tuple[OperatorAction, ...]] = ()
    """The first of the list's actions. On a row's page, from the last to the first, its buttons."""
    for_all: ClassVar[tuple[OperatorAction, ...]] = ()
    """Those that have a button above the list once it is narrowed, for all rows that match."""
    in_rows: ClassVar[tuple[OperatorAction, ...]] = ()
    """Those that have a button in the list's rows."""
    at_least_one: ClassVar[tuple[str, ...]] = ()
    """The fields whose numbers may not be 0."""
    views: ClassVar[tuple[ConsoleView, ...]] = ()
    """The pages that Django's admin does not have."""
    lookups_allowed: ClassVar[frozenset[str]] = frozenset({"id", "id__exact", "pk"})
    exported: ClassVar[tuple[str, ...]] = ()
    """The columns of its list as a file. Those that are ``unread`` have arguments or results."""
    has_export_permission = allowed_by("export_job")
    empty: ClassVar[_StrOrPromise] = ""
    """What an empty list says: which rows would be here, and how they come."""
    list_words: ClassVar[tuple[str, ...]] = ()
    words: ClassVar[tuple[str, ...]] = ()
    """Our words in the list, and on a row's page, which ``words.html`` explains there."""
    change_list_template = "admin/django_jobs/change_list.html"

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {
            "all": ("django_jobs/admin.css", "django_jobs/console.css", "django_jobs/lists.css")
        }
        js = ("django_jobs/refresh.js",)

    scoped_by: ClassVar[Mapping[str, str] | None] = None
    """The columns with queue and job type of a row. A user with a scope sees no other page."""

    def __init__(self, model: Any, admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        self.actions = (*map(admin_action, self.operator_actions), *(self.actions or ()))

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).using(conf().database)
        if self.list_select_related:
            rows = rows.select_related(*self.list_select_related)
        if (scope := scope_of(request.user)) is not None:
            rows = rows.none() if self.scoped_by is None else rows.filter(self.in_scope(scope))
        rows = rows.defer(*self.unread).annotate(read_at=TimestampNow(), **self.annotations())
        return rows

    def in_scope(self, scope: Scope) -> Q:
        """The condition on rows that a user with this scope sees."""
        assert self.scoped_by is not None
        return scope.of(**self.scoped_by)

    def annotations(self) -> dict[str, Any]:
        """What the page reads of other tables, by name."""
        return {}

    def add_numbers(self, request: HttpRequest, rows: list[Any]) -> None:
        """Read what the columns of ``sorted_here`` show of these rows."""

    # Django allows any lookup on a model's own columns in the address of a list. On a JSON column
    # it could guess secrets letter by letter, and on any column it may read the whole table.
    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        filters: Any = self.list_filter
        return lookup in self.lookups_allowed | {filter_.parameter_name for filter_ in filters}

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if sum(1 for _word in smart_split(search_term)) <= MOST_TERMS:
            return super().get_search_results(request, queryset, search_term)
        if request.method == "GET":  # Django makes conditions of each: 1,600 took 0.8 s of plan
            problem = _("A search has at most %(number)s words.") % {"number": MOST_TERMS}
            self.message_user(request, problem, messages.ERROR)
        return queryset.none(), False

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **options: Any) -> Any:
        # For a PositiveIntegerField Django would allow 0.
        if db_field.name in self.at_least_one:
            options["min_value"] = 1
        return super().formfield_for_dbfield(db_field, request, **options)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        outside = self.scoped_by is None and scope_of(request.user) is not None
        return not outside and super().has_view_permission(request, obj)

    def changeform_view(self, request: HttpRequest, *given: Any, **options: Any) -> Any:
        if self.scoped_by is None and scope_of(request.user) is not None:
            raise PermissionDenied
        return super().changeform_view(request, *given, **options)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        urls: list[Any] = super().get_urls()
        for url in urls:
            url.callback = limited(self, url.callback, is_unconfirmed, timed_out)
        return [*(console_path(self, view) for view in self.views), *urls]

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            self.complete(request, [row])
        return row

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        with time_limit():
            changes: Any = super().get_changelist_instance(request)
            changes.result_list = list(changes.result_list)
            self.complete(request, changes.result_list)
        return changes

    def complete(self, request: HttpRequest, rows: list[Any]) -> None:
        """Make the rows of a list, or that of a page, as the user may see them."""
        visible = Visible(self.admin_site, request)
        for row in rows:
            row.visible = visible

    # Django renders the template of a widget for each row: a tenth of the time of a list of jobs.
    def action_checkbox(self, obj: Any) -> SafeString:
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            obj.pk,
            _("Select this object for an action - {}").format(obj),
        )

    def get_changelist(self, request: HttpRequest, **options: Any) -> type[ChangeList]:
        return self.list_class

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if any("\0" in part for item in request.GET.lists() for part in (item[0], *item[1])):
            # PostgreSQL cannot store NUL in text. Django answers other wrong parameters like this.
            return HttpResponseRedirect(f"{request.path}?{ERROR_FLAG}=1")
        if request.method == "GET" and any(
            not value and name not in MAY_BE_EMPTY for name, value in request.GET.items()
        ):  # sent by the fields of filters that were not used
            return HttpResponseRedirect(f"{request.path}?{_without_empty(request.GET)}")
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if not all(id_.isascii() and id_.isdigit() and len(id_) < 19 for id_ in chosen):
            self.message_user(request, _("The id of a row was not a number."), messages.ERROR)
            return HttpResponseRedirect(request.get_full_path())
        may_export = bool(self.exported) and self.has_export_permission(request)
        shown = {"empty": self.empty, "refresh_seconds": REFRESH_SECONDS, "may_export": may_export}
        shown = {**shown, **self.list_context(request), **(extra_context or {})}
        response = super().changelist_view(request, shown)
        context = getattr(response, "context_data", None) or {}
        if "cl" in context and self.exported and "export" in request.POST:
            if not may_export:
                raise PermissionDenied
            export_list = import_string("django_jobs.admin.access.export.export_list")
            return export_list(self, request, context["cl"])  # type: ignore[no-any-return]
        if "cl" in context:
            text = _("All %(count)s selected") % {"count": context["cl"].count_text}
            context["selection_note_all"] = text
            allowed = self.get_actions(request)
            for name, offered in (("for_all", self.for_all), ("in_rows", self.in_rows)):
                context[name] = [one for one in offered if one.action in allowed]
            numbers = [(one, context["cl"].changeable(one)) for one in context["for_all"]]
            context["for_all"] = [(one, number) for one, number in numbers if number is not None]
        return response

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """What the list shows besides its rows. ``tools`` are links above it: a text, an address
        and a class each."""
        return {}

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        stored = obj
        if obj is not None and request.method == "POST":  # a refused form has set what it says
            stored = self.get_object(request, str(obj.pk)) or obj
        context = {**context, **self.page_context(request, stored)}
        return super().render_change_form(request, context, add, change, form_url, obj)

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        """What the page of ``obj`` shows besides its form. None is a row that is being added."""
        if obj is None:
            return {"words": self.words}
        allowed = self.get_actions(request)
        buttons = [
            action
            for action in reversed(self.operator_actions)
            if action.action in allowed and action.applies(obj)
        ]
        url, live = list_url(self.admin_site, self.model), self.live(obj)
        context = {"words": self.words, "operator_actions": buttons, "list_url": url}
        refreshed = {"live": live, "refresh_seconds": REFRESH_SECONDS}
        return context if live is None else context | refreshed

    def live(self, row: Any) -> dict[str, Any] | None:
        """The numbers of a row now, which stand above its form."""
        return None


def _without_empty(given: QueryDict) -> str:
    rest = given.copy()
    for name in [name for name, value in given.items() if not value and name != ALL_VAR]:
        del rest[name]
    return rest.urlencode()
