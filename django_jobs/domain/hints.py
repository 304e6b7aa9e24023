"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """``did you mean 'report' or 'reports'?``, or empty if no name is close. Ignores case."""
    folded = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), folded, n=most, cutoff=cutoff)
    return f"did you mean {' or '.join(repr(folded[one]) for one in near)}?" if near else ""
