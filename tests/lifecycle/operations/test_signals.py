"""A signal of a job: kept until its handler waits for it, and what it does to one that waits."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from pytest_django import Settings

from django_jobs import PayloadError, cancel, enqueue
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.operations.signals import signal
from django_jobs.lifecycle.waits import Wait, begin_wait
from django_jobs.models import Job
from django_jobs.models.workflow import above
from tests.app.jobs import noop
from tests.factories import (
    enqueue_and_claim,
    in_threads,
    listening,
    make_dead,
    make_user,
    run_sql,
    settle_one,
)
from tests.patience import PATIENCE
from tests.test_architecture import PACKAGE
from tests.worker.processes import until
from tests.workflows import start_graph


def waiting_for(name: str, job: Job | None = None) -> Job:
    """A job that waits for this signal, in an hour at most."""
    job = job or noop.enqueue()
    run_sql(
        "UPDATE django_jobs_job SET status = 'waiting', awaits = %s, rank = rank + 3600,"
        " available_at = available_at + interval '1 hour' WHERE id = %s",
        [name, job.pk],
    )
    return Job.objects.get(pk=job.pk)


def test_each_method_of_a_model_has_its_function() -> None:
    text = "".join(path.read_text() for path in (PACKAGE / "models").glob("*.py"))
    paths = re.findall(r'\babove\(\s*"([\w.]+)"', text)
    assert len(paths) == 8
    assert all(callable(above(path)) for path in paths)


@pytest.mark.django_db(transaction=True)
class TestInTransactions:
    def test_a_signal_makes_the_job_that_waits_for_it_ready_at_the_commit(self) -> None:
        job = waiting_for("approval")
        due = noop.enqueue()
        with listening() as notified:
            with transaction.atomic():
                assert job.signal("approval", {"ok": True})
                assert notified() == []
            assert notified() == ["default"]
        after = Job.objects.get(pk=job.pk)
        assert (after.status, after.awaits, after.signals) == (
            "ready",
            None,
            {"approval": {"ok": True}},
        )
        assert after.available_at > due.available_at
        assert 0 < after.rank - due.rank < 60
        assert job.status == "waiting", "the instance stays as it was read"

    def test_a_signal_that_is_rolled_back_was_never_sent(self) -> None:
        job = waiting_for("approval")
        with transaction.atomic():
            assert job.signal("approval")
            transaction.set_rollback(True)
        after = Job.objects.get(pk=job.pk)
        assert (after.status, after.awaits, after.signals) == ("waiting", "approval", None)

    def test_of_many_senders_at_once_one_is_kept(self) -> None:
        job = waiting_for("approval")
        kept = in_threads(8, lambda number: job.signal("approval", number))
        assert sum(kept) == 1
        assert Job.objects.get(pk=job.pk).signals == {"approval": kept.index(True)}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("first", ["signal", "time-out"])
def test_at_its_time_out_a_signal_is_read_or_refused(first: str) -> None:
    """The second waits for the first, and sees what it wrote."""
    held = enqueue_and_claim()
    job = Job.objects.get(pk=held.id)
    begin_wait(held, "approval", 0.0)
    written, other = threading.Event(), [0]

    def act(number: int) -> object:
        is_signal = (number == 0) == (first == "signal")
        if number == 1:
            assert written.wait(PATIENCE)
            connection.ensure_connection()
            other[0] = connection.connection.info.backend_pid
            return act_now(is_signal)
        with transaction.atomic():
            result = act_now(is_signal)
            written.set()
            waits = "SELECT 1 FROM pg_locks WHERE pid = %s AND NOT granted"
            until(lambda: run_sql(waits, other))
        return result

    def act_now(is_signal: bool) -> object:
        return job.signal("approval", 7) if is_signal else begin_wait(held, "approval", 0.0)

    result = in_threads(2, act)
    sent, seen = result if first == "signal" else reversed(result)
    assert isinstance(seen, Wait)
    if first == "signal":
        assert (sent, seen.data, seen.is_over) == (True, ("7",), False)
    else:
        assert (sent, seen.data, seen.is_over) == (False, None, True)


@pytest.mark.django_db
class TestSignals:
    @pytest.mark.parametrize("status", ["waiting", "scheduled", "blocked", "ready", "running"])
    def test_a_job_that_does_not_wait_keeps_the_signal(self, status: str) -> None:
        held = enqueue_and_claim()
        if status != "running":
            run_sql(
                "UPDATE django_jobs_job SET status = %s, worker_id = NULL WHERE id = %s",
                [status, held.id],
            )
        before = Job.objects.get(pk=held.id)
        assert before.signal("first", 1)
        assert before.signal("second")
        after = Job.objects.get(pk=held.id)
        assert after.signals == {"first": 1, "second": None}
        assert (after.status, after.rank, after.available_at) == (
            before.status,
            before.rank,
            before.available_at,
        )

    def test_a_job_that_waits_for_another_signal_waits_on(self) -> None:
        job = waiting_for("approval")
        assert job.signal("payment", 7)
        after = Job.objects.get(pk=job.pk)
        assert (after.status, after.awaits, after.signals) == (
            "waiting",
            "approval",
            {"payment": 7},
        )

    def test_the_first_signal_of_a_name_stays(self) -> None:
        job = noop.enqueue()
        assert job.signal("approval", "first")
        assert not job.signal("approval", "second")
        assert Job.objects.get(pk=job.pk).signals == {"approval": "first"}
        assert signal(job.pk, "approval").refused == {
            job.pk: "it has a signal of this name already"
        }

    def test_a_job_that_has_ended_refuses_signals(self) -> None:
        held = enqueue_and_claim()
        settle_one(held, Succeeded())
        cancelled = noop.enqueue()
        cancel(cancelled.pk)
        dead = make_dead()
        for id_, status in ((held.id, "succeeded"), (cancelled.pk, "cancelled"), (dead.pk, "dead")):
            assert not Job.objects.get(pk=id_).signal("approval")
            assert signal(id_, "approval").refused == {id_: f"it is {status}"}
            assert Job.objects.get(pk=id_).signals is None
        assert signal(1, "approval").refused == {1: "there is no such job"}

    @pytest.mark.parametrize("name", ["", "x" * 201, 7, None, "nul \x00"])
    def test_a_name_that_cannot_be_one_is_refused(self, name: Any) -> None:
        with pytest.raises(ValueError, match="name"):
            noop.enqueue().signal(name)

    def test_data_that_is_not_json_or_too_large_is_refused(self) -> None:
        job = noop.enqueue()
        with pytest.raises(PayloadError, match="the signal 'approval': data: a set is not JSON"):
            job.signal("approval", {1})
        with pytest.raises(PayloadError, match="1,048,576 bytes"):
            job.signal("approval", "x" * 1_048_576)
        assert Job.objects.get(pk=job.pk).signals is None

    @pytest.mark.parametrize("status", ["waiting", "ready", "running"])
    def test_the_signals_of_a_job_have_a_limit_together(self, status: str) -> None:
        held = enqueue_and_claim()
        if status != "running":
            run_sql(
                "UPDATE django_jobs_job SET status = %s, worker_id = NULL, awaits = 'go'",
                [status],
            )
        job = Job.objects.get(pk=held.id)
        for number in range(4):
            assert job.signal(f"n{number}", "x" * 1_040_000)
        problem = (
            "the signal 'go': with it, the signals of job .* would be larger than 4 times "
            "MAX_PAYLOAD_BYTES; it has n0, n1, n2, n3$"
        )
        with pytest.raises(PayloadError, match=problem):
            job.signal("go", "x" * 40_000)
        assert not job.signal("n3", "x" * 1_040_000)  # it has this one
        after = Job.objects.get(pk=held.id)
        assert (after.status, after.awaits, len(after.signals or ())) == (status, job.awaits, 4)
        assert job.signal("go", 1)

    def test_of_many_signals_a_few_are_named(self, settings: Settings) -> None:
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_PAYLOAD_BYTES": 100}
        job = noop.enqueue()
        for number in range(30):
            assert job.signal(f"n{number:02}", number)
        with transaction.atomic():
            with pytest.raises(PayloadError, match=r"it has n00, n01, .*, n19, \.\.\.$"):
                job.signal("more", "x" * 90)
            assert Job.objects.filter(pk=job.pk).exists()  # the transaction is whole

    def test_a_step_has_the_same_limit(self, settings: Settings) -> None:
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_PAYLOAD_BYTES": 100}
        run = start_graph({"confirm": ""})
        for number in range(4):
            assert run.signal("confirm", "x" * 80, name=f"n{number}")
        with pytest.raises(PayloadError, match=r"it has n0, n1, n2, n3$"):
            run.signal("confirm", "x" * 80, name="go")

    def test_an_actor_needs_the_permission(self) -> None:
        job = noop.enqueue()
        with pytest.raises(PermissionDenied, match="signal_workflowrun"):
            signal(job.pk, "approval", actor=make_user("view_job"))
        actor = make_user("signal_workflowrun", name="ada")
        assert signal(job.pk, "approval", 1, actor=actor).done == [job.pk]

    def test_async_code_sends_signals_too(self) -> None:
        job = noop.enqueue()
        assert async_to_sync(job.asignal)("approval", 1)
        assert Job.objects.get(pk=job.pk).signals == {"approval": 1}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("job_type", "payload", "why"),
    [
        ("django_jobs.wait", {"name": "approval"}, "it waits for the signal 'approval' alone"),
        ("django_jobs.sleep", {"seconds": 60}, "it waits for no signal"),
    ],
)
def test_a_step_that_would_never_read_a_signal_refuses_it(
    job_type: str, payload: dict[str, Any], why: str
) -> None:
    job = enqueue(job_type, payload)
    assert signal(job.pk, "aproval").refused == {job.pk: why}
    assert not job.signal("aproval")
    assert job.signal("approval") is (job_type == "django_jobs.wait")
