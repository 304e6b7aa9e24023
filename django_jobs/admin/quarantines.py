"""Quarantines: job types whose jobs are blocked until the quarantine is lifted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import F, IntegerField, OuterRef
from django.db.models.expressions import RawSQL
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext, pgettext
from django.utils.translation import gettext_lazy as _

from .. import registry
from ..conf import conf
from ..models import Job, JobStatus, Quarantine
from ..models.job import QUARANTINED
from .base.actions import OperatorAction, by_name
from .base.formatting import ago, badge, column, moment_column, text_column
from .base.model_admin import CappedCount, ConsoleAdmin, allowed_by, section
from .forms.fields import UntilField


def _lift(names: Iterable[str], actor: Any) -> list[str]:
    from ..lifecycle.operations import quarantines

    return [lifted for name in names for lifted in quarantines.lift(name, actor=actor)]


LIFT = OperatorAction(
    action="lift_quarantines",
    permission="quarantine",
    label=_("Lift"),
    question=_("Lift the quarantine?"),
    explanation=_(
        "Workers claim the jobs of these types again, in the same order as before. Crashes until "
        "now do not count towards another quarantine. All names of a job type are lifted."
    ),
    execute=by_name(Quarantine, _lift, _("it is not quarantined"), "job_type"),
    done=lambda n: ngettext(
        "%(count)s quarantine was lifted.", "%(count)s quarantines were lifted.", n
    ),
    logged="lifted",
    applies=lambda quarantine: quarantine.in_force,
)


# ModelForm is generic in the stubs only; at run time Django's class takes no parameter.
class QuarantineForm(forms.ModelForm):  # type: ignore[type-arg]
    job_type = forms.ChoiceField(
        label=_("Job type"),
        choices=lambda: [("", "---------"), *((name, name) for name in registry.names())],
        help_text=_(
            "All names of this job type are quarantined. Its jobs are blocked and do not fail. "
            "Running jobs are not stopped."
        ),
    )

    until = UntilField()

    class Meta:
        model = Quarantine
        fields = ("job_type", "reason", "until")
        help_texts: ClassVar[dict[str, Any]] = {
            "reason": _("Optional. Stored with the quarantine.")
        }
        widgets: ClassVar[dict[str, forms.Widget]] = {
            "reason": forms.TextInput(attrs={"class": "vTextField"})
        }

    def clean_job_type(self) -> str:
        from ..lifecycle.operations.quarantines import in_force

        name: str = self.cleaned_data["job_type"]
        if set(registry.family(name)) <= set(in_force()):
            raise ValidationError(_("This job type is already quarantined."))
        return name

    def validate_unique(self) -> None:
        """Skip the check: a lifted quarantine of the job type has a row, which is used again."""


@admin.register(Quarantine)
class QuarantineAdmin(ConsoleAdmin):
    """One row for each job type that is or was quarantined."""

    form = QuarantineForm
    list_display = ("job_type", "state", "blocked", "since_ago", "made_by", "why")
    empty = _(
        "No job type is quarantined. Add one to block its jobs until you lift the "
        "quarantine; workers add those that keep crashing."
    )
    operator_actions = (LIFT,)

    def annotations(self) -> dict[str, Any]:
        from ..metrics.unclaimable import BLOCKED_AT_GATES

        jobs = Job.objects.using(conf().database).filter(
            status=JobStatus.BLOCKED, reason=QUARANTINED, job_type=OuterRef("job_type")
        )
        at_gates = RawSQL(BLOCKED_AT_GATES, (), output_field=IntegerField())  # noqa: S611 — a constant
        return {"blocked_count": CappedCount(jobs) + at_gates}

    def get_ordering(self, request: HttpRequest) -> Any:
        """Quarantines in force first, then by the time they were lifted, latest first."""
        return (F("lifted_at").desc(nulls_first=True), "-since", "-id")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return (section(None, "job_type", "reason", "until"),)
        row = ("state", "blocked", "made_by")
        times = ("since_text", *(["until_text"] if obj.until else []), "lifted_text")
        return (section(None, "job_type", row, times, "why"),)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        times = ("since_text", "until_text", "lifted_text")
        return ("job_type", "state", "blocked", "made_by", *times, "why")

    has_add_permission = has_quarantine_permission = allowed_by("quarantine_job_type")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_quarantine_permission(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        from ..lifecycle.operations.quarantines import quarantine

        quarantine(obj.job_type, actor=request.user, reason=obj.reason, until=obj.until)
        obj.pk = Quarantine.objects.using(conf().database).get(job_type=obj.job_type).pk

    @admin.display(description=_("status"))
    def state(self, quarantine: Any) -> str:
        if quarantine.in_force:
            return badge("blocked", gettext("quarantined"))
        since = ago(quarantine.lifted_at, quarantine.read_at)
        return format_html("{} {}", badge("released", gettext("lifted")), since)

    blocked = column(
        _("blocked jobs"),
        lambda quarantine: quarantine.visible.count_link(
            Job, quarantine.blocked_count, job_type=quarantine.job_type, status=JobStatus.BLOCKED
        ),
    )
    since_ago = moment_column("since", _("since"), ago)
    since_text = moment_column("since", _("since"))
    until_text = moment_column("until", _("until"))
    lifted_text = moment_column("lifted_at", _("lifted"))
    made_by = column(_("by"), lambda quarantine: quarantine.by or pgettext("by", "a worker"))
    why = text_column("reason", _("reason"))
