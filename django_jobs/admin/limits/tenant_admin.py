"""Tenants: their shares of the queues, and how much each uses."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...domain.concurrency import name_problem
from ...domain.gates import Gates
from ...lifecycle.operations import later
from ...models import Tenant
from ...models.resource import LONGEST_TENANT
from ...separators import number_text
from ..base.formatting import column
from ..base.model_admin import allowed_by, section
from ..operator_actions import pause_action, resume_action
from .limit_admin import LimitAdmin, RateForm, name_section

PAUSE = pause_action(
    Tenant,
    later("limits.pause_tenants"),
    question=_("Pause tenants?"),
    explanation=_(
        "No job of a paused tenant starts. Jobs that are ready or running are not stopped, and "
        "jobs can still be enqueued."
    ),
    done=lambda n: ngettext("%(count)s tenant was paused.", "%(count)s tenants were paused.", n),
)
RESUME = resume_action(
    Tenant,
    later("limits.resume_tenants"),
    question=_("Resume tenants?"),
    explanation=_("Jobs of these tenants start again, as their limits and shares allow."),
    done=lambda n: ngettext("%(count)s tenant was resumed.", "%(count)s tenants were resumed.", n),
)


class TenantForm(RateForm):
    """Refuses a share that is none, and what cannot be the tenant of a job."""

    class Meta:
        model = Tenant
        fields: ClassVar[tuple[str, ...]] = (
            *("name", "weight", "max_concurrency", "rate", "rate_seconds", "burst", "max_waiting"),
            *("slo_seconds", "slo_target"),
        )
        help_texts: ClassVar[dict[str, Any]] = {
            "name": _(
                "As the jobs name it. A tenant without a row has a weight of 1 and no limit."
            ),
            "slo_seconds": _("Seconds within which a job should start. Empty: as its queue says."),
        }

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if problem := name_problem(name, LONGEST_TENANT):
            raise ValidationError(_("The name %(problem)s.") % {"problem": problem})
        return name

    def clean_weight(self) -> float:
        weight: float = self.cleaned_data["weight"]
        if weight <= 0:
            raise ValidationError(_("Enter a number above 0. To start no job, pause the tenant."))
        return weight


@admin.register(Tenant)
class TenantAdmin(LimitAdmin):
    """Tenants that differ from the others. Pausing is an action; share and limit are a form."""

    form = TenantForm
    words = ("gate",)
    list_display = ("name", "state", "taken", "waiting", "share")
    sortable_by = ("name", "taken", "waiting", "share")
    empty = _(
        "No tenant has a row. A tenant without one has a weight of 1 and no limit; add one "
        "to change that, or to pause it."
    )
    operator_actions = (PAUSE, RESUME)

    has_add_permission = allowed_by("add_tenant")
    has_change_permission = allowed_by("change_tenant")
    has_delete_permission = allowed_by("delete_tenant")
    has_pause_permission = allowed_by("pause_tenant")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        return (
            *name_section(obj),
            section(
                *(_("Share and limit"), "weight", "max_concurrency"),
                *(("rate", "rate_seconds", "burst"), "max_waiting"),
            ),
            section(_("Objective"), ("slo_seconds", "slo_target")),
        )

    def uses(self, gates: Gates, names: set[str]) -> bool:
        return gates.tenant in names

    def live(self, row: Any) -> dict[str, Any]:
        from .live import live_tenant

        return live_tenant(row, row.visible)

    share = column(_("weight"), lambda row: number_text(row.weight, "g"), ordering="weight")
