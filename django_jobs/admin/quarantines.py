"""Quarantines: job types whose jobs are held until somebody lets them go."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import F, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from .. import registry
from ..conf import conf
from ..lifecycle.operations import quarantines
from ..lifecycle.operations.jobs import OperationResult
from ..models import Job, JobStatus, Quarantine
from ..models.job import QUARANTINED
from .base.actions import OperatorAction, run_action
from .base.formatting import NOTHING, ago, badge, list_url, moment_and_age
from .base.model_admin import ConsoleAdmin
from .base.paginator import CappedCount, counted
from .operator_actions import Given


def _release(ids: list[int], actor: Any, given: Given) -> OperationResult:
    rows = Quarantine.objects.using(conf().database).filter(pk__in=ids)
    names = dict(rows.values_list("pk", "job_type"))
    released: set[str] = set()
    for name in names.values():
        released.update(quarantines.lift(name, actor=actor))
    done = [pk for pk, name in names.items() if name in released]
    refusal = _now("it is not quarantined")
    return OperationResult(done=done, refused={pk: refusal for pk in ids if pk not in done})


RELEASE = OperatorAction(
    action="release_job_types",
    label=_("Release"),
    question=_("Release job types?"),
    explanation=_(
        "Workers take their jobs again, in the order that they had. Crashes from before now do not "
        "count towards another quarantine. A job type is released under all of its names."
    ),
    execute=_release,
    done=lambda count: (
        ngettext("%(count)s job type was released.", "%(count)s job types were released.", count)
        % {"count": f"{count:,}"}
    ),
    logged="released",
    applies=lambda quarantine: quarantine.in_force,
)


# The stubs make ModelForm generic; Django's class takes no parameter at run time.
class QuarantineForm(forms.ModelForm):  # type: ignore[type-arg]
    """Which job type, and why."""

    job_type = forms.ChoiceField(
        label=_("Job type"),
        choices=lambda: [("", "---------"), *((name, name) for name in registry.names())],
        help_text=_("Under all of its names. Its jobs are held, not failed; what runs goes on."),
    )

    class Meta:
        model = Quarantine
        fields = ("job_type", "reason")
        help_texts: ClassVar[dict[str, Any]] = {
            "reason": _("Optional. Kept with the row."),
        }
        widgets: ClassVar[dict[str, forms.Widget]] = {
            "reason": forms.TextInput(attrs={"class": "vTextField"}),
        }

    def clean_job_type(self) -> str:
        name: str = self.cleaned_data["job_type"]
        if set(registry.family(name)) <= set(quarantines.in_force()):
            raise ValidationError(_("It is quarantined already."))
        return name

    def validate_unique(self) -> None:
        """The row of one that was released before is used again."""


@admin.register(Quarantine)
class QuarantineAdmin(ConsoleAdmin):
    """One row for each job type that is or was quarantined."""

    form = QuarantineForm
    list_display = ("job_type", "state", "held", "since_text", "made_by", "why")
    actions = ("release_job_types",)
    operator_actions = (RELEASE,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        jobs = Job.objects.using(conf().database).filter(
            status=JobStatus.BLOCKED, reason=QUARANTINED, job_type=OuterRef("job_type")
        )
        rows: QuerySet[Any] = super().get_queryset(request)
        rows = rows.annotate(held_count=CappedCount(jobs))
        return rows

    def get_ordering(self, request: HttpRequest) -> Any:
        """What is in force, then what was released last."""
        return (F("released_at").desc(nulls_first=True), "-since", "-id")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ((None, {"fields": ("job_type", "reason")}),)
        row = ("state", "held", "made_by")
        return ((None, {"fields": ("job_type", row, ("since_text", "released_text"), "why")}),)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        return ("job_type", "state", "held", "made_by", "since_text", "released_text", "why")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.has_quarantine_permission(request)

    def has_quarantine_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.quarantine_job_type")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) or self.has_quarantine_permission(request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        quarantines.quarantine(obj.job_type, actor=request.user, reason=obj.reason)
        obj.pk = Quarantine.objects.using(conf().database).get(job_type=obj.job_type).pk

    @admin.display(description=_("status"))
    def state(self, quarantine: Any) -> str:
        if quarantine.in_force:
            return badge("blocked", _now("quarantined"))
        since = ago(quarantine.released_at, quarantine.read_at)
        return format_html("{} {}", badge("released", _now("released")), since)

    @admin.display(description=_("held jobs"))
    def held(self, quarantine: Any) -> str:
        if not quarantine.held_count:
            return "0"
        which = urlencode({"job_type": quarantine.job_type, "status": JobStatus.BLOCKED})
        address = f"{list_url(self.admin_site, Job)}?{which}"
        return format_html('<a href="{}">{}</a>', address, counted(quarantine.held_count))

    @admin.display(description=_("since"))
    def since_text(self, quarantine: Any) -> str:
        return moment_and_age(quarantine.since, quarantine.read_at)

    @admin.display(description=_("released"))
    def released_text(self, quarantine: Any) -> str:
        return moment_and_age(quarantine.released_at, quarantine.read_at)

    @admin.display(description=_("by"))
    def made_by(self, quarantine: Any) -> str:
        return quarantine.by or _now("a worker")

    @admin.display(description=_("reason"))
    def why(self, quarantine: Any) -> str:
        return quarantine.reason or NOTHING

    @admin.action(permissions=["quarantine"], description=_("Release"))
    def release_job_types(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        return run_action(self, request, queryset, RELEASE)
