"""Handlers whose payloads and names have changed."""

from __future__ import annotations

from typing import Any

from django_jobs import job


def split_name(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 1 had one name, version 2 has two."""
    first, _, last = payload.pop("name").partition(" ")
    return {**payload, "first": first, "last": last}


def add_greeting(payload: dict[str, Any]) -> dict[str, Any]:
    """Version 3 says how to greet."""
    return {**payload, "greeting": "Dear"}


@job(version=3, upgrades={1: split_name, 2: add_greeting}, schedulable=True)
def greet(first: str, last: str, greeting: str = "Hello") -> str:
    """Was ``greet(name)``, then ``greet(first, last)``."""
    return f"{greeting} {first} {last}"


@job(version=4, upgrades={3: lambda payload: None})
def break_upgrade() -> None:
    """Reads versions 3 and 4, and its upgrade gives nothing."""


@job(name="app.present_name", aliases=["app.old_name", "app.older_name"], schedulable=True)
def renamed(note: str = "") -> str:
    """Had two names before."""
    return f"renamed {note}"
