"""What the runs of failures say, read with a few steps in an index for each failure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_jobs.admin.failures.group_rows import place_of
from django_jobs.metrics import failures
from django_jobs.metrics.failures import code_versions, code_versions_of, newest_failure, rows_of
from django_jobs.models import Job, Run, Worker
from tests.app.jobs import noop
from tests.factories import (
    analyze,
    enqueue_and_claim,
    explain,
    failure,
    leaves,
    register_worker,
    rows_read,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def dead(version: str, queue: str = "default", kind: str = "KeyError") -> Job:
    worker = register_worker()
    Worker.objects.filter(pk=worker).update(code_version=version)
    held = enqueue_and_claim(noop, worker=worker, queue=queue)
    settle_one(held, failure(kind=kind, final=True))
    return Job.objects.get(pk=held.id)


def test_the_newest_of_all_queues_and_the_versions_of_all() -> None:
    first, _second, newest = dead("v1"), dead("v2", "bulk"), dead("v2", "bulk")
    dead("v3", kind="ValueError")
    key = first.job_type, first.fingerprint, ["bulk", "default"]
    found = newest_failure(*key)
    assert found is not None
    assert (found.job, found.run) == (newest.pk, Run.objects.get(job=newest).pk)
    assert [(one.version, one.jobs) for one in code_versions(*key)] == [("v2", 2), ("v1", 1)]
    assert newest_failure(first.job_type, "gone", ["bulk", "default"]) is None
    assert code_versions(first.job_type, "gone", ["bulk"]) == []
    some = code_versions_of([first.pk, newest.pk])
    assert [(one.version, one.jobs) for one in some] == [("v2", 1), ("v1", 1)]


def test_rows_have_the_version_of_the_oldest_and_the_end_of_the_newest_traceback() -> None:
    first, last = dead("v1"), dead("v2")
    Run.objects.filter(job=first).update(traceback="old")
    Run.objects.filter(job=last).update(traceback="x" * 9_000 + "new")
    keys = [("default", first.job_type, first.fingerprint), ("bulk", first.job_type, "gone")]
    known, nothing = rows_of(keys)
    assert (known.version, len(known.end), known.end[-3:]) == ("v1", 6_000, "new")
    assert (known.since, known.at) == (
        Job.objects.get(pk=first.pk).finished_at,
        Job.objects.get(pk=last.pk).finished_at,
    )
    assert nothing == ("", None, "", None)
    assert rows_of([]) == []


def test_a_version_whose_worker_was_deleted_is_missing() -> None:
    job = dead("v1")
    Worker.objects.all().delete()
    assert code_versions(job.job_type, job.fingerprint, ["default"]) == []
    assert rows_of([("default", job.job_type, job.fingerprint)])[0][0] == ""


def test_the_place_is_the_innermost_line_of_the_project() -> None:
    own = '  File "/srv/shop/crm/jobs.py", line 41, in push\n'
    library = '  File "/srv/lib/python3/site-packages/x/api.py", line 9, in post\n'
    assert place_of(own + library) == "crm/jobs.py:41 in push"
    assert place_of(library) == "x/api.py:9 in post"
    assert place_of("no frames") == ""


def fill_with_dead_jobs() -> Job:
    """20,000 more that died like the returned one."""
    job = dead("v1")
    run_sql(
        "INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority,"
        " rank, available_at, attempt, failures, max_attempts, max_crashes, finished_at,"
        " fingerprint, headers, created_at)"
        " SELECT queue, job_type, '{}', 1, 'dead', 0, 0, now(), 1, 1, 5, 3, now(), fingerprint,"
        " '{}', now() FROM django_jobs_job, generate_series(1, 20000)"
    )
    run_sql(
        "INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at,"
        " claimed_at, finished_at, error_type, error_message, traceback, fingerprint)"
        " SELECT id, 1, 'failed', 1, now(), now(), finished_at, '', '', '', fingerprint"
        " FROM django_jobs_job WHERE id <> %s",
        [job.pk],
    )
    analyze("django_jobs_job", "django_jobs_run", "django_jobs_worker")
    return job


def assert_few_are_read(plan: list[dict[str, Any]], indexes: set[str], most: int) -> None:
    """Jobs are read by these indexes, and runs in one partition."""
    jobs = [node for node in plan if node.get("Alias") == "job"]
    assert {node["Index Name"] for node in jobs if "Index Name" in node} == indexes
    assert not [node for node in jobs if node["Node Type"] == "Seq Scan"]
    runs = [node for node in plan if node.get("Alias", "").startswith("run")]
    searched = [node for node in runs if node["Actual Loops"] and "Index Name" in node]
    assert len({node["Relation Name"] for node in searched}) == 1 < len(runs)
    assert not [node for node in runs if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    read = max(node["Actual Rows"] * node["Actual Loops"] for node in [*jobs, *runs])
    assert read <= most


@pytest.mark.usefixtures("fresh_tables")
@pytest.mark.parametrize("name", ["NEWEST", "VERSIONS", "ROWS", "BEGAN"])
def test_each_reads_the_index_of_failures_and_a_bounded_number_of_runs(name: str) -> None:
    job = fill_with_dead_jobs()
    parameters = {
        **{"job_type": job.job_type, "fingerprint": job.fingerprint, "queues": ["default"]},
        **{"job_types": [job.job_type], "fingerprints": [job.fingerprint], "since": "-infinity"},
        **{"queue": None, "most": 500},
    }
    plan = explain(getattr(failures, name), parameters)
    assert_few_are_read(plan, {"django_jobs_dead_failure"}, failures.MOST_RUNS)


@pytest.mark.usefixtures("fresh_tables")
def test_of_jobs_by_id_each_is_read_by_its_id_and_one_run_of_each() -> None:
    fill_with_dead_jobs()
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True)[:500])
    plan = explain(failures.VERSIONS_OF_JOBS, {"jobs": ids})
    assert_few_are_read(plan, {"django_jobs_dead"}, 500)


@pytest.mark.usefixtures("fresh_tables")
def test_of_attempts_the_newest_are_read_by_their_ids() -> None:
    fill_with_dead_jobs()
    plan = explain(failures.ATTEMPTS, {"newest": 1_000, "day": timezone.now() - timedelta(days=1)})
    runs = [node for node in plan if node.get("Alias", "").startswith("django_jobs_run")]
    read = [node for node in runs if node["Actual Loops"]]
    assert {node["Relation Name"] for node in read} <= set(leaves("django_jobs_run"))
    assert sum(map(rows_read, read)) <= 1_000
    assert not [node for node in read if node["Node Type"] == "Seq Scan"]
