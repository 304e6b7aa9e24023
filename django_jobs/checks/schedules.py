"""System checks of declared schedules.

E010 a schedule cannot be fired, or is declared twice
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error

from .. import registry
from ..exceptions import JobsError
from . import TAG


def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    """Check that each declared schedule names a known job type and arguments that it takes."""
    messages: list[CheckMessage] = [
        Error(
            f"The schedule {name!r} is declared twice with different options.",
            hint="Rename one of them, or remove it.",
            id=f"{TAG}.E010",
        )
        for name in registry.schedule_clashes()
    ]
    for name, fields in sorted(registry.schedules().items()):
        messages += _problems(name, fields)
    return messages


def _problems(name: str, fields: Mapping[str, Any]) -> Iterator[CheckMessage]:
    try:
        job_type = registry.get(fields["job_type"])
        job_type.gates_of(job_type.bind(**fields["payload"]))
    except JobsError as error:
        yield Error(
            f"The schedule {name!r} cannot be fired: {error}.",
            hint="Correct its job type or its payload in the call of schedule() in jobs.py.",
            id=f"{TAG}.E010",
        )
