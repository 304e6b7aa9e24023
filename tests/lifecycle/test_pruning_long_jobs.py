"""What a job has reported, and its receipts, go with it and not before."""

from __future__ import annotations

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import pruning
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.progress import ProgressReport, look_up, report, store, take_over
from django_jobs.lifecycle.pruning import Rules, prune
from django_jobs.models import Job, Progress, Receipt
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    explain,
    failure,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

DAY = 86_400.0
RULES: Rules = {"*": {"succeeded": 7 * DAY, "dead": 30 * DAY}}


def test_progress_and_receipts_go_with_their_job_and_those_of_others_stay() -> None:
    worker = register_worker()
    held = [enqueue_and_claim(worker=worker) for _ in range(2)]
    for one in held:
        report([ProgressReport(job=one, fraction=0.5, checkpoint="1")])
        for key in ("first", "second"):
            store(one, key, "1")
        settle_one(one, Succeeded())
    old, young = (one.id for one in held)
    run_sql(
        "UPDATE django_jobs_job SET finished_at = finished_at - interval '8 days' WHERE id = %s",
        [old],
    )
    assert prune(RULES, dry_run=True).deleted == 1
    assert Progress.objects.count() == 2
    assert prune(RULES).deleted == 1
    assert list(Job.objects.values_list("pk", flat=True)) == [young]
    assert list(Progress.objects.values_list("pk", flat=True)) == [young]
    assert list(Receipt.objects.values_list("job_id", flat=True)) == [young, young]


def test_a_replay_keeps_progress_and_receipts() -> None:
    worker = register_worker()
    held = enqueue_and_claim(worker=worker)
    report([ProgressReport(job=held, checkpoint="52")])
    store(held, "charge", "1")
    settle_one(held, failure(final=True))
    job_operations.replay([held.id], check=lambda job: None)
    (again,) = claim_ready(worker)
    assert take_over(again) == (True, "52")
    assert look_up(again, "charge") is not None


@pytest.mark.usefixtures("fresh_tables")
def test_progress_and_receipts_are_found_by_the_job() -> None:
    run_sql(
        "INSERT INTO django_jobs_progress (job_id, attempt, note, reported_at)"
        " SELECT n, 1, '', now() FROM generate_series(1, 20000) AS n"
    )
    run_sql(
        "INSERT INTO django_jobs_receipt (job_id, key, attempt, made_at)"
        " SELECT n, 'charge', 1, now() FROM generate_series(1, 20000) AS n"
    )
    settle_one(enqueue_and_claim(), Succeeded())
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '8 days'")
    run_sql("ANALYZE django_jobs_progress, django_jobs_receipt, django_jobs_job")
    rules = '{"*": {"succeeded": 604800}}'
    parameters = {
        "after": 0,
        "page": pruning.PAGE,
        "rules": rules,
        "shortest": 604800,
        "with_runs": True,
    }
    plan = explain(pruning.PRUNE[pruning.HISTORY], parameters)
    used = {node.get("Index Name") for node in plan}
    assert used >= {"django_jobs_progress_pkey", "django_jobs_receipt_key"}
