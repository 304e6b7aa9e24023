"""The pytest fixture ``jobs``. pytest imports this in every project where the package is installed,
so it needs neither Django nor settings before a test asks for the fixture."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture
def jobs(db: None) -> Iterator[ModuleType]:
    """The functions of ``django_jobs.testing``, for a test that uses the database: a transaction
    that is rolled back, or, with ``django_db(transaction=True)``, none."""
    from django_jobs import testing
    from django_jobs.testing.travelling import return_to_now

    yield testing
    return_to_now()
