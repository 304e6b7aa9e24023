"""What the pages of resources and tenants share: state, usage, and edits that workers obey."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.gates import Gates
from ...domain.numbers import LONGEST_PERIOD
from ...lifecycle.notifying import GATES, notify_after_commit
from ...separators import number_text
from ..base.formatting import ago, badge, with_reason
from ..base.model_admin import ConsoleAdmin, section
from ..forms.edit_form import EditForm


def name_section(row: Any) -> tuple[tuple[Any, Any], ...]:
    """The name of a row that is being added. It does not change later: jobs use it."""
    return (section(None, "name"),) if row is None else ()


def not_too_long(seconds: float) -> float:
    if seconds > LONGEST_PERIOD:
        raise ValidationError(_("Enter at most a year, in seconds."))
    return seconds


class RateForm(EditForm):
    """Refuses a rate that would let no job start."""

    def clean_rate(self) -> float | None:
        rate: float | None = self.cleaned_data["rate"]
        if rate is not None and rate <= 0:
            text = _("Enter a number above 0, or nothing for no limit. To start no job, pause it.")
            raise ValidationError(text)
        return rate

    def clean_rate_seconds(self) -> float:
        seconds: float = self.cleaned_data["rate_seconds"]
        if seconds <= 0:
            raise ValidationError(_("Enter a number above 0."))
        return not_too_long(seconds)


class LimitAdmin(ConsoleAdmin):
    """The page of a model with a limit. Each row has its ``usage``."""

    ordering = ("name",)
    search_fields = ("name",)
    at_least_one = ("max_concurrency", "max_waiting", "burst", "breaker_failures")
    sortable_by: ClassVar[tuple[str, ...]] = ("name", "taken", "waiting")
    sorted_here: ClassVar[Any] = {
        "taken": lambda row: row.usage.taken,
        "waiting": lambda row: row.usage.waiting,
    }

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {
            "all": ("django_jobs/overview.css", "django_jobs/limits.css")
        }

    def uses(self, gates: Gates, names: set[str]) -> bool:
        """Whether jobs with these gates use one of the rows with these names."""
        raise NotImplementedError

    def add_numbers(self, request: HttpRequest, rows: list[Any]) -> None:
        self.add_usage(rows)

    def add_usage(self, rows: list[Any]) -> None:
        """Read how much of each row is taken, and what waits for it."""
        from ...metrics.limits import Usage, read_usages

        names = {row.name for row in rows}
        read = read_usages(lambda gates: self.uses(gates, names))
        usages = getattr(read, f"{self.opts.model_name}s")  # by name
        for row in rows:
            row.usage = usages.get(row.name, Usage())

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        # Saving the form must not undo a pause that began while it was open.
        obj.save(using=conf().database, update_fields=form.changed_data if change else None)
        notify_after_commit(GATES)
        if change and "max_concurrency" in form.changed_data:
            self._explain_drain(request, obj)

    def _explain_drain(self, request: HttpRequest, row: Any) -> None:
        self.add_usage([row])
        taken, limit = row.usage.taken, row.max_concurrency
        if limit is None or taken <= limit:
            return
        text = ngettext(
            "%(count)s job is ready or running, more than the new limit of %(limit)s. It is not "
            "stopped; others start once there is room.",
            "%(count)s jobs are ready or running, more than the new limit of %(limit)s. They are "
            "not stopped; others start once there is room.",
            taken,
        )
        self.message_user(
            request,
            text % {"count": number_text(taken), "limit": number_text(limit)},
            messages.WARNING,
        )

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        from ...metrics.limits import LimitState
        from .sentences import LABELS

        state = LimitState.of(row, row.usage.taken)
        shown = badge(state, LABELS[state])
        if state == LimitState.PAUSED:
            shown = format_html("{} {}", shown, ago(row.paused_at, row.read_at))
        return with_reason(shown, self.reason(row))

    def reason(self, row: Any) -> str:
        return str(row.paused_reason)

    @admin.display(description=_("taken"), ordering="pk")
    def taken(self, row: Any) -> str:
        number, limit = row.usage.taken, row.max_concurrency
        if limit is None:
            return format_html('<span class="jobs-usage">{} / ∞</span>', number_text(number))
        return format_html(
            '<span class="jobs-usage">{} / {} <progress max="{}" value="{}" aria-label="{}">'
            "</progress></span>",
            number_text(number),
            number_text(limit),
            limit,
            min(number, limit),
            gettext("taken"),
        )

    @admin.display(description=_("waiting"), ordering="pk")
    def waiting(self, row: Any) -> str:
        from ...metrics.limits import at_least

        return at_least(row.usage.waiting, row.usage.more_wait, row.max_waiting)
