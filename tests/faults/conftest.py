"""Fixtures of the tests that make faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.worker.conftest import path, start_worker

from .stage import Stage

__all__ = ["path", "start_worker"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A server for the tests of one module, which stop it."""
    with Cluster() as own:
        yield own


@pytest.fixture
def stage(cluster: Cluster, tmp_path: Path, django_db_blocker: Any) -> Iterator[Stage]:
    """That server with its tables empty, and workers on it."""
    with Stage(cluster, tmp_path, django_db_blocker) as own:
        yield own
