"""Whole numbers, from the types that callers pass."""

from __future__ import annotations

from typing import Any, TypeGuard


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether this is an ``int``. True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
