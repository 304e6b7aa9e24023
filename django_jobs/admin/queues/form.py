"""The form of a queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from ...domain.backoff import Backoff
from ...domain.numbers import STRICT_WEIGHT
from ...models import Queue
from ...separators import number_text
from ..forms.edit_form import EditForm
from .rule_fields import BACKOFF, LONGEST_TEXT, RETENTION, RULES, STATUSES, RuleFields

BACKOFF_EXAMPLE = '{"curve": "fixed", "base": 5}'
RETENTION_EXAMPLE = '{"succeeded": "1d", "dead": {"age": "180d", "number": 10000}}'
KEPT = _("The fields for it cannot show this value. Saving keeps it as long as it is not changed "
         "here; empty removes it. For example: {}")  # fmt: skip
CURVES = (
    ("", _("default: exponential, from 2 s to 1 h")),
    ("exponential", _("exponential: each wait is longer by a factor")),
    ("polynomial", _("polynomial: the number of failures to a power")),
    ("linear", _("linear: each wait is longer by the first one")),
    ("fixed", _("fixed: the same wait each time")),
)


def _number(label: Any, help_text: Any) -> forms.FloatField:
    return forms.FloatField(label=label, help_text=help_text, required=False)


def _age(label: Any) -> forms.CharField:
    return forms.CharField(label=label, required=False, max_length=LONGEST_TEXT)


class QueueForm(EditForm):
    """Refuses settings that would otherwise fail in a worker."""

    backoff_curve = forms.ChoiceField(label=_("Backoff"), choices=CURVES, required=False)
    backoff_base = _number(
        _("First wait"), _("Seconds. Empty: 2 for an exponential curve; the others need it.")
    )
    backoff_factor = _number(_("Factor"), _("Of an exponential curve. Empty: 2."))
    backoff_exponent = _number(_("Exponent"), _("Of a polynomial curve. Empty: 2."))
    backoff_cap = _number(_("Longest wait"), _("Seconds. Empty: 3,600. A fixed wait has none."))
    backoff_jitter = _number(
        _("Jitter"),
        _("The share of a wait that is random, from 0 to 1. Empty: 0.5, for a fixed wait 0."),
    )
    retention_succeeded = _age(_("Keep succeeded jobs"))
    retention_cancelled = _age(_("Keep cancelled jobs"))
    retention_dead = _age(_("Keep dead jobs"))
    retention_number = forms.IntegerField(
        label=_("Most dead jobs"),
        required=False,
        help_text=_("Only the newest are kept. With a number, an empty age is no limit."),
    )

    class Meta:
        model = Queue
        fields = (
            "name",
            "max_concurrency",
            "max_backlog",
            "on_full",
            "priority_weight",
            "max_attempts",
            "timeout",
            "backoff",
            "retention",
            "slo_seconds",
            "slo_since",
            "slo_target",
        )
        widgets: ClassVar[dict[str, forms.Widget]] = {
            "backoff": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
            "retention": forms.Textarea(attrs={"rows": 3, "class": "vLargeTextField"}),
        }
        help_texts: ClassVar[dict[str, Any]] = {
            "backoff": format_lazy(KEPT, BACKOFF_EXAMPLE),
            "retention": format_lazy(KEPT, RETENTION_EXAMPLE),
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for rule in RULES:
            values = rule.values(getattr(self.instance, rule.column))
            for name in rule.fields if values is None else (rule.column,):
                self.fields.pop(name, None)
            self.initial = {**(values or {}), **self.initial}
        for status in STATUSES:
            if field := self.fields.get(f"retention_{status}"):
                text = _("Such as 12h, 7d or 0; None: for ever. Empty: %(value)s, by the setting.")
                field.help_text = text % {"value": RETENTION.of_settings(status)}

    def columns(self) -> Iterable[str]:
        return {*super().columns(), *(rule.column for rule in RULES)}

    @property
    def changed_columns(self) -> Sequence[str]:
        column_of = {name: rule.column for rule in RULES for name in rule.fields}
        return list(dict.fromkeys(column_of.get(name, name) for name in self.changed_data))

    def clean_priority_weight(self) -> float:
        weight: float = self.cleaned_data["priority_weight"]
        if weight > STRICT_WEIGHT:
            raise ValidationError(
                _("At most %(limit)s.") % {"limit": number_text(STRICT_WEIGHT, ",.0f")}
            )
        return weight

    def clean_backoff(self) -> Any:
        rule = self._written(BACKOFF, BACKOFF_EXAMPLE)
        return Backoff(**rule).as_json() if rule and "backoff" in self.changed_data else rule

    def clean_retention(self) -> Any:
        return self._written(RETENTION, RETENTION_EXAMPLE)

    def _written(self, rule: RuleFields, example: str) -> Any:
        value = self.cleaned_data[rule.column]
        if value is None or rule.column not in self.changed_data:
            return value
        if problem := rule.problem_of(value):
            text = _("%(problem)s Enter an object such as %(example)s.")
            raise ValidationError(text % {"problem": problem, "example": example})
        return value

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        for rule in RULES:
            changed = [name for name in rule.fields if name in self.changed_data]
            if changed and not any(name in self.errors for name in rule.fields):
                try:
                    setattr(self.instance, rule.column, rule.stored(self.cleaned_data, changed))
                except ValidationError as error:
                    self.add_error(None, error)
        return cleaned
