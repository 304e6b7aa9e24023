"""The overview, as an entry of its own among the models."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _

from ...conf import conf
from ...lifecycle.scope import scope_of
from ...metrics.stored import NoMetrics
from ...models import DeadLetter, Job, Overview, Queue, Run, Schedule, Worker, WorkflowRun
from ..base.formatting import Visible, moment_in_zone
from ..base.model_admin import REFRESH_SECONDS, ConsoleAdmin
from ..doctor import DOCTOR
from ..layout.console_page import ConsoleView, console_page, console_path

if TYPE_CHECKING:
    from .numbers import Numbers

PAUSED = "django_jobs_overview_paused"
VIEWS = (
    ConsoleView("", "overview.overview_admin.overview", "django_jobs_overview_changelist"),
    ConsoleView("paused/", "overview.paused.paused", PAUSED),
)
SHOWN: tuple[type[Model], ...] = (Queue, Job, Run, Worker, Schedule, WorkflowRun)
"""Who may see one of these lists sees the overview, with the parts about it."""


@admin.register(Overview)
class OverviewAdmin(ConsoleAdmin):
    """One page in place of a list."""

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {"all": ("django_jobs/overview.css",)}

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if scope_of(request.user) is not None:  # its numbers are those of all queues and job types
            return False
        visible = Visible(self.admin_site, request)
        return any(visible.sees(model) for model in SHOWN)

    def get_urls(self) -> list[Any]:
        return [console_path(self, view) for view in VIEWS]


def overview(page: OverviewAdmin, request: HttpRequest) -> HttpResponse:
    """The page. Its numbers are at most some seconds old, and shared by all that look."""
    from .numbers import read_numbers

    visible = Visible(page.admin_site, request)
    may_run_doctor = request.user.has_perm("django_jobs.run_doctor")
    try:
        shown = _shown(read_numbers(), visible)
    except NoMetrics:
        shown = {"waiting": True}
    return console_page(
        page,
        request,
        "overview/overview.html",
        title=_("Overview"),
        parents=(),
        refresh_seconds=REFRESH_SECONDS,
        doctor_url=visible.page_url(DOCTOR) if may_run_doctor else "",
        paused_url=visible.page_url(PAUSED),
        **shown,
    )


def _shown(numbers: Numbers, visible: Visible) -> dict[str, Any]:
    from ..layout.charts import attempts_chart
    from . import sections
    from .problems import problems

    title = _("Attempts that ended, for each minute of the last hour, by outcome")
    sees = visible.sees
    counts_runs = conf().totals and (sees(Run) or sees(Job))
    parts = (
        ("queues", sees(Queue), sections.queues),
        ("types", counts_runs, sections.job_types),
        ("failures", sees(DeadLetter), sections.failures),
        ("workers", sees(Worker), sections.workers),
        ("schedules", sees(Schedule), sections.next_schedules),
        ("keys", sees(Job), sections.keys),
        ("workflows", sees(WorkflowRun), sections.workflow_runs),
    )
    return {
        "taken": moment_in_zone(timezone.now() - timedelta(seconds=numbers.age)),
        "problems": problems(numbers, visible),
        "tiles": sections.tiles(numbers, visible) if sees(Job) or sees(Queue) else (),
        "finished": attempts_chart(numbers.minutes, title) if counts_runs else None,
        "totals_off": not conf().totals,
        **{name: look(numbers, visible) for name, allowed, look in parts if allowed},
    }
