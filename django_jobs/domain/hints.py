"""Suggestions for misspelt names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """``did you mean 'report' or 'reports'?``, or empty if no name is close. Ignores case."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), by_folded, n=most, cutoff=cutoff)
    quoted = [repr(by_folded[folded]) for folded in near]
    return f"did you mean {' or '.join(quoted)}?" if quoted else ""
