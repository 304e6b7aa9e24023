"""The search box over groups of failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...domain.search_terms import words
from ...metrics.failures import FailureGroup


@dataclass(slots=True)
class GroupSearch:
    """What the text in the box asks for: parts of the job type, of the error or of either."""

    types: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    either: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """The terms that are not understood. Nothing matches them."""

    @classmethod
    def of(cls, text: str) -> GroupSearch:
        """The terms of ``text``."""
        search = cls()
        for word in words(text):
            part = word.value.casefold()
            if word.kind in ("type", "error") and part:
                (search.types if word.kind == "type" else search.errors).append(part)
            elif word.kind or word.text.startswith(":"):
                search.unknown.append(word.text)
            else:
                search.either.append(part)
        return search

    def matches(self, groups: Iterable[FailureGroup]) -> list[FailureGroup]:
        """The groups that match every term."""
        return [] if self.unknown else [group for group in groups if self._matches(group)]

    def _matches(self, group: FailureGroup) -> bool:
        job_type = group.job_type.casefold()
        error = f"{group.error} {group.fingerprint}".casefold()
        return (
            all(part in job_type for part in self.types)
            and all(part in error for part in self.errors)
            and all(part in f"{job_type} {error}" for part in self.either)
        )
