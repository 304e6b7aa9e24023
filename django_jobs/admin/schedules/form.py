"""The form of a schedule: its rule, its policies and the arguments of its handler."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar
from zoneinfo import available_timezones

from django import forms
from django.contrib.admin.widgets import AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.utils.html import escape
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from ...api.job_type import JobType
from ...exceptions import JobsError, PayloadError, QueueFull
from ...models import Queue, Schedule, ScheduleException
from ..forms.arguments import add_arguments, arguments_of, show_arguments, typed_payload
from ..forms.edit_form import EditForm
from ..forms.fields import MomentField, site_zone

if TYPE_CHECKING:
    from ...domain.schedules import Rule

Choices = list[tuple[Any, Any]]


@lru_cache(maxsize=1)
def zones() -> Choices:
    """The time zones that a rule may name, by region, UTC first."""
    names = sorted(name for name in available_timezones() if _is_zone(name))
    by_region: dict[str, list[str]] = {
        region: list(members)
        for region, members in groupby(
            (name for name in names if "/" in name), key=lambda name: name.split("/")[0]
        )
    }
    by_region[str(_("Others"))] = [name for name in names if "/" not in name and name != "UTC"]
    groups = [(region, [(name, name) for name in members]) for region, members in by_region.items()]
    return [("UTC", "UTC"), *groups]


def _is_zone(name: str) -> bool:
    from ...domain.cron import UnknownTimezone, check_timezone

    try:
        check_timezone(name)
    except UnknownTimezone:
        return False
    return True


class DatesFormField(forms.CharField):
    """Dates, one a line."""

    widget = forms.Textarea(attrs={"rows": 4, "cols": 12, "spellcheck": "false"})

    def __init__(self, **options: Any) -> None:
        super().__init__(required=False, strip=False, **options)

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(map(str, value)) if isinstance(value, list) else value

    def to_python(self, value: Any) -> Any:
        dates = set()
        for number, line in enumerate(str(value or "").splitlines(), 1):
            try:
                if text := line.strip():
                    dates.add(date.fromisoformat(text))
            except ValueError:
                shown = {"line": number, "text": text[:40]}
                problem = _("Line %(line)s: “%(text)s” is not a date such as 2026-12-25.")
                raise ValidationError(problem, params=shown) from None
        return sorted(dates)


class ScheduleForm(EditForm):
    """A schedule of one job type. ``form_for`` makes one with the fields of its arguments."""

    chosen: ClassVar[JobType[..., Any] | None] = None
    with_arguments: ClassVar[bool] = False

    timezone = forms.ChoiceField(
        label=_("Time zone"), choices=zones, help_text=_("The time zone of the cron expression.")
    )
    queue = forms.ChoiceField(label=_("Queue"), required=False)
    excluded_dates = DatesFormField(
        label=_("Excluded dates"),
        help_text=_("It is not due on these dates in its time zone. One a line, as 2026-12-25."),
    )

    class Meta:
        model = Schedule
        fields = ("name",)
        help_texts: ClassVar[dict[str, Any]] = {
            "cron": _(
                "Minute, hour, day of the month, month, day of the week, such as 30 2 * * mon-fri. "
                "Enter this or an interval."
            ),
            "every": _("Seconds, counted from the start or else from 1970. At most 366 days."),
            "starts_at": format_lazy(
                _("No due time is before this. In the time zone {}."), site_zone()
            ),
            "ends_at": format_lazy(
                _("No due time is after this. In the time zone {}."), site_zone()
            ),
            "dst": _("Applies to fixed hours. A rule for every hour keeps its interval."),
            "catch_up": _("For due times that passed while no worker was running."),
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.chosen is None:
            return
        if self.instance.pk is None:
            self.instance.job_type = self.chosen.name
            self.instance.payload_version = self.chosen.version
        self._offer_queues(self.chosen)
        self._keep_choosable("timezone", self.instance.timezone)
        self.stored: dict[str, Any] = {}
        if self.with_arguments and isinstance(self.instance.payload, dict):
            self.stored = upgraded_payload(self.chosen, self.instance)
        self.arguments = arguments_of(self.chosen, self.stored) if self.with_arguments else []
        for argument in self.arguments:  # what is stored may have another field than is declared
            argument.field.help_text = escape(argument.field.help_text)
            self.fields[argument.key] = argument.field
        values = self.initial.get("payload") or self.stored
        show_arguments(self, self.chosen, self.arguments, values, self.stored)

    def _offer_queues(self, job_type: JobType[..., Any]) -> None:
        field = self.fields["queue"]
        default = _("%(queue)s, as the job type declares") % {"queue": job_type.queue}
        queues = [(name, name) for name in Queue.objects.names()]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [("", default), *queues]
        self._keep_choosable("queue", self.instance.queue)

    def _keep_choosable(self, name: str, current: str) -> None:
        """Add the stored value to the choices of a field if it is missing there: a browser would
        submit the first choice instead."""
        field: Any = self.fields[name]
        if not field.valid_value(current):
            field.choices = [*field.choices, (current, _("%(name)s (unknown)") % {"name": current})]

    def columns(self) -> Iterable[str]:
        payload = {"payload", "payload_version"} if self.with_arguments else set()
        return {*super().columns(), *payload}

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean()
        if self.with_arguments and self.chosen is not None and not self.errors:
            payload = typed_payload(self, self.chosen, self.arguments, self.stored)
            self.instance.payload = payload
            self.instance.payload_version = self.chosen.version
        return cleaned

    def _post_clean(self) -> None:
        # Django's hook for what needs the instance; the stubs leave it out.
        from ...api.schedules import request_of

        super()._post_clean()  # type: ignore[misc]
        if self.errors or self.chosen is None:
            return
        try:
            request_of(self.instance)
        except QueueFull:
            pass  # there may be room when the schedule is due
        except JobsError as error:
            self.add_error(None, str(error))


def upgraded_payload(
    job_type: JobType[..., Any], schedule: Schedule | ScheduleException
) -> dict[str, Any]:
    """The payload upgraded for the current handler; as stored if it cannot be upgraded."""
    try:
        return job_type.upgraded(schedule.payload, schedule.payload_version)
    except PayloadError:
        return schedule.payload if isinstance(schedule.payload, dict) else {}


def form_for(job_type: JobType[..., Any], *, with_arguments: bool) -> type[ScheduleForm]:
    fields: dict[str, Any] = {}
    if with_arguments:
        add_arguments(fields, job_type, arguments_of(job_type))
        for field in fields.values():  # has defaults of the handler; Django takes it as HTML
            field.help_text = escape(field.help_text)
    members = {"chosen": job_type, "with_arguments": with_arguments, **fields}
    return type("ScheduleForm", (ScheduleForm,), members)


class RuleForm(forms.Form):
    """The fields of the rule, as they are while the form is edited."""

    jobs_left: int | None = None
    """The number of jobs that are left, if there is a maximum; set by :meth:`rule`."""

    name = forms.CharField(max_length=200, required=False)
    cron = forms.CharField(max_length=200, required=False)
    every = forms.FloatField(required=False)
    timezone = forms.CharField(max_length=100, required=False)
    dst = forms.ChoiceField(choices=Schedule.Dst.choices, required=False)
    starts_at = MomentField(required=False, widget=AdminSplitDateTime)
    ends_at = MomentField(required=False, widget=AdminSplitDateTime)
    excluded_dates = DatesFormField()
    max_jobs = forms.IntegerField(required=False, min_value=1)
    jobs_made = forms.IntegerField(required=False, min_value=0)

    def rule(self) -> Rule:
        """The rule. Raises ``ValueError`` for a field without a valid value."""
        from ...domain.schedules import Rule

        if not self.is_valid():
            name, problems = next(iter(self.errors.items()))
            raise ValueError(f"{name}: {problems[0]}")
        values = dict(self.cleaned_data)
        most, made = values.pop("max_jobs"), values.pop("jobs_made")
        self.jobs_left = None if most is None else max(most - (made or 0), 0)
        dates = frozenset(values["excluded_dates"])
        choices = {"timezone": values["timezone"] or "UTC", "dst": values["dst"] or "once"}
        return Rule(**{**values, **choices, "excluded_dates": dates})
