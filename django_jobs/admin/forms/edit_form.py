"""The form of a row, which does not set back what others saved while it was open, and makes nothing
twice if its button is clicked twice."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.crypto import salted_hmac
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from ...models.named_row import NEEDS
from ..base.actions import ModelAdmin, log_change
from ..base.formatting import change_url


class _StateField(forms.CharField):
    """Is sent back as it was, and is no change of the user."""

    widget = forms.HiddenInput

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


# ModelForm is generic in the stubs only; at run time Django's class takes no parameter.
class EditForm(forms.ModelForm):  # type: ignore[type-arg]
    """Carries the state that its row had when the form was opened. A field that the user left alone
    has the value of then, and would count as a change of theirs: so nothing is saved if the row has
    another state. What the form says replaces it when it is sent once more."""

    opened = _StateField(required=False)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._now = "" if self.instance.pk is None else self._state()
        self.initial["opened"] = self._now

    def columns(self) -> Iterable[str]:
        """The columns that this form may change."""
        own = {field.name for field in self._meta.model._meta.concrete_fields}
        return own & self.fields.keys()

    def _state(self) -> str:
        """A keyed digest, because some of the values are not for everybody who may edit."""
        values = {name: getattr(self.instance, name) for name in sorted(self.columns())}
        text = json.dumps(values, default=str)
        return salted_hmac(__name__, text, algorithm="sha256").hexdigest()

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or self.cleaned_data
        for name, needed in NEEDS.items():
            if name not in cleaned or cleaned.get(needed, "") is not None:
                continue
            if cleaned[name] != self._meta.model._meta.get_field(name).get_default():
                text = _("This needs a value of “%(field)s”.")
                self.add_error(name, text % {"field": capfirst(self[needed].label)})
        if self.cleaned_data.get("opened") not in ("", None, self._now):
            labels = [str(capfirst(self[name].label)) for name in self.changed_data]
            text = _(
                "It was changed since this form was opened, and nothing was saved. These fields "
                "differ from what is stored now: %(fields)s. Save again to store what they say."
            )
            self.add_error(None, text % {"fields": ", ".join(labels)})
            sent: Any = self.data
            again = sent.copy()  # a QueryDict: what was sent cannot be changed
            again[self.add_prefix("opened")] = self._now
            self.data = again
        return cleaned


NUMBER = "form_number"
KEPT_SECONDS = 3600.0
"""How long a second click makes no second job or run, also if the first has ended."""


def number_field() -> forms.CharField:
    """A hidden field with a number that no other form has."""
    return forms.CharField(
        required=False,
        max_length=32,
        widget=forms.HiddenInput,
        initial=lambda: secrets.token_hex(16),
    )


def key_of_form(given: Mapping[str, Any]) -> str | None:
    """An idempotency key for what a valid form was given. Another one if it is sent again with
    other values; none without a number."""
    if not given[NUMBER]:
        return None
    text = json.dumps(given, sort_keys=True, default=str)
    return f"form-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def made_by_hand(
    page: ModelAdmin, request: HttpRequest, row: Any, how: str, made: str, held: str
) -> HttpResponse:
    """Go to the page of a new row with the message ``made``; if another has its key, ``held``."""
    if row.deduplicated:
        page.message_user(request, held, messages.WARNING)
    else:
        log_change(request, row, f"{how} by hand", ADDITION)
        page.message_user(request, made, messages.SUCCESS)
    return HttpResponseRedirect(change_url(page.admin_site, type(row), row.pk))
