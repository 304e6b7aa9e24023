"""What the tests of the commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.management.archives import DAYS, Old


@pytest.fixture
def younger(transactional_db: None) -> Iterator[Old]:
    """The day after that of ``old``."""
    made = Old(DAYS - 1)
    yield made
    made.drop()


@pytest.fixture
def old(transactional_db: None) -> Iterator[Old]:
    made = Old()
    yield made
    made.drop()
