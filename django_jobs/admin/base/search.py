"""The search boxes over jobs and over runs. Each term is found by an index or a bounded read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.db.models import Q, QuerySet

from ...conf import conf
from ...domain.states import LIVE, JobState
from ...lifecycle.history import JOBS, newest_part
from ...models import Job, Queue
from ...models.run import by_last_run
from .history_list import MOST_READ

HISTORY = (JobState.SUCCEEDED, JobState.CANCELLED)
OUTSIDE_HISTORY = Q(status__in=sorted({*LIVE, JobState.DEAD}))
MOST_FOUND = 1_000
LARGEST_ID = 2**63 - 1
COLUMNS = {"type": "job_type", "key": "idempotency_key"}
COLUMNS_OF_RUNS = {"code": "error_code", "error": "fingerprint"}


@dataclass(slots=True)
class Terms:
    """What the text in the search box asks for. ``numbers`` are those of jobs."""

    numbers: list[int] = field(default_factory=list)
    conditions: Q = field(default_factory=Q)
    keys: list[str] = field(default_factory=list)
    of_run: dict[str, str] = field(default_factory=dict)
    invalid: bool = False

    @property
    def search(self) -> bool:
        """Whether jobs of any status have to be searched for: their numbers are not given."""
        return bool(self.conditions) and not (self.numbers or self.of_run or self.invalid)

    @property
    def numbers_of_jobs(self) -> list[int]:
        return [number for number in self.numbers if number <= LARGEST_ID]


def terms_of(text: str) -> Terms:
    """The terms of ``text``."""
    terms = Terms()
    for term in text.split():
        kind, colon, value = term.partition(":")
        if not colon and term.isascii() and term.lstrip("#").isdigit():
            terms.numbers.append(int(term.lstrip("#")))
        elif kind in COLUMNS and value:
            terms.conditions &= Q(**{COLUMNS[kind]: value})
            if kind == "key":
                terms.keys.append(value)
        elif kind in COLUMNS_OF_RUNS and value:
            terms.invalid |= terms.of_run.setdefault(COLUMNS_OF_RUNS[kind], value) != value
        else:
            terms.invalid = True
    return terms


def search_jobs(jobs: QuerySet[Any], text: str, *, in_one_partition: bool) -> QuerySet[Any]:
    """The jobs among ``jobs`` that match every term of ``text``. None match an invalid term.

    Without numbers it finds the newest of them, in the live table and the newest part of the
    history; ``in_one_partition``, ``jobs`` are of one partition, and it finds them all. A term of
    the last run finds dead jobs.
    """
    terms = terms_of(text)
    if terms.invalid:
        return jobs.none()
    if terms.of_run:
        jobs = by_last_run(jobs.filter(status=JobState.DEAD), **terms.of_run)
    if terms.numbers:
        return jobs.filter(terms.conditions, pk__in=terms.numbers_of_jobs)
    if not terms.search or in_one_partition:
        return jobs.filter(terms.conditions)
    return jobs.filter(pk__in=_newest(terms))


def search_runs(runs: QuerySet[Any], text: str) -> QuerySet[Any]:
    """The runs among ``runs`` that match every term of ``text``. None match a term of a job."""
    terms = terms_of(text)
    if terms.invalid or terms.conditions:
        return runs.none()
    found = runs.filter(**terms.of_run)
    return found.filter(job_id__in=terms.numbers_of_jobs) if terms.numbers else found


def _newest(terms: Terms) -> set[int]:
    """Read once, for the count and for the page."""
    jobs = Job.objects.using(conf().database)
    live, ended = jobs.live(), jobs.filter(status__in=HISTORY)
    if terms.keys:  # names the queues, so that the unique index is used
        live = live.filter(queue__in=list(Queue.objects.names()))
    if (earliest := newest_part(JOBS, MOST_READ)) is not None:
        ended = ended.filter(finished_at__gte=earliest)
    found: set[int] = set()
    for rows in (live, jobs.dead(), ended):
        matching = rows.filter(terms.conditions).order_by("-pk").values_list("pk", flat=True)
        found.update(matching[:MOST_FOUND])
    return found
