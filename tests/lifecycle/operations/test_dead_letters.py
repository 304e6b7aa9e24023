"""Dismiss: a dead job is cancelled and keeps its runs, or is refused with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from django.core.exceptions import PermissionDenied

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import workflows
from django_jobs.lifecycle.operations.dead_letters import UNENDED_RUN, dismiss
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, Run, WorkflowRun
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    failure,
    in_threads,
    make_dead,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.workflows import start_graph, states, step

pytestmark = pytest.mark.django_db


def test_a_dismissed_job_is_cancelled_now_and_keeps_its_error_and_its_runs() -> None:
    dead = make_dead(add, 1)
    result = dismiss([dead.pk], actor=make_user("dismiss_job"), reason="the partner is gone")
    assert (result.done, result.refused) == ([dead.pk], {})
    job = Job.objects.get()
    assert job.status == "cancelled"
    assert job.reason == f"dismissed by olga: the partner is gone (it was dead: {dead.reason})"
    assert (job.last_error, job.fingerprint) == (dead.last_error, dead.fingerprint)
    assert job.fingerprint
    assert job.finished_at is not None
    assert dead.finished_at is not None
    assert job.finished_at > dead.finished_at
    assert list(Run.objects.values_list("outcome", flat=True)) == ["failed"]
    ((table,),) = run_sql("SELECT tableoid::regclass::text FROM django_jobs_job")
    assert table != "django_jobs_job_live"


def test_a_dismissed_job_cannot_be_replayed_or_dismissed_again() -> None:
    dead = make_dead()
    dismiss([dead.pk], by="ada@host (jobdismiss)")
    assert Job.objects.get().reason.startswith("dismissed by ada@host (jobdismiss) (it was dead")
    again = dismiss([dead.pk, 999])
    assert again.refused == {dead.pk: "it is cancelled", 999: "there is no such job"}
    replayed = job_operations.replay([dead.pk], check=lambda job: None)
    assert replayed.refused == {dead.pk: "it is cancelled"}


def test_only_dead_jobs_are_dismissed() -> None:
    dead, ready = make_dead(add, 1), noop.enqueue()
    result = dismiss([ready.pk, dead.pk])
    assert result.done == [dead.pk]
    assert result.refused == {ready.pk: "it is ready"}


def run_with_a_dead_step(graph: Mapping[str, str]) -> WorkflowRun:
    """A run whose step ``a`` is dead."""
    run = start_graph(graph)
    for held in claim_ready(register_worker()):
        if held.id == step(run, "a").pk:
            settle_one(held, failure(final=True))
    return run


def test_a_step_of_a_run_that_has_not_ended_is_refused() -> None:
    run = run_with_a_dead_step({"a": "", "b": ""})
    dead = step(run, "a")
    assert (dead.status, run.status) == ("dead", "running")
    assert dismiss([dead.pk]).refused == {dead.pk: UNENDED_RUN}
    assert step(run, "a").status == "dead"


def test_a_step_of_a_run_that_failed_is_dismissed_and_starts_again_with_its_run() -> None:
    run = run_with_a_dead_step({"a": "", "b": "a"})
    dead = step(run, "a")
    assert dismiss([dead.pk], reason="refunded by hand").refused == {}
    run.refresh_from_db()
    assert (run.status, run.reason) == ("failed", "a failed")
    assert states(run) == {"a": "cancelled", "b": "cancelled (failed)"}
    assert stuck() == []
    assert workflows.retry([run.pk], check=lambda job: None).done == [run.pk]
    assert states(run) == {"a": "ready", "b": "waiting"}


def test_a_run_of_which_a_step_was_dismissed_does_not_succeed_by_the_replay_of_another() -> None:
    run = start_graph({"a": "", "b": ""})
    worker = register_worker()
    for held in claim_ready(worker):
        settle_one(held, failure(final=True))
    dismiss([step(run, "a").pk])
    job_operations.replay([step(run, "b").pk], check=lambda job: None)
    (held,) = claim_ready(worker)
    settle_one(held, Succeeded())
    run.refresh_from_db()
    assert (run.status, run.reason) == ("cancelled", "a step was cancelled")


@pytest.mark.django_db(transaction=True)
def test_of_a_retry_of_a_run_and_a_dismissal_of_its_step_at_once_one_wins() -> None:
    run = run_with_a_dead_step({"a": ""})
    dead = step(run, "a")

    def act(number: int) -> list[int]:
        if number:
            return dismiss([dead.pk]).done
        return workflows.retry([run.pk], check=lambda job: None).done

    retried, dismissed = in_threads(2, act)
    assert retried == [run.pk]  # also of one that was dismissed before
    run.refresh_from_db()
    assert (run.status, states(run)) == ("running", {"a": "ready"})
    assert dismissed in ([], [dead.pk])


def test_a_dismissal_needs_its_permission() -> None:
    dead = make_dead()
    with pytest.raises(PermissionDenied):
        dismiss([dead.pk], actor=make_user("replay_job", "cancel_job"))
    assert Job.objects.get().status == "dead"


@pytest.mark.django_db(transaction=True)
def test_of_a_replay_and_a_dismissal_at_once_one_wins() -> None:
    dead = make_dead()

    def act(number: int) -> list[int]:
        if number:
            return dismiss([dead.pk]).done
        return job_operations.replay([dead.pk], check=lambda job: None).done

    assert sorted(in_threads(2, act)) == [[], [dead.pk]]
    assert Job.objects.get().status in ("cancelled", "ready")
