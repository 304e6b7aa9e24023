"""Filters of the list of jobs by what a job belongs to. Other pages link to them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.search_terms import term
from ...models import JobStatus, Schedule, Worker, WorkflowRun
from ...models.worker import ALIVE
from ...separators import number_text
from .filters import IdFilter, NameFilter, TypedFilter, id_of

MOST_RUNS = 1_000
"""Runs of a workflow whose steps are found."""


class WorkerFilter(NameFilter):
    """The jobs that a worker holds now, by its number or its name. When a job ends, only its run
    keeps the worker."""

    title = _("worker")
    parameter_name = kind = "worker"
    folded = typed = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None:
            return queryset
        workers = [number] if (number := id_of(value)) is not None else _alive(value)
        return queryset.filter(worker_id__in=workers, status=JobStatus.RUNNING)

    def knows(self, value: str) -> bool:
        number = id_of(value)
        named = {"name": value} if number is None else {"pk": number}
        return Worker.objects.using(conf().database).filter(**named).exists()


def _alive(name: str) -> list[int]:
    workers = Worker.objects.using(conf().database).filter(name=name, status__in=ALIVE)
    return list(workers.values_list("pk", flat=True))


class ErrorFilter(TypedFilter):
    """The jobs whose last error has this in its class or text, or this fingerprint. It is a term of
    the search, which bounds what is read."""

    title = _("error")
    parameter_name = "error"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


def with_error(text: str, error: str | None) -> str:
    """The text in the search box, and what the filter by error asks for."""
    return f"{text} {term(ErrorFilter.parameter_name, error)}" if error else text


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
    no_such = _("No row of a tenant is called “%(value)s”. Check the spelling.")


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
            self.note = note % {"number": number_text(MOST_RUNS)}
        return queryset.filter(workflow_run_id__in=newest[:MOST_RUNS])

    def knows(self, value: str) -> bool:
        runs = WorkflowRun.objects.using(conf().database).filter(name=value)
        return super().knows(value) or runs.exists()


class WorkflowRunFilter(IdFilter):
    """The steps of a run. The page of the run links to them."""

    title = _("workflow run")
    parameter_name = "workflow_run"
    column = "workflow_run_id"
    model = WorkflowRun
