"""Times in a form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.utils import timezone


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
