"""Fixtures of the tests of metrics."""

from __future__ import annotations

import pytest

from django_jobs.metrics import gauges


@pytest.fixture(autouse=True)
def count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape counts all live jobs, however many empty pages other tests have left in their
    table."""
    monkeypatch.setitem(gauges.BOUNDS, "whole", 1_000_000)
