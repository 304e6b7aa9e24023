"""The headers of a message in the headers of a job, and the request of an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

HEADER = "celery"
"""The header of a job under which those of Celery are stored."""

ONE, ALL = "one", "all"
"""The result of the step before, or a list of those of all steps before."""

OF_A_REQUEST = {
    *("shadow", "eta", "expires", "group", "group_index", "timelimit"),
    *("root_id", "parent_id", "ignore_result", "retries"),
}
"""Headers of Celery that a job keeps."""
OF_THE_ROW = {
    *("lang", "task", "id", "argsrepr", "kwargsrepr", "origin"),
    *("replaced_task_nesting", "stamps", "stamped_headers"),
}
"""Those that its row has in other columns, or that nobody reads. All others were given by the
caller, or by a receiver of ``before_task_publish``."""


@dataclass(slots=True)
class RetryAsked:
    """What a running task asks of its retry. Where Celery sends the task again, it is added to
    ``retries_asked`` of the request. ``priority`` is that of a job, None for an unchanged one;
    ``options`` are those with which Celery sends."""

    after: float
    queue: str
    priority: int | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]


def headers_of(name: str, task_id: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The headers of the message that Celery would send."""
    limits = [options.get("time_limit"), options.get("soft_time_limit")]
    return {
        "lang": "py",
        "task": name,
        "id": task_id,
        "shadow": options.get("shadow"),
        "group": options.get("group_id"),
        "group_index": options.get("group_index"),
        "retries": options.get("retries", 0),
        "timelimit": limits,
        "root_id": options.get("root_id"),
        "parent_id": options.get("parent_id"),
        "ignore_result": options.get("ignore_result", False),
        "eta": _as_text(options.get("eta")),
        "expires": _as_text(options.get("expires")),
        **options.get("headers", {}),
    }


def _as_text(moment: Any) -> Any:
    return moment.isoformat() if isinstance(moment, datetime) else moment


def stored(
    headers: Mapping[str, Any], *, by_position: Sequence[str], upstream: str | None
) -> dict[str, Any]:
    """The headers of a job: those of the caller, and those of Celery under :data:`HEADER`.
    ``by_position`` names the arguments that were given by position, ``upstream`` is what
    replaces the first one: :data:`ONE` or :data:`ALL`."""
    given = {key: value for key, value in headers.items() if value and value != [None, None]}
    own = {key: value for key, value in given.items() if key in OF_A_REQUEST}
    if by_position:
        own["by_position"] = by_position
    if upstream is not None:
        own["upstream"] = upstream
    others = {key: value for key, value in given.items() if key not in OF_A_REQUEST | OF_THE_ROW}
    return {**others, HEADER: own} if own else others


def read(headers: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The headers of the caller, and those of Celery, of a job."""
    own = headers.get(HEADER)
    others = {key: value for key, value in headers.items() if key != HEADER}
    return others, dict(own) if isinstance(own, dict) else {}
