"""Fields for values that JSON lacks, which the payloads of some job types have encoded."""

from __future__ import annotations

import json
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from ...domain.payload import Coding, is_same

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

NOTHING = object()
"""In place of a stored value, where there is none."""


def coded_kind(stored: Any, coding: Coding) -> Any:
    """The class of a stored value, if it is one of :data:`CODED`."""
    kind = type(coding.decoded(stored))
    return kind if kind in CODED else None


def coded(kind: Any, field: forms.Field, coding: Coding) -> Built:
    """A value that is shown and written as a person does, and stored encoded."""
    make = CODED[kind]

    def read(typed: Any) -> Any:
        return coding.encode(typed if make else kind.fromisoformat(typed))

    def show(stored: Any) -> Any:
        value = coding.decoded(stored)
        return value.isoformat() if isinstance(value, date | time) else value

    return make() if make else field, read, show


def plain_kind(annotation: Any) -> tuple[Any, bool]:
    """A type without ``Optional``, ``Annotated`` and ``NewType``, and whether it allows None."""
    while True:
        origin = typing.get_origin(annotation)
        if origin is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            break
    if origin in (typing.Union, types.UnionType):
        kinds = typing.get_args(annotation)
        others = [kind for kind in kinds if kind is not type(None)]
        if len(others) == 1 and len(kinds) == 2:
            return plain_kind(others[0])[0], True
    return annotation, False


def encoded(typed: Any, stored: Any, annotation: Any, coding: Coding) -> Any:
    """Typed JSON, as it is stored where dates and the like are encoded.

    A text is what the value in its place in ``stored`` is, or what ``annotation`` says. What is
    typed as it was shown stays as it is stored. Raises ``ValidationError`` for a text that is none.
    """
    if stored is not NOTHING and is_same(coding.as_text(stored), typed):
        return stored
    if isinstance(typed, dict):
        return typed if typed.keys() == coding.keys else _object(typed, stored, annotation, coding)
    if isinstance(typed, list):
        return _list(typed, stored, annotation, coding)
    kind = coded_kind(stored, coding) or plain_kind(annotation)[0]
    is_number = isinstance(typed, int | float) and not isinstance(typed, bool)
    is_written = isinstance(typed, str) or (is_number and kind is Decimal)
    if is_written and isinstance(kind, type) and kind in CODED:
        return coding.encode(_parsed(kind, str(typed)))
    return typed


def _object(typed: dict[str, Any], stored: Any, annotation: Any, coding: Coding) -> dict[str, Any]:
    is_object = isinstance(stored, dict) and stored.keys() != coding.keys
    before: Mapping[str, Any] = stored if is_object else {}
    example = _example(before.values(), coding)
    made = {}
    for key, item in typed.items():
        inner = _of_items(annotation, key)
        try:
            made[key] = encoded(item, before.get(key, example), inner, coding)
        except ValidationError:  # one that is new need not be like the others
            if key in before or inner is not Any:
                raise
            made[key] = item
    return made


def _list(typed: list[Any], stored: Any, annotation: Any, coding: Coding) -> list[Any]:
    """Those that are as before, also in another place, are as they were stored."""
    before: list[Any] = stored if isinstance(stored, list) else []
    shown = [_text(coding.as_text(item)) for item in before]
    same = {at: at for at, item in enumerate(typed[: len(shown)]) if _text(item) == shown[at]}
    others: dict[str, list[int]] = defaultdict(list)
    for at in reversed(range(len(shown))):
        if at not in same:
            others[shown[at]].append(at)
    for at, item in enumerate(typed):
        if at not in same and (found := others.get(_text(item))):
            same[at] = found.pop()
    taken, example = set(same.values()), _example(before, coding)
    made = []
    for at, item in enumerate(typed):
        if at in same:
            made.append(before[same[at]])
        else:
            is_changed = at < len(before) and at not in taken
            like = before[at] if is_changed else example
            made.append(encoded(item, like, _of_items(annotation, at), coding))
    return made


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _example(values: Iterable[Any], coding: Coding) -> Any:
    """One of the stored values, if all are of the same class of :data:`CODED`."""
    values = list(values)
    kinds = {coded_kind(value, coding) for value in values}
    return values[0] if len(kinds) == 1 and None not in kinds else NOTHING


def _of_items(annotation: Any, key: Any) -> Any:
    """What an annotation says of the item ``key`` of an object or a list."""
    kind = plain_kind(annotation)[0]
    if typing.is_typeddict(kind):
        return typing.get_type_hints(kind).get(key, Any)
    origin, of_items = typing.get_origin(kind), typing.get_args(kind)
    if not of_items or not isinstance(origin, type):
        return Any
    if issubclass(origin, Mapping):
        return of_items[-1]
    if issubclass(origin, tuple) and of_items[-1] is not Ellipsis:
        return of_items[key] if isinstance(key, int) and key < len(of_items) else Any
    return of_items[0] if issubclass(origin, Iterable) else Any


def _parsed(kind: Any, text: str) -> Any:
    if kind in MOMENTS:
        try:
            return kind.fromisoformat(text)
        except ValueError:
            raise ValidationError(f"{text[:40]}: {MOMENTS[kind][1]}") from None
    make = CODED[kind]
    assert make is not None
    try:
        return make().clean(text)
    except ValidationError as error:
        raise ValidationError(f"{text[:40]}: {' '.join(error.messages)}") from None
