"""Reads the steps of a run: a bounded part, their number by state, and what will undo them."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import BooleanField, Count, Q, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Left
from django.utils.translation import gettext as _

from ...domain.states import LIVE, JobState
from ...domain.workflows import Fate, Skipped, When, fate_of, is_met
from ...lifecycle.step_insert import STORED_RESULT, edge_fate
from ...lifecycle.workflows.spawning import SPAWNED
from ...models import Dependency, Job, JobStatus, Receipt, WorkflowRun
from ..access.errors import REASON_ALONE
from ..base.formatting import duration
from ..base.search import OUTSIDE_HISTORY
from ..layout.tables import Column, Table

MOST_STEPS = 10_000
"""Steps that a page reads. They take 0.2 s; their layout as long."""
LONGEST_REASON = 200
SKIPPED = "skipped"
"""The state that the pages show for a cancelled job that is a skipped step."""
SPAWNED_BY = "spawned"
"""What an edge has as its condition that leads from a step to one that its handler spawned."""

IS_OTHER = f"""condition IS NOT NULL AND EXISTS (
    SELECT FROM django_jobs_job AS job, (SELECT 'succeeded' AS fate OFFSET 0) AS parent
    WHERE job.id = django_jobs_dependency.parent_id AND job.status = 'succeeded'
      AND {edge_fate(STORED_RESULT)} = 'unneeded')"""


class Step(NamedTuple):
    """A step of a run: columns of its job."""

    pk: int
    step: str
    job_type: str
    status: str
    skipped: str | None
    awaits: str | None
    attempt: int
    max_attempts: int
    available_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    reason_line: str

    @property
    def state(self) -> str:
        """The status, or that the step was skipped."""
        return SKIPPED if self.skipped and self.status == JobStatus.CANCELLED else self.status

    @property
    def fate(self) -> Fate | None:
        """What its end means for the steps after it; None if it has not ended."""
        if self.status in LIVE:
            return None
        return fate_of(JobState(self.status), Skipped(self.skipped) if self.skipped else None)

    def took(self, now: datetime) -> str:
        """How long its last attempt ran, or has run."""
        begun = self.started_at or self.claimed_at
        if begun is None or (self.finished_at is None and self.status != JobStatus.RUNNING):
            return ""
        return duration((self.finished_at or now) - begun)


class Edge(NamedTuple):
    """``when`` is a condition, or ``SPAWNED_BY``. ``condition`` is what the result has to be
    besides, and ``is_other`` whether it is known to be another one."""

    parent: int
    child: int
    when: str
    condition: dict[str, Any] | None = None
    is_other: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a run by the id of their job, and their edges. ``cut``: there are more."""

    by_id: dict[int, Step]
    edges: Sequence[Edge]
    cut: bool

    def edge_state(self, edge: Edge) -> str:
        """Whether what the child waits for has happened: ``open``, ``met`` or ``broken``."""
        if edge.when == SPAWNED_BY:
            return "met"
        fate = self.by_id[edge.parent].fate
        if fate is None:
            return "open"
        return "met" if is_met(When(edge.when), fate) and not edge.is_other else "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The number of steps of a run by job type and state."""

    by_type: dict[str, Counter[str]]

    @property
    def by_state(self) -> Counter[str]:
        return sum(self.by_type.values(), Counter())

    @property
    def total(self) -> int:
        return self.by_state.total()

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.by_state.items() if state not in LIVE)


def steps_of(run: WorkflowRun) -> Steps:
    """The first ``MOST_STEPS`` steps of a run, in the order in which they were made."""
    jobs = jobs_of(run).annotate(reason_line=Left(REASON_ALONE, LONGEST_REASON)).order_by("pk")
    rows = [Step(*row) for row in jobs.values_list(*Step._fields)[: MOST_STEPS + 1]]
    cut, rows = len(rows) > MOST_STEPS, rows[:MOST_STEPS]
    by_id = {step.pk: step for step in rows}
    dependencies = Dependency.objects.using(run._state.db).filter(child_id__in=list(by_id))
    is_other = RawSQL(IS_OTHER, (), output_field=BooleanField())  # noqa: S611 — a constant
    pairs = dependencies.annotate(is_other=is_other).order_by("child_id", "parent_id")
    edges = [Edge(*row) for row in pairs.values_list(*Edge._fields)[: 10 * MOST_STEPS]]
    edges += _spawned(run, rows)
    return Steps(
        by_id=by_id,
        edges=[edge for edge in edges if edge.parent in by_id and edge.child in by_id],
        cut=cut,
    )


def _spawned(run: WorkflowRun, steps: Sequence[Step]) -> list[Edge]:
    """The edges to the steps that others spawned, of which receipts have the rows of ids."""
    ids = [step.pk for step in steps]
    receipts = Receipt.objects.using(run._state.db).filter(job_id__in=ids, key__startswith=SPAWNED)
    return [
        Edge(job, child, SPAWNED_BY)
        for job, rows in receipts.values_list("job_id", "answer__ids")
        for first, last in rows or []
        for child in ids[bisect_left(ids, first) : bisect_right(ids, last)]
    ]


def counts_of(run: WorkflowRun) -> Counts:
    """How many steps a run has, in one statement."""
    by_type: dict[str, Counter[str]] = {}
    rows = jobs_of(run).values_list("job_type", "status", "skipped")
    for job_type, status, skipped, count in rows.annotate(count=Count("pk")).order_by("job_type"):
        state = SKIPPED if skipped and status == JobStatus.CANCELLED else status
        by_type.setdefault(job_type, Counter())[state] += count
    return Counts(by_type=by_type)


def jobs_of(run: WorkflowRun) -> QuerySet[Job]:
    """The jobs of a run. Older partitions of the history than the run are not read."""
    recent = OUTSIDE_HISTORY | Q(finished_at__gte=run.started_at)
    return Job.objects.using(run._state.db).filter(recent, workflow_run=run)


def compensations_of(text: str | None) -> Table:
    """The compensations in the JSON of a run, without their payloads."""
    try:
        stored = json.loads(text or "[]")
    except (ValueError, RecursionError):
        stored = []
    rows = [
        (
            one.get("undoes"),
            one.get("name"),
            new.get("job_type") if isinstance(new := one.get("new"), dict) else "",
        )
        for one in (stored if isinstance(stored, list) else ())
        if isinstance(one, dict)
    ]
    columns = list(map(Column, (_("Step"), _("Undone by"), _("Job type"))))
    lead = _("If the run fails, these undo the steps that succeeded, the last one first.")
    return Table(_("Compensations"), columns, rows, lead=lead, id="jobs-compensations")
