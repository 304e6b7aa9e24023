"""Validates the tags of ``@job`` and of ``using()``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..domain.tags import MOST_TAGS, combined, tag_problem
from ..exceptions import EnqueueError


def tag_names(given: Iterable[str] | str | None, where: str) -> tuple[str, ...]:
    """The tags of the option ``tags``, sorted and each once; one may stand alone.

    Raises :class:`EnqueueError` for what cannot be a tag.
    """
    tags: Any = [given] if isinstance(given, str) else given or ()
    try:
        tags = list(tags)
    except TypeError:
        raise EnqueueError(f'{where}: tags are texts, such as ["vip"], not {given!r}') from None
    for tag in tags:
        if problem := tag_problem(tag):
            raise EnqueueError(f"{where}: a tag {problem}: {tag!r}")
    return combined(tags)


def with_more(
    tags: tuple[str, ...], given: Iterable[str] | str | None, where: str
) -> tuple[str, ...]:
    """``tags`` and those that are given for one request. Raises :class:`EnqueueError`."""
    return combined(tags, tag_names(given, where))


def check_number(tags: tuple[str, ...], where: str) -> None:
    """Raise :class:`EnqueueError` for more tags than a job may have."""
    if len(tags) > MOST_TAGS:
        raise EnqueueError(f"{where}: a job has at most {MOST_TAGS} tags, not {len(tags)}")
