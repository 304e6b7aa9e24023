"""What an edit would change, as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils.translation import gettext as _

from ...domain.payload import Coding
from ...lifecycle.editing.edits import Edited, StoredJob
from ..base.formatting import NOTHING, moment_in_zone
from ..base.json_display import coding_of, masked

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
        coding = coding_of(stored.job_type)
        rows += of_payload(before or {}, json.loads(edited.payload), coding)
    if edited.queue != stored.queue:
        rows.append(Difference(name=_("Queue"), before=stored.queue, after=edited.queue))
    if edited.priority != stored.priority:
        numbers = str(stored.priority), str(edited.priority)
        rows.append(Difference(name=_("Priority"), before=numbers[0], after=numbers[1]))
    if edited.run_at is not None:
        due = _moment(stored.available_at)
        rows.append(Difference(name=_("Due"), before=due, after=moment_in_zone(edited.run_at)))
    return rows


def of_payload(
    before: Mapping[str, Any], after: Mapping[str, Any], coding: Coding | None
) -> list[Difference]:
    """The arguments that differ, with secrets masked. What is encoded is shown as a person writes
    it, unless the difference is that it is encoded."""
    rows = []
    for name in [*before, *(name for name in after if name not in before)]:
        if _text(before.get(name)) == _text(after.get(name)) and name in before and name in after:
            continue
        then, now = _shown(name, before, coding), _shown(name, after, coding)
        if then == now:
            then, now = _shown(name, before, None), _shown(name, after, None)
        rows.append(Difference(name=name, before=then, after=now))
    return rows


def _shown(name: str, values: Mapping[str, Any], coding: Coding | None) -> str:
    if name not in values:
        return NOTHING
    value = masked({name: values[name]})[name]
    text = _text(value if coding is None else coding.as_text(value))
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def _moment(seconds: float) -> str:
    try:
        return moment_in_zone(datetime.fromtimestamp(seconds, UTC))
    except (ValueError, OverflowError, OSError):  # a row that enqueue did not write
        return NOTHING
