"""What an edit would change, as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from ...lifecycle.editing.edits import Edited, StoredJob
from ..base.formatting import NOTHING, moment_in_zone
from ..base.json_display import masked

LONGEST = 2_000
"""Characters of a value to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What is called ``name`` is ``before`` and would be ``after``."""

    name: str
    before: str
    after: str


def differences(
    stored: StoredJob, edited: Edited, before: Mapping[str, Any] | None
) -> list[Difference]:
    """What ``edited`` would change. ``before`` are the stored arguments, if they can be read."""
    rows = []
    if edited.payload is not None:
        rows += of_payload(before or {}, json.loads(edited.payload))
    if edited.queue != stored.queue:
        rows.append(Difference(name=_("Queue"), before=stored.queue, after=edited.queue))
    if edited.priority != stored.priority:
        numbers = str(stored.priority), str(edited.priority)
        rows.append(Difference(name=_("Priority"), before=numbers[0], after=numbers[1]))
    if edited.run_at is not None:
        due = _moment(stored.available_at)
        rows.append(Difference(name=_("Due"), before=due, after=moment_in_zone(edited.run_at)))
    return rows


def of_payload(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Difference]:
    """The arguments that differ, with secrets masked."""
    names = [*before, *(name for name in after if name not in before)]
    return [
        Difference(name=name, before=_shown(name, before), after=_shown(name, after))
        for name in names
        if _text(before.get(name)) != _text(after.get(name)) or (name in before) != (name in after)
    ]


def _shown(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        return NOTHING
    text = _text(masked({name: values[name]})[name])
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _moment(seconds: float) -> str:
    try:
        return moment_in_zone(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):  # a row that enqueue did not write
        return NOTHING
