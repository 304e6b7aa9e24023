"""How far a job is, behind the fence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from django_jobs import enqueue_many
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.progress import REPORT, TAKE_OVER, ProgressReport, report, take_over
from django_jobs.models import Progress
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    explain,
    in_threads,
    register_worker,
    run_sql,
)

pytestmark = pytest.mark.django_db


def row_of(held: ClaimedJob) -> tuple[Any, ...]:
    row = Progress.objects.get(pk=held.id)
    return row.attempt, row.fraction, row.note, row.checkpoint


def test_a_report_keeps_the_fields_that_it_omits() -> None:
    held = enqueue_and_claim()
    assert report([ProgressReport(job=held, fraction=0.1, note="a")]) == {(held.id, 1)}
    assert row_of(held) == (1, 0.1, "a", None)
    report([ProgressReport(job=held, checkpoint='{"row": 5}')])
    assert row_of(held) == (1, 0.1, "a", {"row": 5})
    report([ProgressReport(job=held, fraction=0.2)])
    assert row_of(held) == (1, 0.2, "", {"row": 5})
    report([ProgressReport(job=held, checkpoint="null")])  # said, and not left out
    assert row_of(held) == (1, 0.2, "", None)
    assert take_over(held) == (True, "null")


@pytest.mark.parametrize("fields", [{"attempt": 2}, {"worker": 0}, {"id": 0}])
def test_only_the_current_attempt_may_report(fields: dict[str, int]) -> None:
    held = enqueue_and_claim()
    assert report([ProgressReport(job=held._replace(**fields), fraction=0.5)]) == set()
    assert not Progress.objects.exists()


def test_many_endings_are_settled_at_once_and_each_is_signalled() -> None:
    enqueue_many("app.noop", [{}] * 5)
    held = claim_ready(register_worker())
    reports = [ProgressReport(job=one, fraction=0.5) for one in held]
    reports.append(ProgressReport(job=held[0]._replace(id=0), fraction=0.5))
    assert report(reports) == {(one.id, 1) for one in held}
    assert Progress.objects.count() == 5


def test_an_earlier_attempt_reports_nothing_after_the_job_was_taken_over() -> None:
    held = enqueue_and_claim()
    report([ProgressReport(job=held, checkpoint="52")])
    assert take_over(held._replace(attempt=2)) == (True, "52")
    # As if it had looked at the job before it was claimed again.
    assert report([ProgressReport(job=held, checkpoint="51")]) == set()
    assert take_over(held) == (False, None)
    assert row_of(held)[0] == 2


def test_a_job_without_a_report_has_no_checkpoint() -> None:
    assert take_over(enqueue_and_claim()) == (False, None)


@pytest.mark.django_db(transaction=True)
def test_reports_of_many_threads_do_not_wait_in_a_circle() -> None:
    enqueue_many("app.noop", [{}] * 20)
    held = claim_ready(register_worker())

    def write(number: int) -> int:
        order = held if number % 2 else held[::-1]
        return sum(
            len(report([ProgressReport(job=one, fraction=0.5) for one in order])) for _ in range(20)
        )

    assert in_threads(4, write) == [400] * 4


@pytest.mark.usefixtures("fresh_tables")
def test_jobs_are_found_by_primary_key_among_ten_thousand() -> None:
    enqueue_many("app.noop", [{}] * 10_000)
    held = claim_ready(register_worker(), limit=50)
    run_sql("ANALYZE django_jobs_job")
    rows = [{"id": one.id, "attempt": 1, "worker": one.worker, "fraction": 0.5} for one in held]
    plan = explain(REPORT, {"rows": json.dumps(rows)})
    assert "django_jobs_job_pkey" in {node.get("Index Name") for node in plan}
    read = {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"}
    assert "django_jobs_job" not in read
    explain(TAKE_OVER, {"id": held[0].id, "attempt": 1})
