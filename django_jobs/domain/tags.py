"""Tags: what a tag can be, and how PostgreSQL reads several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .concurrency import name_problem

LONGEST_TAG = 100
"""Characters."""
MOST_TAGS = 20
"""Of one job."""


def tag_problem(tag: Any) -> str | None:
    if problem := name_problem(tag, LONGEST_TAG):
        return problem
    return "begins or ends with a space" if tag != tag.strip() else None


def combined(*tags: Iterable[str]) -> tuple[str, ...]:
    """All tags, sorted and each once."""
    return tuple(sorted({tag for some in tags for tag in some}))


# Without control characters, JSON quotes a string as PostgreSQL does in an array.
def as_text(tags: Sequence[str]) -> str | None:
    """Tags as the text of an array; None for none."""
    return f"{{{json.dumps(tags, ensure_ascii=False)[1:-1]}}}" if tags else None


def of_text(text: str) -> list[str]:
    """The tags in a text of :func:`as_text`."""
    tags: list[str] = json.loads(f"[{text[1:-1]}]")
    return tags
