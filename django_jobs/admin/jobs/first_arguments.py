"""The first arguments of the jobs of a list, which tell them apart."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import Case, F, Func, IntegerField, TextField, When
from django.db.models.functions import Cast

from ... import registry
from ...conf import conf
from ...models import Job
from ..base.formatting import shortened
from ..base.json_display import coding_of, masked, object_of

MOST_STORED = 4_000
"""Bytes. A payload that is stored in more is not read, so that a list of large ones is fast."""
LONGEST_VALUE = 40
LONGEST = 200
CUT = "…"


def add_arguments(rows: list[Any]) -> None:
    """Give each job ``arguments``: a line of names and values, with secrets masked. One
    statement."""
    jobs = Job.objects.using(conf().database).filter(pk__in=[row.pk for row in rows]).order_by()
    size = Func(F("payload"), function="pg_column_size", output_field=IntegerField())
    text = Case(When(stored__lte=MOST_STORED, then=Cast(F("payload"), TextField())))
    found = dict(jobs.annotate(stored=size, as_text=text).values_list("pk", "as_text"))
    for row in rows:
        stored = found.get(row.pk, "")
        row.arguments = CUT if stored is None else _line(row.job_type, stored)


def _line(name: str, payload: str) -> str:
    values: dict[str, Any] = masked(object_of(payload))
    job_type, coding = registry.find(name), coding_of(name)
    if coding is not None:
        values = coding.as_text(values)
    # PostgreSQL sorts them by their length.
    places = {one: at for at, one in enumerate(job_type.signature.parameters)} if job_type else {}
    names = sorted(values, key=lambda one: places.get(one, len(places)))
    line = ", ".join(f"{one}: {_shown(values[one])}" for one in names)
    return shortened(line, LONGEST) if line else ""


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return shortened(text, LONGEST_VALUE)
