"""Cancel, retry, skip and signal: what an operator does to a run of a workflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import OperationRefused
from django_jobs.api import replay_problem
from django_jobs.domain.outcomes import Cancelled, Outcome
from django_jobs.domain.workflows import WAIT, Skipped
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.notifying import CANCELLED
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import signals, workflows
from django_jobs.lifecycle.operations.dead_letters import dismiss
from django_jobs.lifecycle.settling import Ending, give_back, settle
from django_jobs.lifecycle.waits import TIMEOUT
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.lifecycle.workflows.stuck import stuck
from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.models import Job, Receipt, Run, WorkflowDefinition, WorkflowRun
from django_jobs.signals import worker_event, workflow_finished
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    failure,
    heard,
    listening,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import OK, finish, reread
from tests.moments import moment
from tests.workflows import start_graph, states, step, steps_of

pytestmark = pytest.mark.django_db

DEAD = failure(final=True)


def retry(run: WorkflowRun, **options: Any) -> str | None:
    """Why the retry was refused."""
    refused = workflows.retry([run.pk], check=replay_problem, **options).refused
    return refused.get(run.pk)


def skip(run: WorkflowRun, name: str, **options: Any) -> str | None:
    return workflows.skip(run.pk, name, **options).refused.get(run.pk)


def replay(run: WorkflowRun, name: str) -> str | None:
    id_ = step(run, name).pk
    return job_operations.replay([id_], check=lambda job: None).refused.get(id_)


def ended(run: WorkflowRun) -> tuple[str, str]:
    row = reread(run)
    assert stuck() == []
    assert (row.finished_at is None) == (row.status == "running")
    return row.status, row.reason


def failed_graph(
    graph: Mapping[str, str], outcomes: Mapping[str, Outcome], **options: Any
) -> WorkflowRun:
    run = start_graph(graph, **options)
    finish(outcomes)
    return run


class TestCancel:
    def test_a_run_that_has_not_begun_ends_at_once(self) -> None:
        run = start_graph({"a": "", "b": "a", "sorry": "-a", "tidy": "*a"})
        result = workflows.cancel([run.pk], by="ada", reason="a mistake")
        assert (result.done, result.asked, result.refused) == ([run.pk], [], {})
        assert set(states(run).values()) == {"cancelled"}
        assert ended(run) == ("cancelled", "cancelled by ada: a mistake")
        assert step(run, "b").reason == "cancelled by ada: a mistake"
        assert reread(run).ends_left == 0

    @pytest.mark.parametrize("outcome", [OK, DEAD, failure(), Cancelled(reason="stopped")])
    def test_a_run_ends_with_its_last_running_step(self, outcome: Outcome) -> None:
        run = start_graph({"a": "", "b": "a", "sorry": "-a", "x": ""})
        first, second = claim_ready(register_worker())
        assert workflows.cancel([run.pk]).asked == [run.pk]
        assert states(run)["b"] == states(run)["sorry"] == "cancelled"
        settle_one(first, outcome)
        assert ended(run) == ("running", "cancelled")
        settle_one(second, OK)
        assert ended(run) == ("cancelled", "cancelled")
        assert "running" not in states(run).values()
        assert states(run)["sorry"] == "cancelled"

    def test_what_is_given_back_ends_the_run(self) -> None:
        run = start_graph({"a": "", "b": "a"})
        (held,) = claim_ready(register_worker())
        workflows.cancel([run.pk])
        give_back([held.fence])
        assert ended(run) == ("cancelled", "cancelled")

    def test_a_run_without_a_live_step_ends_even_if_its_row_is_wrong(self) -> None:
        run = start_graph({"a": ""})
        WorkflowRun.objects.filter(pk=run.pk).update(ends_left=7)
        assert workflows.cancel([run.pk]).asked == []
        assert ended(run) == ("cancelled", "cancelled")

    def test_nothing_is_undone(self) -> None:
        undo = as_json({"a": steps_of({"undo a": ""})[0]})
        run = start(NewRun(name="graph", compensations=undo), steps_of({"a": "", "b": "a"}))
        worker = register_worker()
        settle([Ending(one, OK) for one in claim_ready(worker)])
        (held,) = claim_ready(worker)
        workflows.cancel([run.pk])
        settle_one(held, DEAD)
        assert states(run) == {"a": "succeeded", "b": "cancelled"}
        assert ended(run)[0] == "cancelled"

    def test_a_run_that_has_ended_is_refused(self) -> None:
        run = failed_graph({"a": ""}, {})
        result = workflows.cancel([run.pk, 4711])
        assert result.refused == {run.pk: "it is succeeded", 4711: "there is no such run"}

    def test_a_large_run_is_cancelled_page_by_page(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(workflows, "PAGE", 3)
        graph = {"first": ""} | {f"p{n}": "first" for n in range(8)} | {"sorry": "-first"}
        graph |= {f"x{n}": "" for n in range(5)} | {"end": " ".join(f"p{n}" for n in range(8))}
        run = start_graph(graph)
        held = claim_ready(register_worker(), limit=2)
        other = start_graph({"a": ""})
        assert workflows.cancel([run.pk]).asked == [run.pk]
        assert list(states(run).values()).count("cancelled") == len(graph) - 2
        for one in held:
            settle_one(one, OK)
        assert ended(run)[0] == "cancelled"
        assert ended(other)[0] == "running"

    def test_a_second_cancel_keeps_the_first_reason(self) -> None:
        run = start_graph({"a": ""})
        claim_ready(register_worker())
        workflows.cancel([run.pk], reason="first")
        assert workflows.cancel([run.pk], reason="second").asked == [run.pk]
        assert reread(run).reason == "cancelled: first"


def test_maintenance_finishes_a_cancel_that_was_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workflows, "PAGE", 2)
    run = start_graph({"a": ""} | {str(n): "a" for n in range(6)} | {"last": "1"})
    with monkeypatch.context() as patch:
        cancel = workflows._cancel_steps

        def cut_short(run: int, ids: list[int], why: str) -> None:
            patch.setattr(workflows, "_cancel_steps", None)
            cancel(run, ids, why)

        patch.setattr(workflows, "_cancel_steps", cut_short)
        with pytest.raises(TypeError):
            workflows.cancel([run.pk], by="ada")
    task = next(one for one in maintenance_tasks() if one.name == "cancels")
    assert list(states(run).values()).count("cancelled") == 2
    assert task.run_once() == 0, "the session that cancels may be at it"
    WorkflowRun.objects.update(cancel_requested_at=timezone.now() - timedelta(seconds=11))
    changed = [task.run_once() for _ in range(5)]
    assert changed == [2, 2, 1, 1, 0]
    assert [task.has_more(count) for count in changed] == [True] * 4 + [False]
    assert set(states(run).values()) == {"cancelled"}
    assert set(Job.objects.values_list("reason", flat=True)) == {"cancelled by ada"}
    assert ended(run) == ("cancelled", "cancelled by ada")


def test_a_cancel_that_waits_for_running_steps_is_left_alone() -> None:
    run = start_graph({"a": "", "b": "a"})
    claim_ready(register_worker())
    workflows.cancel([run.pk])
    WorkflowRun.objects.update(cancel_requested_at=timezone.now() - timedelta(seconds=11))
    assert workflows.finish_cancel() == 0
    assert states(run) == {"a": "running", "b": "cancelled"}


class TestRetry:
    def test_the_failed_steps_start_again_with_what_was_skipped(self) -> None:
        graph = {"a": "", "b": "a", "c": "b", "d": "c", "sorry": "-b"}
        run = failed_graph(graph, {"b": DEAD})
        assert ended(run) == ("failed", "b failed")
        assert retry(run, by="ada", reason="fixed") is None
        assert states(run) == {
            "a": "succeeded",
            "b": "ready",
            "c": "waiting",
            "d": "waiting",
            "sorry": "succeeded",
        }
        assert ended(run) == ("running", "")
        assert reread(run).ends_left == 1
        again = step(run, "b")
        assert (again.replays, again.failures, again.reason) == (1, 0, "")
        note = again.headers["replays"][0]
        assert (note["by"], note["why"]) == ("ada", "fixed")
        assert finish() == ["b", "c", "d"]
        assert ended(run) == ("succeeded", "")
        assert Run.objects.filter(job=again).count() == 2

    def test_a_step_that_never_began_keeps_a_date_that_is_ahead(self) -> None:
        run = start_graph({"a": "", "b": "a"}, delay=86_400)
        due = step(run, "a").available_at
        run_sql("UPDATE django_jobs_job SET created_at = created_at - interval '2 hours'")
        with moment() as here:
            for _ in range(2):
                run.cancel("oops")
                assert retry(run) is None
        again = step(run, "a")
        assert (again.status, step(run, "b").status) == ("scheduled", "waiting")
        assert abs(again.available_at - due) <= here.length
        assert abs(again.rank - again.available_at.timestamp()) < 0.001

    def test_a_step_whose_date_has_come_starts_at_once(self) -> None:
        run = start_graph({"a": ""}, delay=60)
        run.cancel("oops")
        run_sql("UPDATE django_jobs_job SET available_at = available_at - interval '2 minutes'")
        assert retry(run) is None
        assert states(run) == {"a": "ready"}

    def test_only_what_was_skipped_because_of_it_comes_back(self) -> None:
        graph = {"a": "", "b": "", "never": "-ok", "ok": "", "x": "a", "y": "a b", "z": "y x"}
        run = failed_graph(graph, {"a": DEAD, "b": DEAD})
        assert replay(run, "a") is None
        assert states(run) == {
            "a": "ready",
            "b": "dead",
            "never": "cancelled (unneeded)",
            "ok": "succeeded",
            "x": "waiting",
            "y": "cancelled (failed)",
            "z": "cancelled (failed)",
        }
        assert finish() == ["a", "x"]
        assert ended(run) == ("failed", "b failed")
        assert retry(run) is None
        assert finish() == ["b", "y", "z"]
        assert ended(run) == ("succeeded", "")

    def test_a_step_that_failed_again_skips_again(self) -> None:
        run = failed_graph({"a": "", "b": "a", "c": "*b -a"}, {"a": DEAD, "c": DEAD})
        assert retry(run) is None
        assert states(run) == {"a": "ready", "b": "waiting", "c": "waiting"}
        assert finish({"a": DEAD}) == ["a", "c"]
        assert ended(run) == ("failed", "a failed")
        assert retry(run) is None
        assert finish() == ["a", "b"]
        assert states(run)["c"] == "succeeded"
        assert ended(run) == ("succeeded", "")

    def test_a_step_that_skipped_itself_decides_again(self) -> None:
        """At once: what it was delayed by, and the time until it opened, are over."""
        skipped = Cancelled(reason="skipped: no rows", skipped=Skipped.UNNEEDED)
        run = failed_graph({"a": "", "b": "*a", "c": "b"}, {"a": DEAD, "b": skipped})
        assert states(run) == {"a": "dead", **dict.fromkeys("bc", "cancelled (unneeded)")}
        run_sql(
            "UPDATE django_jobs_job SET failures = 1, cancel_requested_at = now(), "
            "created_at = created_at - interval '1 minute' WHERE step = 'b'"
        )
        assert retry(run) is None
        assert states(run) == {"a": "ready", "b": "waiting", "c": "waiting"}
        assert finish() == ["a", "b", "c"]
        assert (step(run, "b").failures, step(run, "b").cancel_requested_at) == (0, None)
        assert ended(run) == ("succeeded", "")

    def test_a_step_that_waits_counts_its_parent_again(self) -> None:
        run = start_graph({"a": "", "b": "", "c": "-a b", "d": "*a b"})
        worker = register_worker()
        first, second = claim_ready(worker)
        settle_one(first, DEAD)
        assert (step(run, "c").prerequisites, step(run, "d").prerequisites) == (1, 1)
        assert retry(run) is None
        assert (step(run, "c").prerequisites, step(run, "d").prerequisites) == (2, 2)
        settle_one(second, OK)
        assert states(run)["d"] == "waiting"
        assert finish() == ["a", "d"]
        assert states(run)["c"] == "cancelled (unneeded)"
        assert ended(run) == ("succeeded", "")

    def test_an_open_step_that_waits_for_a_signal_is_not_opened_again(self) -> None:
        run = start_graph({"a": "", "b": "*a"})
        (held,) = claim_ready(register_worker())
        settle_one(held, DEAD)
        run_sql("UPDATE django_jobs_job SET status = 'waiting', awaits = 'b' WHERE step = 'b'")
        assert retry(run) is None
        assert finish() == ["a"]
        assert states(run) == {"a": "succeeded", "b": "waiting"}
        assert workflows.signal(run.pk, "b").done == [run.pk]
        assert finish() == ["b"]
        assert ended(run) == ("succeeded", "")

    def test_a_branch_for_a_failure_is_not_needed_after_a_success(self) -> None:
        run = failed_graph({"a": "", "sorry": "-a"}, {"a": DEAD, "sorry": DEAD})
        assert replay(run, "a") is None
        finish()
        assert ended(run) == ("failed", "sorry failed")
        assert retry(run) is None
        assert states(run) == {"a": "succeeded", "sorry": "cancelled (unneeded)"}
        assert ended(run) == ("succeeded", "")

    def test_a_cancelled_run_continues(self) -> None:
        run = start_graph({"a": "", "b": "a", "sorry": "-a", "c": "b *sorry", "d": "", "e": "d c"})
        first, second = claim_ready(register_worker())
        workflows.cancel([run.pk])
        settle_one(first, OK)
        settle_one(second, DEAD)
        assert ended(run)[0] == "cancelled"
        assert retry(run) is None
        assert states(run) == {
            "a": "succeeded",
            "b": "ready",
            "sorry": "cancelled (unneeded)",
            "c": "waiting",
            "d": "ready",
            "e": "waiting",
        }
        *at_once, last, after_it = finish()
        assert sorted(at_once) == ["b", "d"]  # one statement has made them ready
        assert (last, after_it) == ("c", "e")
        assert ended(run) == ("succeeded", "")

    def test_a_wait_that_was_over_meanwhile_begins_again(self) -> None:
        run = start_graph({"approval": "", "b": ""})
        approval, other = step(run, "approval"), step(run, "b")
        past, future = "2020-01-01T00:00Z", "2999-01-01T00:00Z"
        for job, key, answer in (
            (approval, "signal:ok", {"until": past}),
            (approval, "signal:caught", {"until": past, "over": True}),
            (other, "signal:ok", {"until": future}),
        ):
            Receipt.objects.create(
                job=job, key=key, attempt=1, answer=answer, made_at=timezone.now()
            )
        workflows.cancel([run.pk])
        assert retry(run) is None
        assert set(Receipt.objects.values_list("job", "key")) == {
            (approval.pk, "signal:caught"),
            (other.pk, "signal:ok"),
        }

    def test_a_failed_step_keeps_its_wait_that_is_over(self) -> None:
        run = failed_graph({"a": ""}, {"a": DEAD})
        past = {"until": "2020-01-01T00:00Z"}
        Receipt.objects.create(
            job=step(run, "a"), key="signal:ok", attempt=1, answer=past, made_at=timezone.now()
        )
        assert retry(run) is None
        assert Receipt.objects.exists()

    def test_a_dismissed_wait_that_had_timed_out_waits_again(self) -> None:
        run = failed_graph({"approval": ""}, {"approval": DEAD})
        job = step(run, "approval")
        for name in ("approval", "caught"):
            over = {"until": "2020-01-01T00:00Z", "over": True}
            Receipt.objects.create(
                job=job, key=f"signal:{name}", attempt=1, answer=over, made_at=timezone.now()
            )
        error = TIMEOUT.format("approval")
        run_sql("UPDATE django_jobs_job SET last_error = %s", [error])
        assert dismiss([job.pk]).done == [job.pk]
        assert retry(run) is None
        assert list(Receipt.objects.values_list("key", flat=True)) == ["signal:caught"]

    def test_a_run_stays_cancelled_by_a_step_that_was_not_replayed(self) -> None:
        run = start_graph({"a": "", "b": "", "x": "a"})
        job_operations.cancel([step(run, "b").pk])
        finish({"a": DEAD})
        assert ended(run) == ("failed", "a failed")
        assert replay(run, "a") is None
        finish()
        assert ended(run) == ("cancelled", "a step was cancelled")
        assert retry(run) is None
        finish()
        assert ended(run) == ("succeeded", "")

    def test_a_running_run_retries_what_failed(self) -> None:
        run = start_graph({"a": "", "b": "", "c": "a b"})
        worker = register_worker()
        first, second = claim_ready(worker)
        settle_one(first, DEAD)
        assert retry(run) is None
        assert states(run) == {"a": "ready", "b": "running", "c": "waiting"}
        assert step(run, "c").prerequisites == 2
        settle_one(second, OK)
        assert finish() == ["a", "c"]
        assert ended(run) == ("succeeded", "")

    def test_a_delay_counts_once(self) -> None:
        run = start_graph({"a": "", "b": "a"}, delay=3600)
        run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE step = 'a'")
        finish({"a": DEAD})
        assert retry(run) is None
        assert states(run) == {"a": "ready", "b": "waiting"}
        with moment() as now:
            finish()
        late = step(run, "b")
        assert late.status == "scheduled"
        assert late.available_at - timedelta(hours=1) in now

    @pytest.mark.parametrize("state", ["running", "succeeded", "cancelling", "undoing", "gone"])
    def test_a_run_that_cannot_be_retried_is_refused(self, state: str) -> None:
        undo = as_json({"a": steps_of({"undo a": ""})[0]})
        run = start(NewRun(name="graph", compensations=undo), steps_of({"a": "", "b": "a"}))
        match state:
            case "succeeded":
                finish()
            case "cancelling":
                claim_ready(register_worker())
                workflows.cancel([run.pk])
            case "undoing":
                finish({"b": DEAD})
            case "gone":
                WorkflowRun.objects.filter(pk=run.pk).delete()
        before = states(run)
        assert retry(run) == {
            "running": "none of its steps failed",
            "succeeded": "it is succeeded",
            "cancelling": "the workflow run is being cancelled",
            "undoing": "its compensations have begun: start a run instead",
            "gone": "there is no such run",
        }.get(state)
        assert states(run) == before

    def test_a_failed_step_of_a_run_that_is_undone_is_not_replayed(self) -> None:
        undo = as_json({"a": steps_of({"undo a": ""})[0]})
        run = start(NewRun(name="graph", compensations=undo), steps_of({"a": "", "b": "a"}))
        finish({"b": DEAD, "undo a": DEAD})
        assert ended(run) == ("failed", "undo a, b failed")
        assert replay(run, "b") == "the compensations of the workflow run have begun"
        assert replay(run, "undo a") is None
        assert ended(run) == ("running", "")
        assert finish() == ["undo a"]
        assert ended(run) == ("failed", "b failed")

    def test_a_retry_with_a_step_that_cannot_run_changes_nothing(self) -> None:
        run = failed_graph({"a": "", "b": "", "c": "a b"}, {"a": DEAD, "b": DEAD})
        Job.objects.filter(step="b").update(job_type="app.gone")
        before = states(run)
        assert retry(run) == "step 'b': no handler is registered for 'app.gone'"
        assert states(run) == before
        assert ended(run)[0] == "failed"

    @pytest.mark.parametrize("failed", [1, 5])
    def test_all_failed_steps_are_read_in_one_statement(
        self, failed: int, django_assert_num_queries: DjangoAssertNumQueries
    ) -> None:
        graph = {str(number): "" for number in range(failed)}
        run = failed_graph(graph, dict.fromkeys(graph, DEAD))
        with django_assert_num_queries(12):
            assert retry(run) is None

    def test_a_payload_that_cannot_be_read_refuses_the_retry(self) -> None:
        run = failed_graph({"a": "", "b": ""}, {"a": DEAD, "b": DEAD})
        run_sql(
            "UPDATE django_jobs_job SET payload = ('{\"n\": 1' || repeat('0', 5000) || '}')::jsonb"
            " WHERE step = 'b'"
        )
        assert retry(run) == "step 'b': its payload cannot be read (ValueError)"

    def test_the_key_of_the_run_may_be_taken(self) -> None:
        run = failed_graph({"a": ""}, {"a": DEAD}, key="k")
        start_graph({"a": ""}, key="k")
        taken = "another running run holds the idempotency key of the workflow run"
        assert retry(run) == replay(run, "a") == skip(run, "a") == taken
        assert states(run) == {"a": "dead"}

    def test_the_key_of_a_step_may_be_taken(self) -> None:
        """A plain job with a key that spawned others, and became a step."""
        run = failed_graph({"a": ""}, {"a": DEAD})
        Job.objects.filter(step="a").update(idempotency_key="k")
        holder = noop.using(idempotency_key="k").enqueue()
        assert replay(run, "a") == f"job {holder.pk} (ready) holds its idempotency key 'k'"
        taken = "another live job holds the idempotency key of the step"
        assert retry(run) == skip(run, "a") == taken
        assert states(run) == {"a": "dead"}

    def test_a_long_chain_comes_back_to_its_end(self) -> None:
        graph = {"0": ""} | {str(n): str(n - 1) for n in range(1, 40)}
        run = failed_graph(graph, {"0": DEAD})
        assert retry(run) is None
        assert finish() == list(graph)


class TestSkip:
    @pytest.mark.parametrize("status", ["waiting", "ready", "blocked", "scheduled"])
    def test_a_step_that_has_not_begun_is_passed(self, status: str) -> None:
        run = start_graph({"a": "", "b": "a", "sorry": "-a"})
        Job.objects.filter(step="a").update(status=status)
        assert skip(run, "a", actor=make_user("skip_workflowstep"), reason="done by hand") is None
        assert states(run) == {
            "a": "cancelled (passed)",
            "b": "ready",
            "sorry": "cancelled (unneeded)",
        }
        assert step(run, "a").reason == "skipped by olga: done by hand"
        finish()
        assert ended(run) == ("succeeded", "")

    def test_a_failed_step_is_passed_and_the_run_continues(self) -> None:
        run = failed_graph({"a": "", "b": "a", "c": "b", "sorry": "-b"}, {"b": DEAD})
        assert skip(run, "b") is None
        assert ended(run)[0] == "running"
        assert states(run) == {
            "a": "succeeded",
            "b": "cancelled (passed)",
            "c": "ready",
            "sorry": "succeeded",
        }
        assert step(run, "b").reason == "skipped"
        assert finish() == ["c"]
        assert ended(run) == ("succeeded", "")

    def test_the_last_step_ends_the_run(self) -> None:
        run = failed_graph({"a": "", "b": "a"}, {"b": DEAD})
        assert skip(run, "b") is None
        assert ended(run) == ("succeeded", "")

    def test_a_branch_for_the_failure_that_still_waits_is_not_needed(self) -> None:
        run = start_graph({"a": "", "b": "", "sorry": "-a b", "c": "a *sorry"})
        first, second = claim_ready(register_worker())
        settle_one(first, DEAD)
        assert skip(run, "a") is None
        assert states(run)["sorry"] == "cancelled (unneeded)"
        assert states(run)["c"] == "ready"
        settle_one(second, OK)
        finish()
        assert ended(run) == ("succeeded", "")

    def test_a_cancelled_step_is_passed(self) -> None:
        run = start_graph({"a": "", "b": "a"})
        job_operations.cancel([step(run, "a").pk])
        assert ended(run)[0] == "cancelled"
        assert skip(run, "a") is None
        assert finish() == ["b"]
        assert ended(run) == ("succeeded", "")

    def test_a_skipped_step_waits_for_those_before_it_no_more(self) -> None:
        run = start_graph({"a": "", "b": "a", "c": "b"})
        assert skip(run, "b") is None
        assert states(run) == {"a": "ready", "b": "cancelled (passed)", "c": "ready"}
        finish()
        assert ended(run) == ("succeeded", "")

    def test_other_steps_are_refused(self) -> None:
        run = failed_graph({"a": "", "b": "a", "sorry": "-a"}, {})
        other = start_graph({"a": ""})
        claim_ready(register_worker())
        assert skip(run, "a") == "step 'a' is succeeded"
        assert skip(run, "sorry") == "step 'sorry' was skipped"
        assert skip(run, "x") == "it has no step named 'x'"
        assert workflows.skip(run.pk, 4711).refused == {run.pk: "it has no step 4711"}
        assert skip(other, "a") == "step 'a' is running"
        assert workflows.skip(4711, "a").refused == {4711: "there is no such run"}


def becomes_a_wait(run: WorkflowRun, name: str) -> None:
    """Make a step one of ``Workflow.wait()``."""
    steps = Job.objects.filter(workflow_run=run, step=name)
    steps.update(job_type=WAIT, payload={"name": name, "timeout": None, "on_timeout": "fail"})


def with_approval(permission: str) -> WorkflowRun:
    """A run of a workflow whose first step waits for a signal that needs the permission."""
    graph = {"steps": [{"name": "approval", "permission": permission}, {"name": "b"}]}
    definition = WorkflowDefinition.objects.create(
        name="graph", version=1, fingerprint="", graph=graph, created_at=timezone.now()
    )
    steps = steps_of({"approval": "", "b": "approval"})
    run = start(NewRun(name="graph", definition=definition.pk), steps)
    becomes_a_wait(run, "approval")
    return run


def test_a_skip_needs_the_permission_of_the_step_besides() -> None:
    demanded = "django_jobs.replay_job"
    run = with_approval(demanded)
    with pytest.raises(PermissionDenied, match=demanded):
        skip(run, "approval", actor=make_user("skip_workflowstep", name="ada"))
    assert states(run)["approval"] == "ready"
    eve = make_user("skip_workflowstep", "replay_job", name="eve")
    assert skip(run, "b", actor=make_user("skip_workflowstep", name="bob")) is None
    assert skip(run, "approval", actor=eve) is None


class TestSignal:
    def test_the_step_that_waits_gets_it(self) -> None:
        run = start_graph({"approval": "", "b": "approval"})
        Job.objects.filter(step="approval").update(status="waiting", awaits="approval")
        assert run.signal("approval", {"ok": True})
        assert step(run, "approval").status == "ready"
        assert step(run, "approval").signals == {"approval": {"ok": True}}
        assert not run.signal("approval")

    def test_a_signal_may_come_before_the_step_begins(self) -> None:
        run = start_graph({"a": "", "approval": "a"})
        becomes_a_wait(run, "approval")
        assert run.signal("approval", 7)
        assert states(run)["approval"] == "waiting"
        assert step(run, "approval").prerequisites == 1

    def test_a_step_can_demand_a_permission_besides(self) -> None:
        demanded = "django_jobs.replay_job"
        run = with_approval(demanded)
        job, ada = step(run, "approval").pk, make_user("signal_workflowrun", name="ada")
        with pytest.raises(PermissionDenied, match=demanded):
            workflows.signal(run.pk, "approval", actor=ada)
        with pytest.raises(PermissionDenied, match=demanded):
            signals.signal(job, "approval", actor=ada)
        assert signals.signal(job, "other", actor=ada).refused
        eve = make_user("signal_workflowrun", "replay_job", name="eve")
        assert workflows.signal(run.pk, "approval", actor=eve).done == [run.pk]

    def test_what_is_refused_is_said(self) -> None:
        run = failed_graph({"a": ""}, {})
        assert workflows.signal(run.pk, "a").refused == {run.pk: "step 'a': it is succeeded"}
        assert not run.signal("a")

    def test_a_handler_gets_the_signal_that_it_waits_for(self) -> None:
        run = start_graph({"onboard": ""})
        Job.objects.filter(step="onboard").update(status="waiting", awaits="confirmed")
        assert run.signal("onboard", {"plan": "large"})
        onboard = step(run, "onboard")
        assert (onboard.status, onboard.signals) == ("ready", {"confirmed": {"plan": "large"}})

    def test_a_handler_gets_a_named_signal_before_it_waits(self) -> None:
        run = start_graph({"onboard": ""})
        assert run.signal("onboard", 7, name="confirmed")
        assert step(run, "onboard").signals == {"confirmed": 7}
        assert not run.signal("onboard", 8, name="confirmed")

    def test_a_step_that_waits_for_none_is_refused_with_those_that_do(self) -> None:
        run = start_graph({"a": "", "onboard": "", "approval": "a", "plain": "a"})
        becomes_a_wait(run, "approval")
        Job.objects.filter(step="onboard").update(status="waiting", awaits="confirmed")
        for name, why in (
            ("plain", "step 'plain' waits for no signal now"),
            ("b", "it has no step named 'b'"),
        ):
            with pytest.raises(OperationRefused, match=why) as refused:
                run.signal(name)
            assert str(refused.value).endswith("; these wait for one: onboard, approval")
        assert step(run, "plain").signals is None

    def test_a_run_without_such_a_step_says_so(self) -> None:
        run = start_graph({"a": ""})
        with pytest.raises(OperationRefused, match="none of its steps waits for one"):
            run.signal("a")


@pytest.mark.django_db(transaction=True)
def test_a_signal_is_logged_with_who_and_why() -> None:
    run = start_graph({"approval": ""})
    becomes_a_wait(run, "approval")
    with heard(worker_event) as events:
        workflows.signal(run.pk, "approval", by="ada", reason="she agreed")
    assert [(one["sender"], one["fields"]) for one in events] == [
        (
            "step_signalled",
            {"run": run.pk, "step": "approval", "by": "ada", "reason": "she agreed"},
        )
    ]


@pytest.mark.parametrize(
    ("permission", "call"),
    [
        ("cancel_workflowrun", lambda **given: workflows.cancel([1], **given)),
        ("retry_workflowrun", lambda **given: workflows.retry([1], check=repr, **given)),
        ("skip_workflowstep", lambda **given: workflows.skip(1, "a", **given)),
        ("signal_workflowrun", lambda **given: workflows.signal(1, "a", **given)),
    ],
)
def test_each_operation_has_its_permission(permission: str, call: Callable[..., Any]) -> None:
    with pytest.raises(PermissionDenied, match=permission):
        call(actor=make_user())
    assert call(actor=make_user(permission, name="ada")).refused == {1: "there is no such run"}


def test_a_run_has_methods_for_it() -> None:
    run = start_graph({"a": "", "b": "a"})
    assert run.cancel("a mistake")
    assert ended(run) == ("cancelled", "cancelled: a mistake")
    assert not run.cancel()
    run.retry()
    finish()
    assert ended(run) == ("succeeded", "")
    with pytest.raises(OperationRefused, match=f"run {run.pk} of graph: it is succeeded"):
        run.retry()


def test_a_cancel_of_a_run_that_ends_meanwhile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_graph({"a": ""})
    (held,) = claim_ready(register_worker())
    look = workflows._to_cancel

    def look_after_its_end(id_: int) -> Iterator[list[int]]:
        settle_one(held, DEAD)
        return look(id_)

    monkeypatch.setattr(workflows, "_to_cancel", look_after_its_end)
    result = workflows.cancel([run.pk])
    assert (result.done, result.refused) == ([], {run.pk: "it is failed"})
    assert ended(run) == ("failed", "a failed")


@pytest.mark.django_db(transaction=True)
def test_a_cancel_notifies_workers_and_ends_once() -> None:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    with listening() as notified, heard(workflow_finished) as events:
        workflows.cancel([run.pk])
        assert notified() == [CANCELLED]
        assert events == []
        settle_one(held, OK)
    assert [one["status"] for one in events] == ["cancelled"]
