"""Pages of the admin that are neither the list of a model nor the page of a row, and the time limit
of the statements of all pages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import django
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.forms import Media
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.cache import add_never_cache_headers
from django.utils.formats import number_format
from django.utils.module_loading import import_string
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import conf
from ...lifecycle.scope import scope_of
from ...models.database import is_canceled, statement_limit

if TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

    Crumb = tuple[_StrOrPromise, str]

_is_limited = ContextVar("_is_limited", default=False)


@contextmanager
def time_limit() -> Iterator[None]:
    """A transaction on the jobs' database whose statements end after ``ADMIN_STATEMENT_TIMEOUT``.
    Inside another time limit it is nothing. Inside another transaction it is a savepoint, and the
    limit of before returns at its end."""
    seconds = conf().admin_statement_timeout
    if seconds is None or _is_limited.get():
        yield
        return
    token = _is_limited.set(True)
    try:
        with statement_limit(seconds):
            yield
    finally:
        _is_limited.reset(token)


def limited(
    page: Any,
    view: Callable[..., HttpResponse],
    reads: Callable[[HttpRequest], bool],
    timed_out: Callable[[Any, HttpRequest], HttpResponse],
) -> Callable[..., HttpResponse]:
    """``view`` with the time limit for those requests that only ``reads``, or that change something
    in one transaction. If the limit is reached the answer is that of ``timed_out``."""

    @functools.wraps(view)
    def limited_view(request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        try:
            if not reads(request):
                return view(request, *args, **options)
            with time_limit():
                response = view(request, *args, **options)
                if isinstance(response, TemplateResponse):
                    response.render()  # reads too
                return response
        except OperationalError as error:
            if not is_canceled(error):
                raise
        return timed_out(page, request)

    return limited_view


OF_SOME_ROWS = (
    *("confirm_action.html", "timed_out.html", "job/reveal.html", "bulkoperation/plan.html"),
    *("editing/edit.html", "editing/enqueue.html", "editing/choose.html"),
)
"""Those of these pages that are not about all queues and job types."""
CRUMBS_ARE_A_LIST = django.VERSION >= (6, 1)
"""Whether Django's stylesheet expects ``<ol>`` for breadcrumbs."""


def is_unconfirmed(request: HttpRequest) -> bool:
    """Whether the request changes nothing, because it only asks for a confirmation, or changes it
    in one transaction. A confirmed action has one for each chunk. Django's own pages confirm a
    deletion with ``post``; it may have many rows."""
    return "confirmed" not in request.POST and "post" not in request.POST


def _is_read(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


class ConsoleView(NamedTuple):
    """A page below the list of a model."""

    route: str
    view: str
    """Its path, as ``failures.group_page.group_view``. The first request imports its module."""
    name: str
    needs: tuple[str, ...] = ("view",)
    """Users for whom one of the methods ``has_<permission>_permission`` is false get a 403."""
    reads: Callable[[HttpRequest], bool] = _is_read
    """Whether a request only reads, and so has the time limit."""


def console_path(page: Any, view: ConsoleView) -> Any:
    """The route of a view, which is called with ``page`` and the request. The answer is never
    stored: Django's ``admin_view`` sends ``Cache-Control: no-store``."""

    def checked(request: HttpRequest, **arguments: Any) -> HttpResponse:
        if not all(getattr(page, f"has_{one}_permission")(request) for one in view.needs):
            raise PermissionDenied
        called = import_string(f"django_jobs.admin.{view.view}")
        response: HttpResponse = called(page, request, **arguments)
        if isinstance(response, TemplateResponse):
            response.render()
        return response

    view_of_site = page.admin_site.admin_view(checked)
    return path(view.route, limited(page, view_of_site, view.reads, timed_out), name=view.name)


def timed_out(page: Any, request: HttpRequest) -> HttpResponse:
    """The answer if PostgreSQL ended a statement because of its time limit."""
    seconds = conf().admin_statement_timeout
    response = console_page(
        page,
        request,
        "timed_out.html",
        title=_("This took too long"),
        seconds="" if seconds is None else number_format(seconds),
        address=request.get_full_path(),
        has_filter=bool(request.GET),
    )
    response.status_code = 503
    add_never_cache_headers(response)
    response.render()
    return response


def console_page(
    page: Any,
    request: HttpRequest,
    template: str,
    *,
    title: _StrOrPromise,
    media: Media | None = None,
    parents: Sequence[Crumb] | None = None,
    **context: Any,
) -> TemplateResponse:
    """The answer with a template that extends ``admin/django_jobs/console.html``.

    The breadcrumbs end with ``parents`` and the title. Without ``parents`` they lead to the list
    of the model of ``page``. The tab of that model is the current one.
    """
    if template not in OF_SOME_ROWS and scope_of(request.user) is not None:
        raise PermissionDenied(_("This page is about all queues and job types."))
    site, label = page.admin_site, page.opts.app_label
    request.current_app = site.name
    url = reverse("admin:app_list", args=[label], current_app=site.name)
    app = page.opts.app_config.verbose_name, url
    everything = {
        **site.each_context(request),
        "title": title,
        "opts": page.opts,
        "media": page.media if media is None else page.media + media,
        "crumbs": [app, *([list_crumb(page)] if parents is None else parents)],
        "crumbs_are_a_list": CRUMBS_ARE_A_LIST,
        **context,
    }
    return TemplateResponse(request, f"admin/django_jobs/{template}", everything)


def list_crumb(page: Any) -> Crumb:
    name = f"admin:{page.opts.app_label}_{page.opts.model_name}_changelist"
    label = capfirst(str(page.opts.verbose_name_plural))
    return label, reverse(name, current_app=page.admin_site.name)
