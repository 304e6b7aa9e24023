"""Resources: how much of each is taken, its limits and its circuit breaker."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from ...domain.gates import Gates
from ...lifecycle.operations import later
from ...models import BreakerState, Resource
from ..base.actions import OperatorAction, by_name
from ..base.model_admin import allowed_by, section
from ..operator_actions import ReasonForm, pause_action, resume_action
from .limit_admin import LimitAdmin, RateForm, name_section, not_too_long

PAUSE = pause_action(
    Resource,
    later("limits.pause_resources"),
    question=_("Pause resources?"),
    explanation=_(
        "No job that uses a paused resource starts. Jobs that are ready or running are not "
        "stopped, and jobs can still be enqueued."
    ),
    done=lambda n: ngettext(
        "%(count)s resource was paused.", "%(count)s resources were paused.", n
    ),
)
RESUME = resume_action(
    Resource,
    later("limits.resume_resources"),
    question=_("Resume resources?"),
    explanation=_("Jobs that use these resources start again, as their limits allow."),
    done=lambda n: ngettext(
        "%(count)s resource was resumed.", "%(count)s resources were resumed.", n
    ),
)
OPEN_BREAKER = OperatorAction(
    action="open_breakers",
    permission="change",
    label=_("Open breaker"),
    question=_("Open the breakers of resources?"),
    explanation=_(
        "No job that uses the resource starts, and failures use up no attempts. After the time "
        "in its settings a few jobs run as a test, and the breaker closes if they succeed. To "
        "stop all jobs until you resume them, pause the resource instead."
    ),
    execute=by_name(Resource, later("limits.open_breaker"), _("its breaker is already open")),
    done=lambda n: ngettext(
        "The breaker of %(count)s resource was opened.",
        "The breakers of %(count)s resources were opened.",
        n,
    ),
    logged="breaker opened",
    named_by="name",
    applies=lambda resource: resource.breaker_state != BreakerState.OPEN,
    form=ReasonForm,
)
CLOSE_BREAKER = OperatorAction(
    action="close_breakers",
    permission="change",
    label=_("Close breaker"),
    question=_("Close the breakers of resources?"),
    explanation=_("Jobs that use these resources start again, as their limits allow."),
    execute=by_name(Resource, later("limits.close_breaker"), _("its breaker is closed")),
    done=lambda n: ngettext(
        "The breaker of %(count)s resource was closed.",
        "The breakers of %(count)s resources were closed.",
        n,
    ),
    logged="breaker closed",
    named_by="name",
    applies=lambda resource: resource.breaker_state != BreakerState.CLOSED,
    form=ReasonForm,
)


class ResourceForm(RateForm):
    """Refuses limits that would let no job start."""

    class Meta:
        model = Resource
        fields: ClassVar[tuple[str, ...]] = (
            "name",
            "max_concurrency",
            "max_waiting",
            "rate",
            "rate_seconds",
            "burst",
            "breaker_failures",
            "breaker_window",
            "breaker_open_for",
            "retry_budget",
        )

    def clean_breaker_window(self) -> float:
        return not_too_long(self.cleaned_data["breaker_window"])

    def clean_breaker_open_for(self) -> float:
        return not_too_long(self.cleaned_data["breaker_open_for"])


@admin.register(Resource)
class ResourceAdmin(LimitAdmin):
    """Resources. Pausing and breakers are actions; the limits are a form."""

    form = ResourceForm
    list_display = ("name", "state", "taken", "waiting", "speed")
    empty = _(
        "No resources. Add one for what jobs share, such as an API with a limit of "
        "concurrency or rate."
    )
    operator_actions = (PAUSE, RESUME, OPEN_BREAKER, CLOSE_BREAKER)

    # No deletion: without the row, jobs that use it could not be enqueued.
    has_add_permission = allowed_by("add_resource")
    has_change_permission = allowed_by("change_resource")
    has_pause_permission = allowed_by("pause_resource")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        breaker = (("breaker_failures", "breaker_window", "breaker_open_for"), "retry_budget")
        return (
            *name_section(obj),
            section(
                _("Limits"), "max_concurrency", ("rate", "rate_seconds", "burst"), "max_waiting"
            ),
            section(_("Circuit breaker"), *breaker),
        )

    def uses(self, gates: Gates, names: set[str]) -> bool:
        return not names.isdisjoint(gates.resources)

    def live(self, row: Any) -> dict[str, Any]:
        from .live import live_resource

        return live_resource(row, row.visible)

    def reason(self, row: Any) -> str:
        is_of_breaker = not row.paused and row.breaker_state != BreakerState.CLOSED
        return str(row.breaker_reason) if is_of_breaker else super().reason(row)

    @admin.display(description=_("rate"))
    def speed(self, row: Any) -> str:
        from ...metrics.limits import rate_text

        return rate_text(row.rate, row.rate_seconds)
