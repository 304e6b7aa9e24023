"""The jobs that undo the steps of a run, before they are made."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensation:
    """``step`` is the step that it undoes."""

    step: str
    name: str
    job_type: str


def compensations_of(text: str | None) -> list[Compensation]:
    """The compensations in the JSON of a run, without their payloads."""
    try:
        stored = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [
        Compensation(
            step=str(one.get("undoes")),
            name=str(one.get("name")),
            job_type=str(new.get("job_type") if isinstance(new := one.get("new"), dict) else ""),
        )
        for one in (stored if isinstance(stored, list) else ())
        if isinstance(one, dict)
    ]
