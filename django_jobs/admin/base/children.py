"""What the handler of a job enqueued."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import QuerySet, Subquery, Value
from django.db.models.functions import Greatest

from ...api.generations import PARENT
from ...conf import conf
from ...models import Job
from ..lists.change_list import NEWEST
from .history_list import newest_of

NUMBER = re.compile(r"[0-9]{1,18}")


def children_of(
    jobs: QuerySet[Any], parent: int, most: int, ids: int
) -> list[tuple[int, str, str]]:
    """The id, the type and the status of at most ``most`` of ``jobs`` that the handler of this one
    enqueued, the newest first. No index has them: as many ``ids`` are read behind that of the
    parent, and of the newest jobs."""
    everything: QuerySet[Any] = Job.objects.using(conf().database)
    newest = Subquery(everything.order_by("-pk").values("pk")[:1])
    found = jobs.filter(headers__contains={PARENT: parent})
    parts = (
        found.filter(pk__gt=parent, pk__lte=parent + ids),
        # With both ends the planner expects few and reads the index, also of many rows.
        found.filter(pk__gt=Greatest(parent + ids, newest - Value(ids)), pk__lte=newest),
    )
    return newest_of([one.values_list("pk", "job_type", "status") for one in parts], most)


def found_children(parent: str, most: int) -> list[int]:
    pk = int(parent) if NUMBER.fullmatch(parent) else 0
    jobs: QuerySet[Any] = Job.objects.using(conf().database)
    return [child for child, *_ in children_of(jobs, pk, most, NEWEST)]
