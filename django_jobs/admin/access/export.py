"""Sends the rows of a list as a file, CSV or a JSON object a line, as the user may see them."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from io import StringIO
from itertools import chain
from math import isfinite
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.admin.views.main import PAGE_VAR
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponseBadRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from ...models.fields import DistantTime
from ..base.actions import log_together
from ..base.json_display import LONGEST, as_text, coding_of, document
from ..base.search import SEE_PAYLOADS
from .errors import HidesErrors

MOST = 100_000
"""Rows of a file."""
CHUNK = 200
"""Rows that are in memory at once."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""How a text begins that a spreadsheet takes for a formula. CSV has an apostrophe before it."""

Rows = Iterable[dict[str, Any]]


def export_list(page: Any, request: HttpRequest, changes: Any) -> HttpResponseBase:
    """The rows of the list ``changes``, on all its pages."""
    ids = getattr(changes.paginator, "found", None)
    if ids is None:
        ids = list(changes.queryset.values_list("pk", flat=True)[: MOST + 1])
    # The list says below and above it what it did not search.
    search_notes = getattr(getattr(request, "search", None), "notes", ())
    is_cut = len(ids) > MOST or bool(changes.filter_notes or search_notes)
    may_see = request.user.has_perm(SEE_PAYLOADS)
    columns = [name for name in page.exported if may_see or name not in page.unread]
    ids = ids[:MOST]
    parts = (
        _rows(page, request, columns, ids[start : start + CHUNK])
        for start in range(0, len(ids), CHUNK)
    )
    names = [_named(name) for name in columns]
    return export(page, request, f"{page.opts.model_name}s", names, parts, len(ids), is_cut=is_cut)


def export(
    page: Any,
    request: HttpRequest,
    what: str,
    columns: Sequence[str],
    parts: Iterable[Rows],
    number: int,
    *,
    is_cut: bool,
) -> HttpResponseBase:
    """The file, whose name begins with ``what`` and has the ``number`` of rows if there are more.
    The history says who asked for it."""
    if (kind := request.POST["export"]) not in FORMATS:
        text = _("The format of an export is %(formats)s.") % {"formats": " / ".join(FORMATS)}
        return HttpResponseBadRequest(text, content_type="text/plain; charset=utf-8")
    asked = [
        f"{name}={value}"
        for name, values in request.GET.lists()
        for value in values
        if name != PAGE_VAR
    ]
    message = f"exported as {kind}: {', '.join(asked) or 'all'}"
    log_together(request, page.model, f"{number:,} {what}", message)
    content_type, lines = FORMATS[kind]
    body = lines(columns, parts)
    response = StreamingHttpResponse(
        _in_turn(body) if isinstance(request, ASGIRequest) else body, content_type=content_type
    )
    name = f"{what}-only-{number}" if is_cut else what
    response["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    return response


def _rows(page: Any, request: HttpRequest, columns: Sequence[str], ids: Sequence[int]) -> Rows:
    documents = [name for name in columns if name in page.unread]
    annotated = {*documents, *page.annotations()}
    rows = page.get_queryset(request).defer(None)
    rows = rows.only(*(name for name in columns if name not in annotated))
    for name in documents:
        rows = rows.annotate(**as_text(name, LONGEST))
    found = rows.in_bulk(ids)
    for row in (found[pk] for pk in ids if pk in found):  # others were deleted
        if isinstance(page, HidesErrors):
            page.limit_errors(row, request.user)
        yield {
            _named(name): _document(row, name) if name in documents else plain(_value(row, name))
            for name in columns
        }


def _named(column: str) -> str:
    return column.replace("__", "_")


def _value(row: Any, column: str) -> Any:
    for name in column.split("__"):
        row = getattr(row, name)
    return row


def _document(row: Any, name: str) -> Any:
    """The value of a JSON column, or the note of its page why it is not shown."""
    text, length = getattr(row, f"{name}_text"), getattr(row, f"{name}_length")
    if length is None:
        return None
    shown = document(name, text, length, coding_of(row.job_type))
    # Python reads 1e999 as Infinity, which JSON does not have.
    return shown.note or json.loads(shown.text, parse_constant=str)


def plain(value: Any) -> Any:
    """A value of a column as JSON has it."""
    if isinstance(value, datetime):
        return value.text if isinstance(value, DistantTime) else value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def _csv(columns: Sequence[str], parts: Iterable[Rows]) -> Iterator[bytes]:
    for rows in chain([[dict(zip(columns, columns, strict=True))]], parts):
        text = StringIO()
        csv.writer(text).writerows(map(_cell, row.values()) for row in rows)
        yield text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return json.dumps(value, ensure_ascii=False) if value is not None else ""


def _jsonl(columns: Sequence[str], parts: Iterable[Rows]) -> Iterator[bytes]:
    for rows in parts:
        lines = (json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows)
        yield "".join(f"{line}\n" for line in lines).encode()


async def _in_turn(body: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The body for ASGI, where Django would collect the whole of a plain iterator first."""
    while (part := await sync_to_async(lambda: next(body, None))()) is not None:
        yield part


FORMATS: dict[str, tuple[str, Callable[[Sequence[str], Iterable[Rows]], Iterator[bytes]]]] = {
    "csv": ("text/csv; charset=utf-8", _csv),
    "jsonl": ("application/jsonl; charset=utf-8", _jsonl),
}
