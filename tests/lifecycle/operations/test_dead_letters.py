"""Dismiss: a dead job is cancelled and keeps its runs, or is refused with the reason."""

from __future__ import annotations

import pytest
from django.core.exceptions import PermissionDenied

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations.dead_letters import A_STEP, dismiss
from django_jobs.models import Job, Run
from tests.app.jobs import add, noop
from tests.factories import in_threads, make_dead, make_user, run_sql
from tests.workflows import start_graph

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


def test_a_step_of_a_workflow_is_refused() -> None:
    run = start_graph({"only": ""})
    run_sql(
        "UPDATE django_jobs_job SET status = 'dead', finished_at = now()"
        " WHERE workflow_run_id = %s",
        [run.pk],
    )
    step = Job.objects.get(workflow_run=run)
    assert dismiss([step.pk]).refused == {step.pk: A_STEP}
    assert Job.objects.get().status == "dead"


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
