"""Fixtures of the tests of health."""

from __future__ import annotations

import pytest

from .scoreboards import Clock, stand_still


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """It stands still, so nothing in a report is late because the machine is busy."""
    return stand_still(monkeypatch)
