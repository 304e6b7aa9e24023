"""Filters of the lists. Choices come from small tables and code, never from the listed rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Model, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...conf import conf
from ...domain.hints import nearest
from ...domain.search_terms import term
from ...models import JobStatus, Schedule, Worker, WorkflowRun
from ...models.querysets import ScheduleQuerySet, ScheduleState
from ...models.worker import NOT_ENDED
from ...separators import number_text
from .choices import choices_of, with_meant

MOST_CHOICES = 200
"""In a list of choices. With more, the filter is a text field that suggests them."""

LONGEST_NAMED = 99
"""Characters of a value that a note names."""

Choices = Iterable[tuple[Any, Any]]


class ListFilter(admin.SimpleListFilter):
    """A field of the row above the list. The form sends it empty if it is not used."""

    folded = False
    """Below "More filters"."""
    note = ""
    """What the filter left out, below the list."""
    no_such = _("There is no %(filter)s “%(value)s”. Check the spelling.")
    """The note on an empty list, if its value names nothing."""

    def knows(self, value: str) -> bool:
        return value in {str(key) for key, _label in self.lookup_choices}

    @property
    def unknown(self) -> str:
        value = self.value()
        if value is None or self.knows(value):
            return ""
        from ...domain.errors import cut

        text = self.no_such % {"filter": self.title, "value": cut(value, LONGEST_NAMED)}
        names = (str(key) for key, _label in self.lookup_choices)
        return with_meant(text, nearest(value, names))

    @property
    def typed(self) -> bool:
        """A text field that suggests the choices."""
        return len(self.lookup_choices) > MOST_CHOICES

    def value(self) -> str | None:
        return super().value() or None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        return queryset if value is None else self.narrowed(queryset, value)

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Those of the rows that the choice asks for."""
        raise NotImplementedError

    def has_output(self) -> bool:
        # Django drops a filter without choices. The choice may be a value that is not offered.
        return True


class EqualFilter(ListFilter):
    """Rows whose ``column`` equals the choice."""

    column = ""

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(**{self.column: value})


class NameFilter(EqualFilter):
    """By a name. Offers those of one kind."""

    kind = ""

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return choices_of(request, self.kind)


class TypedFilter(EqualFilter):
    """Rows whose ``column`` equals what is typed."""

    folded = typed = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return ()

    def knows(self, value: str) -> bool:
        return True


def id_of(text: str) -> int | None:
    """``#12`` and ``12`` are ids."""
    number = text.removeprefix("#")
    is_id = number.isascii() and number.isdigit() and len(number) < 19
    return int(number) if is_id else None


class IdFilter(TypedFilter):
    """By the id of a row of ``model``. Nothing else is found than by a number."""

    model: type[Model]

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        number = id_of(value)
        return rows.none() if number is None else rows.filter(**{self.column: number})

    def knows(self, value: str) -> bool:
        rows = self.model._default_manager.using(conf().database)
        number = id_of(value)
        return number is not None and rows.filter(pk=number).exists()


class ChoiceFilter(EqualFilter):
    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        choices: Choices = model_admin.model._meta.get_field(self.column).choices
        return choices


class StatusFilter(ChoiceFilter):
    title = _("status")
    parameter_name = column = "status"


class OutcomeFilter(ChoiceFilter):
    title = _("outcome")
    parameter_name = column = "outcome"


class QueueFilter(NameFilter):
    title = _("queue")
    parameter_name = column = kind = "queue"


class JobTypeFilter(NameFilter):
    """By job type. Offers those that this process knows, and those that rows name."""

    title = _("job type")
    parameter_name = column = kind = "job_type"


SPANS = {
    "1h": (timedelta(hours=1), _("the last hour")),
    "3h": (timedelta(hours=3), _("the last 3 hours")),
    "24h": (timedelta(hours=24), _("the last 24 hours")),
    "3d": (timedelta(days=3), _("the last 3 days")),
    "7d": (timedelta(days=7), _("the last 7 days")),
}


class SinceFilter(ListFilter):
    """Rows whose ``column`` is at most a given age, by the database's clock."""

    column = ""

    @property
    def span(self) -> timedelta | None:
        chosen = SPANS.get(self.value() or "")
        return None if chosen is None else chosen[0]

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return [(key, label) for key, (_span, label) in SPANS.items()]

    def knows(self, value: str) -> bool:
        return True  # ``note`` says what is wrong

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        if (span := self.span) is not None:
            return rows.filter(**{f"{self.column}__gte": Now() - span})
        from ...domain.errors import cut

        text = _("“%(value)s” is not a time that can be chosen, so it narrows nothing.")
        self.note = text % {"value": cut(value, LONGEST_NAMED)}
        return rows


class CreatedSinceFilter(SinceFilter):
    title = _("created")
    parameter_name = "created"
    column = "created_at"


class FinishedSinceFilter(SinceFilter):
    title = _("finished")
    parameter_name = "finished"
    column = "finished_at"


MOST_RUNS = 1_000
"""Runs of a workflow whose steps are found."""


class WorkerFilter(NameFilter):
    """The jobs that a worker holds now, by its number or name. Of ended jobs only runs have one."""

    title = _("worker")
    parameter_name = kind = "worker"
    folded = typed = True

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        workers = [number] if (number := id_of(value)) is not None else _alive(value)
        return rows.filter(worker_id__in=workers, status=JobStatus.RUNNING)

    def knows(self, value: str) -> bool:
        number = id_of(value)
        named = {"name": value} if number is None else {"pk": number}
        return Worker.objects.using(conf().database).filter(**named).exists()


def _alive(name: str) -> list[int]:
    workers = Worker.objects.using(conf().database).filter(name=name, status__in=NOT_ENDED)
    return list(workers.values_list("pk", flat=True))


class ErrorFilter(TypedFilter):
    """The jobs whose last error has this in its class or text, or this fingerprint. It is a term of
    the search, which bounds what is read."""

    title = _("error")
    parameter_name = "error"

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows


def with_error(text: str, error: str | None) -> str:
    """The text in the search box, and what the filter by error asks for."""
    return f"{text} {term(ErrorFilter.parameter_name, error)}" if error else text


class ScheduleFilter(NameFilter):
    title = _("schedule")
    parameter_name = kind = "schedule"
    folded = True

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        schedules = Schedule.objects.using(conf().database).filter(name=value)
        return rows.filter(schedule_id__in=list(schedules.values_list("pk", flat=True)))


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

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        runs = WorkflowRun.objects.using(conf().database).filter(name=value).order_by("-id")
        newest = list(runs.values_list("pk", flat=True)[: MOST_RUNS + 1])
        if len(newest) > MOST_RUNS:
            note = _("Only the steps of the newest %(number)s runs of the workflow are listed.")
            self.note = note % {"number": number_text(MOST_RUNS)}
        return rows.filter(workflow_run_id__in=newest[:MOST_RUNS])

    def knows(self, value: str) -> bool:
        runs = WorkflowRun.objects.using(conf().database).filter(name=value)
        return super().knows(value) or runs.exists()


class WorkflowRunFilter(IdFilter):
    """The steps of a run. The page of the run links to them."""

    title = _("workflow run")
    parameter_name = "workflow_run"
    column = "workflow_run_id"
    model = WorkflowRun


class ScheduleStateFilter(ListFilter):
    """By the state that the badge shows."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return ScheduleState.choices

    def narrowed(self, rows: Any, value: str) -> QuerySet[Any]:
        schedules: ScheduleQuerySet = rows
        return schedules.in_state(ScheduleState(value)) if value in ScheduleState else schedules


class ScheduleQueueFilter(QueueFilter):
    """By the queue of its jobs, including a queue that only the job type declares."""

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        of_queue = [name for name in registry.names() if registry.get(name).queue == value]
        return rows.filter(Q(queue=value) | Q(queue="", job_type__in=of_queue))


class DeclaredFilter(ListFilter):
    """By owner: code or the admin."""

    title = _("owner")
    parameter_name = "declared"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Choices:
        return (("yes", _("code")), ("no", _("the admin")))

    def narrowed(self, rows: QuerySet[Any], value: str) -> QuerySet[Any]:
        return rows.filter(declared=value == "yes") if value in ("yes", "no") else rows


class WorkflowFilter(NameFilter):
    """By name. Offers the workflows that have a definition: a chain has its own name."""

    title = _("workflow")
    parameter_name = column = "name"
    kind = "workflow"
