"""The account of the chaos test about a deploy finds slots that were taken too early, and jobs that
nobody passed by."""

from __future__ import annotations

import pytest

from tests.app.gate_jobs import charge_account
from tests.chaos import deploy, gates
from tests.factories import run_sql
from tests.test_chaos_partitions import Here

FOUND = """
INSERT INTO accounts.slot (at, gate, change, job_type)
SELECT created_at + make_interval(secs => %s), 'key one', 1, %s FROM django_jobs_job
"""


@pytest.fixture
def deployed_at(db: None) -> float:
    """A minute after a job came that no worker could run yet."""
    run_sql("CREATE SCHEMA accounts")
    gates.make(Here())
    charge_account.enqueue(7)
    run_sql("UPDATE django_jobs_job SET job_type = %s", [deploy.NEWCOMER])
    ((at,),) = run_sql("SELECT extract(epoch FROM created_at)::float8 FROM django_jobs_job")
    return float(at) + 60


def found(deployed_at: float) -> list[str]:
    return [problem for _, problem in deploy.problems(Here(), deployed_at)]


def test_a_job_that_is_passed_by_and_runs_after_the_deploy_balances(deployed_at: float) -> None:
    run_sql(FOUND, [30, "chaos.key_of_one"])
    run_sql(FOUND, [90, deploy.NEWCOMER])
    assert found(deployed_at) == []


def test_a_slot_that_is_taken_before_the_deploy_does_not_balance(deployed_at: float) -> None:
    run_sql(FOUND, [30, "chaos.key_of_one"])
    run_sql(FOUND, [30, deploy.NEWCOMER])
    assert found(deployed_at) == ["1 slots were taken by jobs that no worker could run"]


@pytest.mark.parametrize("at", [-1, 90])
def test_a_job_that_nobody_passes_by_does_not_balance(deployed_at: float, at: int) -> None:
    run_sql(FOUND, [at, "chaos.key_of_one"])
    assert found(deployed_at) == [
        "no job passed one by that no worker could run, so nothing was tried"
    ]
