"""The form of a job: the arguments of its handler, queue, priority and due time."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...api.job_type import JobType
from ...domain.numbers import HIGHEST_PRIORITY, LONGEST_AGE, LOWEST_PRIORITY
from ...domain.run_log import MASK
from ...lifecycle.scope import Scope
from ...models import Queue
from ...separators import number_text
from ..forms.arguments import MORE, add_arguments, arguments_of, show_arguments, typed_payload
from ..forms.fields import MomentField, MomentWidget, site_zone


class JobForm(forms.Form):
    """What a job is to be. ``stored`` are the arguments that it has; secrets among them are shown
    empty, and stay unless they are replaced. None: the user may not see them, and they stay.
    ``taken`` are arguments that are results of other steps. They have no field, because what is
    stored of them has no effect. The queues are those of ``scope``."""

    def __init__(
        self,
        job_type: JobType[..., Any],
        data: Any = None,
        *,
        stored: Mapping[str, Any] | None,
        taken: Collection[str] = (),
        queue: str | None = None,
        scope: Scope | None = None,
        **initial: Any,
    ) -> None:
        super().__init__(data, initial=initial)
        self.job_type = job_type
        self.stored = stored
        left_out = set(taken).difference(stored or ())
        arguments = [] if stored is None else arguments_of(job_type, stored)
        self.arguments = [one for one in arguments if one.name not in left_out]
        if stored is not None:
            add_arguments(self.fields, job_type, self.arguments)
            show_arguments(self, job_type, self.arguments, stored, stored)
        self._add_options(queue, scope or Scope())

    def _add_options(self, queue: str | None, scope: Scope) -> None:
        names = list(filter(scope.has_queue, Queue.objects.names()))
        choices = [(name, name) for name in names]
        is_declared = queue is None and scope.has_queue(self.job_type.queue)
        if is_declared:
            declared = gettext("%(queue)s, as the job type declares") % {
                "queue": self.job_type.queue
            }
            choices.insert(0, ("", declared))
        elif queue is not None and queue not in names:
            choices.insert(0, (queue, gettext("%(name)s (unknown)") % {"name": queue}))
        self.fields["queue"] = forms.ChoiceField(
            label=_("Queue"), choices=choices, required=not is_declared, initial=queue
        )
        self.fields["priority"] = forms.IntegerField(
            label=_("Priority"),
            min_value=LOWEST_PRIORITY,
            max_value=HIGHEST_PRIORITY,
            required=queue is not None,
            help_text=_("From -100 to 100. Jobs with a higher priority start sooner."),
            widget=forms.NumberInput(attrs={"class": "vIntegerField"}),
        )
        self.fields["run_at"] = MomentField(
            label=_("Due"),
            required=False,
            widget=MomentWidget(),
            help_text=format_lazy(
                _("No attempt starts before this. In the time zone {}."), site_zone()
            ),
        )

    def clean_run_at(self) -> datetime | None:
        """The due time. What ``using()`` refuses is refused here, in the words of the form."""
        at: datetime | None = self.cleaned_data["run_at"]
        if at is None or "run_at" not in self.changed_data:
            return at
        if abs((at - timezone.now()).total_seconds()) > LONGEST_AGE:
            days = number_text(LONGEST_AGE / 86_400, ",.0f")
            text = gettext("Enter a time within %(days)s days of now.")
            raise ValidationError(text % {"days": days})
        return at

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        cleaned["payload"] = None
        if self.errors or self.stored is None:
            return cleaned
        cleaned["payload"] = typed_payload(self, self.job_type, self.arguments, self.stored)
        for argument in self.arguments:
            if _has_mask(cleaned.get(argument.key)):
                self.add_error(argument.key, MASKED)
        if _has_mask(cleaned.get(MORE)):
            self.add_error(MORE, MASKED)
        return cleaned


MASKED = _("This is the mask of a secret. Leave the field empty to keep the secret.")


def _has_mask(typed: Any) -> bool:
    """Whether a masked value was sent back, plain or escaped in JSON."""
    return isinstance(typed, str) and (MASK in typed or json.dumps(MASK)[1:-1] in typed.lower())
