"""Displays JSON columns: any content, bounded in size, with secrets masked."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import Case, F, Model, TextField, Value, When
from django.db.models.functions import Cast, Length
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ... import registry
from ...conf import conf
from ...domain.payload import Coding
from ...separators import number_text

LARGEST = 4_000_000
"""Characters. Longer JSON is not read, because a part of it could not be masked."""
LONGEST = 100_000
"""Characters to show."""
DEEPEST = 100
"""Levels to show. Enqueue allows 64: a row with more was written by SQL."""


class Document(NamedTuple):
    """A JSON column ready for display: ``text``, or a ``note`` why there is none."""

    label: str
    text: str = ""
    note: str = ""

    @property
    def html(self) -> str:
        text = '<pre class="jobs-text" tabindex="0">{}</pre>' if self.text else ""
        note = '<span class="jobs-quiet">{}</span>' if self.note else ""
        return format_html(text + note, *filter(None, (self.text, self.note)))


def texts(row: Model, columns: Iterable[str]) -> dict[str, tuple[str | None, int | None]]:
    """Each column as (JSON text, length); the text is None where it is NULL or too long.

    Read as text: the ORM raises on numbers beyond 4,300 digits and on deep nesting, and such a
    row may be in the table however strict ``enqueue`` is.
    """
    names = list(columns)
    selected: dict[str, Any] = {}
    for name in names:
        selected |= as_text(name, LARGEST)
    this_row = type(row)._base_manager.using(row._state.db).filter(pk=row.pk)
    values = this_row.annotate(**selected).values(*selected).first() or {}
    return {name: (values.get(f"{name}_text"), values.get(f"{name}_length")) for name in names}


def as_text(column: str, largest: int) -> dict[str, Any]:
    """Annotations that read a JSON column as ``<column>_text`` and ``<column>_length``. The text is
    None if the column is NULL or longer than ``largest`` characters."""
    text = Cast(F(column), TextField())
    short = When(**{f"{column}_length__lte": largest}, then=text)
    return {
        f"{column}_length": Length(text),
        f"{column}_text": Case(short, default=Value(None), output_field=TextField()),
    }


def coding_of(job_type: str) -> Coding | None:
    """How the jobs of this type have dates and the like in their JSON, if they do."""
    found = registry.find(job_type)
    return None if found is None else getattr(found.handler, "coding", None)


def document(
    label: str, text: str | None, length: int | None, coding: Coding | None = None
) -> Document:
    """A JSON text, indented and masked. What is encoded is shown as a person writes it."""
    if length is None:
        return Document(label=label, note=_("none"))
    if text is None:
        note = _("too large to show: %(length)s characters") % {"length": number_text(length)}
        return Document(label=label, note=note)
    try:
        value = masked(json.loads(text))
        value = value if coding is None else coding.as_text(value)
        indented = json.dumps(value, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        note = _("cannot be shown: Python cannot read this JSON (%(error)s, %(length)s characters)")
        return Document(
            label=label, note=note % {"error": type(error).__name__, "length": number_text(length)}
        )
    if len(indented) > LONGEST:
        note = _("cut after %(shown)s of %(length)s characters") % {
            "shown": number_text(LONGEST),
            "length": number_text(len(indented)),
        }
        return Document(label=label, text=indented[:LONGEST], note=note)
    return Document(label=label, text=indented)


def hidden(label: str) -> Document:
    """A placeholder for data that the user may not see."""
    note = _("Hidden: requires the permission to see payloads and results in full.")
    return Document(label=label, note=note)


def masked(value: Any) -> Any:
    """``value`` with the values under secret names replaced, and what is nested too deep."""
    from ...domain import run_log

    too_deep = _("not shown: nested deeper than %(levels)s levels") % {"levels": DEEPEST}
    return run_log.masked(value, conf().redact_keys, DEEPEST, too_deep)


def object_of(text: str | None) -> dict[str, Any]:
    """The JSON object in ``text``, or an empty one if it is missing or invalid."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
