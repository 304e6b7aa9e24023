"""The bar of ``docs/performance.md`` that is counted in pages.

What tests on a large table roll back scatters its rows and its indexes: beside them in random order
a claim looked at half as many pages more. So the table is this test's own.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import settling
from django_jobs.lifecycle.claiming import START
from django_jobs.lifecycle.settling import Ending, Settled, _decide
from tests.factories import claim_ready, explain, register_worker, run_sql

from .test_costs import COSTS, MANY
from .test_plans import CLAIMS, claim_plan, fill

pytestmark = pytest.mark.django_db
OTHERS = 10_000


@pytest.fixture
def worker() -> int:
    """A worker, and a table of ready jobs that nothing was updated in."""
    run_sql("TRUNCATE django_jobs_job, django_jobs_run")
    fill("ready", OTHERS)
    return register_worker()


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_pages_of_a_claim_of_300_are_within_their_bar(worker: int, claim: str) -> None:
    plan = claim_plan(claim, worker, START, rows=MANY)
    assert 0 < pages_of(plan) <= COSTS["claim of 300"].pages * MANY


def test_the_pages_of_a_settle_of_300_are_within_their_bar(worker: int) -> None:
    held = claim_ready(worker, limit=MANY)
    endings = [Ending(job, Succeeded(), started=time.monotonic()) for job in held]
    decided = [Settled(ending, _decide(ending, None)) for ending in endings]
    plan = explain(settling.SETTLE, settling.parameters(decided))
    assert 0 < pages_of(plan) <= COSTS["settle of 300"].pages * len(held)


def pages_of(plan: list[dict[str, Any]]) -> int:
    """How often a page was looked at."""
    return int(plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"])
