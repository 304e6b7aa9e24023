"""What the tests of the commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.management.archives import Old


@pytest.fixture
def old(transactional_db: None) -> Iterator[Old]:
    made = Old()
    yield made
    made.drop()
