"""What earlier edits of a job changed, as its headers remember it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ...domain.payload import Coding
from ..base.formatting import NOTHING, moment_in_zone
from ..base.json_display import hidden, object_of
from ..job_sections.timeline import entry_text
from .difference import LONGEST, Difference, of_payload


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEdit:
    text: str
    rows: list[Difference]


def past_edits(
    headers: str | None, payload: str | None, seen: bool, coding: Coding | None
) -> list[PastEdit]:
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
        found.append(PastEdit(text=entry_text(entry, _("Edited by %(who)s")), rows=rows))
    return found


def _arguments(before: Any, after: Any, seen: bool, coding: Coding | None) -> list[Difference]:
    name = _("Arguments")
    if not seen:
        return [Difference(name=name, before=hidden(name).note, after=NOTHING)]
    if isinstance(before, dict):
        return of_payload(before, after if isinstance(after, dict) else {}, coding)
    return [Difference(name=name, before=_("not kept: they were too large"), after=NOTHING)]


def _others(before: Mapping[str, Any], after: Any) -> list[Difference]:
    then = after if isinstance(after, dict) else {}
    labels = {"queue": _("Queue"), "priority": _("Priority"), "due": _("Due")}
    return [
        Difference(name=label, before=_shown(name, before), after=_shown(name, then))
        for name, label in labels.items()
        if name in before
    ]


def _shown(name: str, values: Mapping[str, Any]) -> str:
    value = values.get(name)
    text = NOTHING if value is None else str(value)[:LONGEST]
    try:
        at = parse_datetime(text) if name == "due" else None
    except ValueError:
        at = None
    return text if at is None or at.tzinfo is None else moment_in_zone(at)
