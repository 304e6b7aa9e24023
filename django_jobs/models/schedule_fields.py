"""The columns of schedules that Django has no field for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _


class DatesField(models.Field):  # type: ignore[type-arg]
    """A list of dates, in order and each once. Django's ``ArrayField`` would need
    ``django.contrib.postgres`` among the installed apps.

    Dates that Python cannot represent are left out when a row is read. It is selected as JSON, so
    that one of them does not fail the whole query.
    """

    def db_type(self, connection: Any) -> str:
        return "date[]"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"to_jsonb({sql})", params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> list[date]:
        if not value or value == "[]":
            return []
        return in_order(json.loads(value) if isinstance(value, str) else value)

    def to_python(self, value: Any) -> list[date]:
        values = value.split() if isinstance(value, str) else value or ()
        if None in map(_as_date, values):
            raise ValidationError(_("Enter dates, such as 2026-12-25."))
        return in_order(values)

    def value_to_string(self, obj: Any) -> str:
        return " ".join(map(str, self.value_from_object(obj)))


def in_order(values: Iterable[Any]) -> list[date]:
    """The dates among ``values``, which may be texts."""
    return sorted({day for day in map(_as_date, values) if day is not None})


def _as_date(value: Any) -> date | None:
    if isinstance(value, date):
        return None if isinstance(value, datetime) else value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return None


class CountField(models.PositiveIntegerField):  # type: ignore[type-arg]
    """A number that only statements raise. ``save()`` of a row that exists keeps what is stored, so
    that a row that was read before loses no count; ``QuerySet.update()`` writes it."""

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else models.F(self.attname)
