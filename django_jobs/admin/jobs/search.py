"""The search box over jobs: numbers, ``type:`` and ``key:``, each by an index or a bounded read."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ...conf import conf
from ...models import Job, Queue

NEWEST = 100_000
"""Jobs that a search without an index reads."""
MOST_FOUND = 1_000
LARGEST_ID = 2**63 - 1


def search_jobs(jobs: QuerySet[Any], text: str) -> QuerySet[Any]:
    """The jobs among ``jobs`` that match every term of ``text``. None match an invalid term."""
    numbers = []
    for term in text.split():
        kind, colon, value = term.partition(":")
        if not colon and term.isascii() and term.lstrip("#").isdigit():
            numbers.append(int(term.lstrip("#")))
        elif kind == "type" and value:
            jobs = jobs.filter(pk__in=_newest(job_type=value))
        elif kind == "key" and value:
            jobs = jobs.filter(pk__in={*_live_with_key(value), *_newest(idempotency_key=value)})
        else:
            return jobs.none()
    if numbers:
        jobs = jobs.filter(pk__in=[number for number in numbers if number <= LARGEST_ID])
    return jobs


def _newest(**condition: str) -> list[int]:
    jobs = Job.objects.using(conf().database).order_by("-pk").values_list("pk", flat=True)
    newest = jobs.first() or 0
    return list(jobs.filter(pk__gt=newest - NEWEST, **condition)[:MOST_FOUND])


def _live_with_key(key: str) -> list[int]:
    """Ids of live jobs with this key. Names the queues, so that the unique index is used."""
    jobs = Job.objects.using(conf().database).live()
    matching = jobs.filter(queue__in=list(Queue.objects.names()), idempotency_key=key)
    return list(matching.values_list("pk", flat=True)[:MOST_FOUND])
