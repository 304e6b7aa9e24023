"""Form fields: texts, JSON and times."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _


def text_field(label: Any, most: int, **options: Any) -> forms.CharField:
    """A field for at most so many characters, as wide as those of Django's admin."""
    widget = forms.TextInput(attrs={"class": "vTextField"})
    return forms.CharField(label=label, max_length=most, widget=widget, **options)


def reason_field(help_text: Any, *, required: bool = False) -> forms.CharField:
    return text_field(_("Reason"), 300, help_text=help_text, required=required)


def key_field(help_text: Any) -> forms.CharField:
    return text_field(_("Idempotency key"), 200, help_text=help_text, required=False)


class JsonText(forms.CharField):
    """JSON, kept as typed."""

    widget = forms.Textarea(attrs={"rows": 2, "class": "vLargeTextField jobs-json"})
    encoded: Callable[[Any], Any] | None = None
    """What makes the value of a payload from typed JSON. It may raise ``ValidationError``."""

    def clean(self, value: Any) -> str:
        text: str = super().clean(value)
        if text:
            try:
                typed = json.loads(text, parse_constant=_no_constant)
            except (ValueError, RecursionError) as error:
                raise ValidationError(
                    _("This is not JSON: %(problem)s") % {"problem": error}
                ) from None
            if self.encoded is not None:
                self.encoded(typed)
        return text


class JsonObjectText(JsonText):
    """A JSON object, kept as text."""

    def clean(self, value: Any) -> str:
        text = super().clean(value)
        if text and not isinstance(json.loads(text), dict):
            raise ValidationError(_('Enter an object such as {"name": 1}.'))
        return text


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _site_zone() -> str:
    return str(timezone.get_current_timezone())


site_zone = lazy(_site_zone, str)
"""The time zone of times entered in the admin."""


class MomentWidget(forms.SplitDateTimeWidget):
    """A date and a time, with the controls of the browser."""

    def __init__(self) -> None:
        super().__init__(
            date_attrs={"type": "date", "aria-label": str(_("Date"))},
            time_attrs={"type": "time", "step": "1", "aria-label": str(_("Time"))},
            date_format="%Y-%m-%d",
            time_format="%H:%M:%S",
        )


class MomentField(forms.SplitDateTimeField):
    """A time that comes twice when clocks go back is the first of the two. Django refuses it, and
    with it each change of a row that has such a time."""

    def compress(self, data_list: Any) -> datetime | None:
        if len(data_list) == 2 and all(data_list):
            at = timezone.make_aware(datetime.combine(*data_list))
            first, second = (at.replace(fold=fold).utcoffset() for fold in (0, 1))
            if first is not None and second is not None and first > second:
                return at.astimezone(UTC)  # in its own zone it equals no time of another one
        return super().compress(data_list)


class UntilField(MomentField):
    def __init__(self) -> None:
        text = _("Optional. A worker resumes it then. In the time zone {}.")
        super().__init__(
            label=_("Until"),
            required=False,
            widget=MomentWidget(),
            help_text=format_lazy(text, site_zone()),
        )

    def clean(self, value: Any) -> datetime | None:
        until: datetime | None = super().clean(value)
        if until is not None and until <= timezone.now():
            raise ValidationError(_("Enter a time that has not passed."))
        return until
