"""With ``on_failure="cancel"`` the first dead step cancels the others of its run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobs.domain.outcomes import Cancelled, Succeeded
from django_jobs.domain.workflows import Skipped, When
from django_jobs.lifecycle import cancelling, opening
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.operations import workflows
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.models import Job, WorkflowRun
from tests.app.jobs import ask_for, hold
from tests.app.workflow_jobs import fail_at_once
from tests.factories import claim_ready, failure, in_threads, register_worker, run_sql, settle_one
from tests.lifecycle.test_opening import finish, reread
from tests.lifecycle.workflows.test_restarting_races import retry
from tests.patience import PATIENCE
from tests.worker.processes import JobWorker, until
from tests.workflow_account import contradictions
from tests.workflows import states, step, steps_of

pytestmark = pytest.mark.django_db

OK, DEAD = Succeeded(), failure(final=True)
GRAPH = {"a": "", "b": "", "later": "b", "after": "a", "sorry": "-a", "last": "after sorry later"}


def start_strict(graph: Mapping[str, str], undoes: str = "") -> WorkflowRun:
    """A run that stops at the first dead step. The steps ``undoes`` have compensations."""
    undo = steps_of({f"undo {name}": "" for name in undoes.split()})
    compensations = as_json(dict(zip(undoes.split(), undo, strict=True)))
    new = NewRun(name="strict", on_failure="cancel", compensations=compensations)
    return start(new, steps_of(graph))


def over(run: WorkflowRun) -> tuple[str, str, str, bool]:
    now = reread(run)
    return now.status, now.reason, now.on_failure, now.cancel_requested_at is not None


def test_a_dead_step_cancels_what_has_not_begun_and_asks_the_others_to_stop() -> None:
    run = start_strict(GRAPH)
    a, b = claim_ready(register_worker())
    settle_one(a, DEAD)
    assert states(run) == {
        "a": "dead",
        "b": "running",
        "later": "cancelled",
        "after": "cancelled (failed)",
        "sorry": "cancelled",
        "last": "cancelled (failed)",
    }
    assert step(run, "b").cancel_requested_at is not None
    assert step(run, "later").reason == step(run, "b").reason == "cancelled: a failed"
    assert over(run) == ("running", "cancelled: a failed", "stopping", True)
    with transaction.atomic():
        assert workflows.retry([run.pk], check=lambda job: None).refused
    settle_one(b, OK, cancel_requested=True)
    assert states(run)["b"] == "succeeded"
    assert over(run) == ("failed", "a failed", "cancel", False)


def test_a_retry_starts_what_was_cancelled_and_the_next_dead_step_cancels_again() -> None:
    run = start_strict(GRAPH)
    a, b = claim_ready(register_worker())
    settle([Ending(a, DEAD), Ending(b, Cancelled(reason="stopped"), cancel_requested=True)])
    assert over(run) == ("failed", "a failed", "cancel", False)
    retry(run.pk)
    assert states(run) == {
        **dict.fromkeys("ab", "ready"),
        **dict.fromkeys(("later", "after", "sorry", "last"), "waiting"),
    }
    assert sorted(finish({"later": DEAD})) == ["a", "after", "b", "later"]
    assert over(run) == ("failed", "later failed", "cancel", False)
    retry(run.pk)
    assert finish() == ["later"]
    assert over(run) == ("succeeded", "", "cancel", False)


def test_a_run_of_more_than_a_page_stops_in_one_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PAGE", 3)
    run = start_strict({"a": "", **{str(number): "" for number in range(10)}})
    Job.objects.exclude(step="a").update(status="scheduled")
    finish({"a": DEAD})
    assert list(states(run).values()) == ["dead", *["cancelled"] * 10]
    assert over(run) == ("failed", "a failed", "cancel", False)


def test_what_succeeded_is_undone_and_a_dead_compensation_cancels_no_other() -> None:
    run = start_strict({"a": "", "b": "a", "c": "b", "d": "c", "e": "b"}, undoes="a b")
    assert finish({"c": DEAD, "undo b": DEAD}) == ["a", "b", "c", "e", "undo b", "undo a"]
    assert states(run)["undo a"] == "succeeded"
    assert over(run) == ("failed", "undo b, c failed", "cancel", False)


def test_only_a_dead_step_of_such_a_run_stops_it() -> None:
    """No optional one, none that was cancelled or skipped, and none of another run in the batch."""
    strict = start_strict({"a?": "", "b": "", "c": "", "d": "b", "e": "*c"})
    other = start(NewRun(name="graph"), steps_of({"a": "", "b": ""}))
    Job.objects.filter(workflow_run=other, step="b").update(status="scheduled")
    outcomes = {"a": DEAD, "b": Cancelled(reason="no"), "c": Cancelled(skipped=Skipped.UNNEEDED)}
    assert sorted(finish(outcomes)) == ["a", "a", "b", "c", "e"]
    assert states(other) == {"a": "dead", "b": "scheduled"}
    assert over(strict) == ("cancelled", "a step was cancelled", "cancel", False)


def test_a_person_may_cancel_a_run_that_stops_and_it_undoes_nothing() -> None:
    run = start_strict({"a": "", "b": "a", "c": "a"}, undoes="a")
    (a,) = claim_ready(register_worker())
    settle_one(a, OK)
    b, c = claim_ready(register_worker())
    settle_one(b, DEAD)
    assert over(run)[2:] == ("stopping", True)
    workflows.cancel([run.pk], by="ada")
    settle_one(c, OK, cancel_requested=True)
    assert over(run) == ("cancelled", "cancelled by ada", "cancel", True)
    assert "undo a" not in states(run)


def test_maintenance_cancels_nothing_that_undoes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last step ends after maintenance has read that the run stops."""
    run = start_strict({"a": "", "b": "a", "c": "a"}, undoes="a")
    worker = register_worker()
    settle_one(*claim_ready(worker), OK)
    b, c = claim_ready(worker)
    settle_one(b, DEAD)
    Job.objects.update(cancel_requested_at=None)  # it was locked
    WorkflowRun.objects.update(cancel_requested_at=timezone.now() - timedelta(seconds=11))
    to_cancel = workflows._to_cancel

    def to_cancel_later(id_: int) -> Any:
        settle_one(c, OK)
        return to_cancel(id_)

    monkeypatch.setattr(workflows, "_to_cancel", to_cancel_later)
    assert workflows.finish_cancel() == 0
    assert states(run)["undo a"] == "ready"


def test_a_dropped_step_stops_its_run() -> None:
    run = start_strict({"a": "", "b": ""})
    run_sql("UPDATE django_jobs_job SET status = 'dead', finished_at = now() WHERE step = 'a'")
    opening.follow_dropped([(step(run, "a").pk, run.pk, None)])
    assert states(run) == {"a": "dead", "b": "cancelled"}
    assert over(run) == ("failed", "a failed", "cancel", False)


@pytest.mark.django_db(transaction=True)
def test_two_steps_that_die_at_once_end_their_run_as_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither waits for the row of the other: no settle is repeated after a deadlock."""
    run = start_strict({"a": "", "b": "", "c": "a", "d": "", "e": "d"})
    a, b, d = claim_ready(register_worker())
    cancel, both_have_settled = cancelling.cancel_free_steps, threading.Barrier(2)

    def cancel_when_both_have_settled(*args: Any) -> int:
        both_have_settled.wait(PATIENCE)
        return cancel(*args)

    monkeypatch.setattr(cancelling, "cancel_free_steps", cancel_when_both_have_settled)
    in_threads(2, lambda number: settle_one((a, b)[number], DEAD))
    assert over(run)[2:] == ("stopping", True)
    settle_one(d, OK, cancel_requested=True)
    assert states(run) == {
        "a": "dead", "b": "dead", "c": "cancelled (failed)", "d": "succeeded", "e": "cancelled",
    }  # fmt: skip
    assert over(run) == ("failed", "a, b failed", "cancel", False)
    assert stuck() == []


@pytest.mark.django_db(transaction=True)
def test_what_another_session_opens_meanwhile_is_cancelled_by_maintenance() -> None:
    """A settle and a claim that are not committed hold a step that waits and a step that is ready:
    the dead step waits for neither."""
    run = start_strict({"a": "", "b": "", "c": "b", "d": "c", "e": ""})
    a, b, *_ = claim_ready(register_worker(), limit=2)

    def act(number: int) -> None:
        settle_one(a, DEAD)

    with transaction.atomic():
        settle_one(b, OK)
        (e, c) = claim_ready(register_worker())
        in_threads(1, act)
    assert states(run) == {
        "a": "dead", "b": "succeeded", "c": "running", "d": "cancelled", "e": "running",
    }  # fmt: skip
    assert workflows.finish_cancel() == 0, "the session that stops it may be at it"
    WorkflowRun.objects.update(cancel_requested_at=timezone.now() - timedelta(seconds=11))
    assert workflows.finish_cancel() == 2
    assert step(run, "c").cancel_requested_at is not None
    settle([Ending(one, Cancelled(), cancel_requested=True) for one in (c, e)])
    assert over(run) == ("failed", "a failed", "cancel", False)
    assert contradictions(run_sql) == []


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_worker_skips_passes_over_and_stops(
    start_worker: Callable[..., JobWorker], tmp_path: Path
) -> None:
    """``held`` runs until it is asked to stop, which the end of ``fails`` does."""
    skips, fails = ask_for.request(), fail_at_once.request()
    held = json.dumps({"path": str(tmp_path / "held")})
    steps = [
        NewStep(name="held", new=hold.request(), payload=held),
        NewStep(name="skips", new=skips, payload='{"fate": "skip"}'),
        NewStep(name="unneeded", new=skips, payload="{}", after={1: When.SUCCEEDED}),
        NewStep(name="optional", new=fails, payload="{}", optional=True, after={1: When.FINISHED}),
        NewStep(name="fails", new=fails, payload="{}", after={3: When.SUCCEEDED}),
        NewStep(name="never", new=fails, payload="{}", after={0: When.SUCCEEDED}),
    ]
    run = start(NewRun(name="strict", on_failure="cancel"), steps)
    start_worker("--threads", "2", "-v", "0")
    until(lambda: reread(run).status != "running")
    assert states(run) == {
        "held": "succeeded",
        "skips": "cancelled (unneeded)",
        "unneeded": "cancelled (unneeded)",
        "optional": "cancelled (passed)",
        "fails": "dead",
        "never": "cancelled",
    }
    assert step(run, "held").result == "stopped"
    assert step(run, "optional").reason == "skipped: it is optional; failed its only attempt"
    assert over(run) == ("failed", "fails failed", "cancel", False)
