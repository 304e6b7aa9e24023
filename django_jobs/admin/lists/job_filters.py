"""Filters of the list of jobs by what a job belongs to. Other pages link to them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...models import JobStatus, Schedule, WorkflowRun
from .filters import IdFilter, NameFilter

MOST_RUNS = 1_000
"""Runs of a workflow whose steps are found."""


class WorkerFilter(IdFilter):
    """The jobs that a worker holds now. When a job ends, only its run keeps the worker."""

    title = _("worker number")
    parameter_name = "worker"
    column = "worker_id"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        rows = super().queryset(request, queryset)
        return rows if self.value() is None else rows.filter(status=JobStatus.RUNNING)


class ScheduleFilter(NameFilter):
    """The jobs of a schedule, by its name."""

    title = _("schedule")
    parameter_name = kind = "schedule"
    folded = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name is None:
            return queryset
        schedules = Schedule.objects.using(conf().database).filter(name=name)
        return queryset.filter(schedule_id__in=list(schedules.values_list("pk", flat=True)))


class TenantFilter(NameFilter):
    """The jobs of a tenant. Most tenants have no row, so any name can be typed."""

    title = _("tenant")
    parameter_name = column = kind = "tenant"
    folded = typed = True


class WorkflowOfStepFilter(NameFilter):
    """The steps of the newest runs of a workflow, by its name."""

    title = _("workflow")
    parameter_name = kind = "workflow"
    folded = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        name = self.value()
        if name is None:
            return queryset
        runs = WorkflowRun.objects.using(conf().database).filter(name=name).order_by("-id")
        newest = list(runs.values_list("pk", flat=True)[: MOST_RUNS + 1])
        if len(newest) > MOST_RUNS:
            note = _("Only the steps of the newest %(number)s runs of the workflow are listed.")
            self.note = note % {"number": f"{MOST_RUNS:,}"}
        return queryset.filter(workflow_run_id__in=newest[:MOST_RUNS])


class WorkflowRunFilter(IdFilter):
    """The steps of a run. The page of the run links to them."""

    title = _("workflow run")
    parameter_name = "workflow_run"
    column = "workflow_run_id"
