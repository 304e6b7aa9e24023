"""Fields for values that JSON lacks, which the payloads of some job types have encoded."""

from __future__ import annotations

import typing
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms
from django.utils.translation import gettext_lazy as _

from ...domain.payload import Coding

if typing.TYPE_CHECKING:
    from django.utils.functional import _StrOrPromise

Built = tuple[forms.Field, Callable[[Any], Any], Callable[[Any], Any]]
"""A field, what makes the value of a payload from the typed one, and what shows a stored one."""

MOMENTS: dict[Any, tuple[Any, _StrOrPromise]] = {
    date: (date, _("A date such as 2026-03-29.")),
    datetime: (datetime, _("A time such as 2026-03-29T02:30:00+01:00.")),
    time: (time, _("A time of day such as 02:30.")),
}
CODED: dict[Any, Callable[[], forms.Field] | None] = {
    **dict.fromkeys(MOMENTS),
    UUID: forms.UUIDField,
    Decimal: forms.DecimalField,
}
"""What may be encoded, with its field; None: the one of handlers whose payloads have text."""


def coded_kind(stored: Any, coding: Coding) -> Any:
    """The class of a stored value, if it is one of :data:`CODED`."""
    kind = type(_decoded(stored, coding))
    return kind if kind in CODED else None


def _decoded(stored: Any, coding: Coding) -> Any:
    try:
        return coding.decode(stored)
    except Exception:  # it was not written by the code that reads it
        return stored


def coded(kind: Any, field: forms.Field, coding: Coding) -> Built:
    """A value that is shown and written as a person does, and stored encoded."""
    make = CODED[kind]

    def read(typed: Any) -> Any:
        return coding.encode(typed if make else kind.fromisoformat(typed))

    def show(stored: Any) -> Any:
        value = _decoded(stored, coding)
        return value.isoformat() if isinstance(value, date | time) else value

    return make() if make else field, read, show
