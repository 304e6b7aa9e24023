"""The backoff and the retention of a queue, each as fields of its form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.utils.html import escape
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.backoff import Backoff
from ...domain.retention import kept_by_status

Values = dict[str, Any]

STATUSES = ("succeeded", "cancelled", "dead")
NUMBERS_OF = {
    "exponential": ("base", "factor", "cap", "jitter"),
    "polynomial": ("base", "exponent", "cap", "jitter"),
    "linear": ("base", "cap", "jitter"),
    "fixed": ("base", "jitter"),
}
"""The numbers that a curve has."""
FOR_EVER = "None"
LONGEST_TEXT = 20


class RuleFields:
    """A column with JSON as several fields."""

    column: ClassVar[str]
    fields: ClassVar[tuple[str, ...]]

    def names(self, stored: Any) -> tuple[str, ...]:
        """The fields that edit this value: the column itself, as text, if others cannot show it."""
        return (self.column,) if self.values(stored) is None else self.fields

    def values(self, stored: Any) -> Values | None:
        """The values of the fields; None if what is stored would not come out of them again."""
        if stored is None:
            return {}
        if not isinstance(stored, dict):
            return None
        try:
            values = self._show(stored)
            same = self._meaning(self.stored(values, ())) == self._meaning(stored)
        except (TypeError, ValueError, ValidationError):
            return None
        return values if same else None

    def stored(self, values: Values, changed: Iterable[str]) -> Values | None:
        """What to store for these values, of which some were ``changed`` by the user. Raises
        ``ValidationError`` with the problems of each field."""
        raise NotImplementedError

    def problem_of(self, stored: Any) -> str | None:
        """What is wrong with a value that was written as JSON; None if nothing is."""
        if not isinstance(stored, dict):
            return _("It is not an object.")
        try:
            self._meaning(stored)
        except (TypeError, ValueError) as error:
            return _sentence(str(error).removeprefix("Backoff.__init__() "))
        return None

    def _show(self, stored: Values) -> Values:
        raise NotImplementedError

    def _meaning(self, stored: Values | None) -> Any:
        raise NotImplementedError


class BackoffFields(RuleFields):
    """The curve and its numbers. Without a curve it is the default."""

    column = "backoff"
    fields = tuple(
        f"backoff_{name}" for name in ("curve", "base", "factor", "exponent", "cap", "jitter")
    )

    def stored(self, values: Values, changed: Iterable[str]) -> Values | None:
        curve = values.get("backoff_curve") or ""
        numbers = NUMBERS_OF.get(curve, ())
        used = {f"backoff_{name}" for name in ("curve", *numbers)}
        unused = [name for name in changed if name not in used and values.get(name) is not None]
        if unused:
            text = _("The curve does not use this. Leave it empty.")
            raise ValidationError(dict.fromkeys(unused, text))
        if not curve:
            return None
        given: Values = {name: values.get(f"backoff_{name}") for name in numbers}
        given = {name: _whole(value) for name, value in given.items() if value is not None}
        if curve != "exponential" and "base" not in given:
            raise ValidationError({"backoff_base": _("This curve needs a number of seconds.")})
        first = (given["base"],) if "base" in given else ()
        try:
            rule: Backoff = getattr(Backoff, curve)(*first)
            return replace(rule, **given).as_json()
        except ValueError as error:
            number = str(error).split()[1]  # "backoff cap must be ..."
            raise ValidationError({f"backoff_{number}": _sentence(str(error))}) from None

    def _show(self, stored: Values) -> Values:
        rule = Backoff(**stored)
        names = ("curve", *NUMBERS_OF[rule.curve])
        return {f"backoff_{name}": getattr(rule, name) for name in names}

    def _meaning(self, stored: Values | None) -> Backoff | None:
        return None if stored is None else Backoff(**stored)


class RetentionFields(RuleFields):
    """An age for each status, and a number of dead jobs. An empty one is as the setting says."""

    column = "retention"
    fields = (*(f"retention_{status}" for status in STATUSES), "retention_number")

    def stored(self, values: Values, changed: Iterable[str]) -> Values | None:
        kept: Values = {}
        for status in STATUSES:
            if text := values.get(f"retention_{status}"):
                kept[status] = _age(text)
        problems = {f"retention_{status}": _problem(status, kept[status]) for status in kept}
        if (number := values.get("retention_number")) is not None:
            problems["retention_number"] = _problem("dead", {"number": number})
            age = {"age": kept["dead"]} if "dead" in kept else {}
            kept["dead"] = {**age, "number": number}
        if found := {name: problem for name, problem in problems.items() if problem}:
            raise ValidationError(found)
        return kept or None

    def _show(self, stored: Values) -> Values:
        shown: Values = {}
        for status, value in stored.items():
            age: Any = value
            if isinstance(value, dict):  # of dead jobs
                age = value.get("age")
                shown["retention_number"] = value.get("number")
                if "age" not in value and value.get("number") is not None:
                    continue
            shown[f"retention_{status}"] = FOR_EVER if age is None else str(age).strip()
        if any(len(str(text)) > LONGEST_TEXT for text in shown.values()):
            raise ValueError("longer than its field")
        return shown

    def _meaning(self, stored: Values | None) -> Any:
        return kept_by_status(stored or {})

    def of_settings(self, status: str) -> str:
        """What the setting says of a status, as HTML."""
        value = conf().retention.get(status)
        if isinstance(value, Mapping):
            return escape(json.dumps(dict(value), default=str))
        return escape(FOR_EVER if value is None else str(value))


def _age(text: str) -> Any:
    """As the setting writes it: a number of seconds, a text such as ``7d``, or None."""
    if text.lower() == FOR_EVER.lower():
        return None
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return _whole(float(text))
    return text


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


def _problem(status: str, value: Any) -> str:
    try:
        kept_by_status({status: value})
    except ValueError as error:
        return _sentence(str(error))
    return ""


def _sentence(problem: str) -> str:
    return str(capfirst(problem)).rstrip(".") + "."


BACKOFF, RETENTION = BackoffFields(), RetentionFields()
RULES: tuple[RuleFields, ...] = (BACKOFF, RETENTION)
