"""Payloads of other versions, old names and quarantines, with real workers."""

from __future__ import annotations

import json

import pytest

from django_jobs import registry
from django_jobs.api import replay_problem
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.metrics.unclaimable import take_unclaimable
from django_jobs.models import Job, Run, Worker
from tests.app.jobs import kill_itself, noop, write_effect
from tests.app.version_jobs import greet
from tests.factories import register_worker, run_sql
from tests.workflows import start_graph, states

from .processes import REAPS_NEVER, Start, until, until_status

pytestmark = pytest.mark.processes
SWEEPS_OFTEN = json.dumps({"SWEEP_SECONDS": 0.2, "QUARANTINE": {"crashes": 2, "seconds": 600}})


def stored(job_type: str, version: int, payload: object) -> Job:
    """A ready job as some other code wrote it."""
    job = noop.using(delay=3600).enqueue()
    run_sql(
        "UPDATE django_jobs_job SET job_type = %s, payload_version = %s, payload = %s::jsonb,"
        " status = 'ready', available_at = now() WHERE id = %s",
        [job_type, version, json.dumps(payload), job.pk],
    )
    return job


def test_old_payloads_and_names_run_and_newer_payloads_wait(
    start_worker: Start,
) -> None:
    first = stored("app.greet", 1, {"name": "Ada Lovelace"})
    second = stored("app.greet", 2, {"first": "Ada", "last": "L"})
    today = greet.enqueue("Ada", "L")
    old_name = stored("app.old_name", 1, {"note": "x"})
    newer = stored("app.greet", 4, {"of": "tomorrow"})
    worker = start_worker("--burst")
    assert worker.wait() == 0
    results = dict(Job.objects.values_list("pk", "result"))
    assert results == {
        first.pk: "Dear Ada Lovelace",
        second.pk: "Dear Ada L",
        today.pk: "Hello Ada L",
        old_name.pk: "renamed x",
        newer.pk: None,
    }
    assert Job.objects.get(pk=newer.pk).status == "ready"
    row = Worker.objects.get()
    assert row.job_types.count("app.old_name") == 1
    newest = registry.versions()
    assert row.payload_versions == {name: newest[name] for name in newest if newest[name] > 1}


def test_a_job_that_cannot_be_upgraded_is_dead_and_replayable_later(
    start_worker: Start,
) -> None:
    job = stored("app.greet", 1, {"who": "Ada"})
    start_worker()
    dead = until_status(job, "dead")
    run = Run.objects.get(job=job)
    assert run.error_type == "PayloadError"
    assert "the upgrade from version 1 raised KeyError: 'name'" in run.error_message
    assert "the upgrade from version 1" in str(replay_problem(dead))
    Job.objects.filter(pk=job.pk).update(payload={"name": "Ada L"})
    assert job_operations.replay([job.pk], check=replay_problem).done == [job.pk]
    assert until_status(job, "succeeded").result == "Dear Ada L"


def test_a_step_whose_type_is_gone_stays_and_its_run_runs(start_worker: Start) -> None:
    run = start_graph({"a": "", "gone": "a", "b": "a", "end": "gone b"})
    Job.objects.filter(step="gone").update(job_type="shop.gone")
    assert start_worker("--burst").wait() == 0
    assert states(run) == {"a": "succeeded", "gone": "ready", "b": "succeeded", "end": "waiting"}
    register_worker()
    (unknown,), _ = take_unclaimable(1_000)
    assert (unknown.job_type, unknown.ready) == ("shop.gone", 1)
    run.refresh_from_db()
    assert (run.status, run.reason, stuck()) == ("running", "", [])
    Job.objects.filter(step="gone").update(job_type="app.noop")  # the code is deployed again
    assert start_worker("--burst").wait() == 0
    run.refresh_from_db()
    assert (run.status, set(states(run).values())) == ("succeeded", {"succeeded"})


def test_a_burst_ends_although_jobs_are_blocked(start_worker: Start) -> None:
    held, runs = noop.enqueue(), write_effect.enqueue("runs")
    quarantines.quarantine("app.noop")
    assert start_worker("--burst").wait() == 0
    assert Job.objects.get(pk=held.pk).status in ("ready", "blocked")
    assert Job.objects.get(pk=runs.pk).status == "succeeded"


def test_a_worker_blocks_quarantined_jobs_and_runs_them_after_the_lift(
    start_worker: Start,
) -> None:
    ids = noop.enqueue_many({} for _ in range(50))
    quarantines.quarantine("app.noop")
    start_worker(TEST_DJANGO_JOBS=SWEEPS_OFTEN)
    until(lambda: Job.objects.filter(status="blocked", reason="quarantined").count() == 50)
    other = write_effect.enqueue("runs")
    until_status(other, "succeeded")
    later = noop.enqueue()
    until_status(later, "blocked")
    quarantines.lift("app.noop")
    until(lambda: Job.objects.filter(status="succeeded", pk__in=[*ids, later.pk]).count() == 51)


def test_a_type_that_keeps_crashing_is_quarantined_by_the_workers(start_worker: Start) -> None:
    jobs = [kill_itself.using(max_attempts=1).enqueue() for _ in range(6)]
    run_sql("UPDATE django_jobs_job SET crashes = 1, max_crashes = 2")  # they are suspects
    other = write_effect.enqueue("an innocent neighbour")
    worker = start_worker("--threads", "1", TEST_DJANGO_JOBS=SWEEPS_OFTEN)
    until(lambda: quarantines.in_force() == ["app.kill_itself"])
    until(
        lambda: (
            not Job.objects.filter(
                pk__in=[job.pk for job in jobs], status__in=("ready", "running")
            ).exists()
        )
    )
    until_status(other, "succeeded")
    until(lambda: "event=job_type_quarantined job_type=app.kill_itself" in worker.text())
    assert Run.objects.filter(error_type="Crashed").count() >= 2


def test_a_quarantine_notifies_the_workers_to_block_the_rest(start_worker: Start) -> None:
    def held(name: str) -> bool:
        return Job.objects.filter(job_type=name, status="blocked").exists()

    stored("app.greet", 1, {})
    quarantines.quarantine("app.greet", seconds=0.0)
    start_worker("--queues", "emails", "--lease-seconds", "3", TEST_DJANGO_JOBS=REAPS_NEVER)
    until(lambda: held("app.greet"))  # by the first sweep; the next one is in a day
    left = write_effect.enqueue("x")
    quarantines.quarantine(left.job_type, seconds=0.0)
    until(lambda: held(left.job_type))
