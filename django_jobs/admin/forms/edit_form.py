"""The form of a row, which does not set back what others saved while it was open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django import forms
from django.utils.crypto import salted_hmac
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _


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
        cleaned = super().clean()
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
