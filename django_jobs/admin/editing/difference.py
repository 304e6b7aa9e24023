"""What a form would change of a job, and what past edits have changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from ...domain.payload import Coding
from ...lifecycle.editing.edits import Edited, StoredJob
from ..base.formatting import NOTHING, moment_in_zone
from ..base.json_display import coding_of, hidden, masked, object_of
from ..job_sections.timeline import entry_text, moment_of

LONGEST = 2_000
"""Characters of a value to show."""


def differences(
    stored: StoredJob, edited: Edited, before: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """What ``edited`` would change. ``before`` are the stored arguments, if they can be read."""
    rows = []
    if edited.payload is not None:
        coding = coding_of(stored.job_type)
        rows += of_payload(before or {}, json.loads(edited.payload), coding)
    if edited.queue != stored.queue:
        rows.append({"name": _("Queue"), "before": stored.queue, "after": edited.queue})
    if edited.priority != stored.priority:
        numbers = str(stored.priority), str(edited.priority)
        rows.append({"name": _("Priority"), "before": numbers[0], "after": numbers[1]})
    if edited.run_at is not None:
        due = moment_in_zone(time_of(stored.available_at))
        rows.append({"name": _("Due"), "before": due, "after": moment_in_zone(edited.run_at)})
    return rows


def of_payload(
    before: Mapping[str, Any], after: Mapping[str, Any], coding: Coding | None
) -> list[dict[str, Any]]:
    """The arguments that differ, with secrets masked. What is encoded is shown as a person writes
    it, unless the difference is that it is encoded."""
    rows = []
    for name in [*before, *(name for name in after if name not in before)]:
        if _text(before.get(name)) == _text(after.get(name)) and name in before and name in after:
            continue
        then, now = _shown(name, before, coding), _shown(name, after, coding)
        if then == now:
            then, now = _shown(name, before, None), _shown(name, after, None)
        rows.append({"name": name, "before": then, "after": now})
    return rows


def _shown(name: str, values: Mapping[str, Any], coding: Coding | None) -> str:
    if name not in values:
        return NOTHING
    value = masked({name: values[name]})[name]
    text = _text(value if coding is None else coding.as_text(value))
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def time_of(seconds: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # a row that enqueue did not write
        return None


def past_edits(
    headers: str | None, payload: str | None, seen: bool, coding: Coding | None
) -> list[dict[str, Any]]:
    """The edits, the latest first. ``headers`` and ``payload`` are the JSON text of the job, with
    ``coding``. If not ``seen``, the arguments are hidden."""
    stored = object_of(headers).get("edits")
    later: Any = object_of(payload)
    found = []
    for entry in reversed(stored if isinstance(stored, list) else []):
        before = entry.get("before") if isinstance(entry, dict) else None
        if not isinstance(before, dict):
            continue
        rows = _others(before, entry.get("after"))
        if "payload" in before:
            earlier = before["payload"]
            rows = [*_arguments(earlier, later, seen, coding), *rows]
            later = earlier
        found.append({"text": entry_text(entry, _("Edited by %(who)s")), "rows": rows})
    return found


def _arguments(before: Any, after: Any, seen: bool, coding: Coding | None) -> list[dict[str, Any]]:
    name = _("Arguments")
    if not seen:
        return [{"name": name, "before": hidden(name).note, "after": NOTHING}]
    if isinstance(before, dict):
        return of_payload(before, after if isinstance(after, dict) else {}, coding)
    return [{"name": name, "before": _("not kept: they were too large"), "after": NOTHING}]


def _others(before: Mapping[str, Any], after: Any) -> list[dict[str, Any]]:
    then = after if isinstance(after, dict) else {}
    labels = {"queue": _("Queue"), "priority": _("Priority"), "due": _("Due")}
    return [
        {"name": label, "before": _text_of(name, before), "after": _text_of(name, then)}
        for name, label in labels.items()
        if name in before
    ]


def _text_of(name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    text = NOTHING if value is None else str(value)[:LONGEST]
    at = moment_of(text) if name == "due" else None
    return text if at is None else moment_in_zone(at)
