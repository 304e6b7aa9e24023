"""What an entry of the catalogue of faults is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: what happens, and the tests that show what must hold, as ``path::test_name``. Or
    why it cannot be made here, in a sentence; both where a part of it can."""

    what: str
    tests: tuple[str, ...] = ()
    cannot: str = ""


def shown(what: str, *tests: str, cannot: str = "") -> Fault:
    """A fault that these tests make."""
    return Fault(what, tests, cannot)
