"""What a claim left behind whose answer was lost goes back to the table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from django_jobs import cancel
from django_jobs.models import Job
from django_jobs.worker.connections import ping
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.pools.claimed_jobs import ClaimedJobs
from django_jobs.worker.process.claims import StrandedJobs
from django_jobs.worker.process.settler import Settler
from django_jobs.worker.statement_timeout import StatementTimeout
from tests.app.jobs import noop
from tests.factories import claim_ready, open_elsewhere, register_worker
from tests.patience import PATIENCE
from tests.triggers import refused
from tests.worker.processes import until
from tests.workflows import start_graph

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def settler() -> Iterator[Settler]:
    """One whose thread was not started. Ended when the test ends."""
    slot, claimed_jobs = Scoreboard(1).slots[0], ClaimedJobs()
    slot.register(register_worker(), time.monotonic() + 600)
    made = Settler(slot, claimed_jobs)
    yield made
    if made.thread.is_alive():
        made.finish()
        made.thread.join(PATIENCE)
        assert not made.thread.is_alive()


def stranded_jobs_of(settler: Settler, *, draining: bool = False) -> StrandedJobs:
    made = StrandedJobs(30.0, settler._slot, settler._claimed, settler, draining=lambda: draining)
    made.look_soon()
    return made


def test_only_jobs_that_the_process_does_not_know_are_given_back(settler: Settler) -> None:
    noop.enqueue_many([{}] * 3)
    stranded, *known = claim_ready(settler._slot.worker)
    settler._claimed.add(known)
    settler.thread.start()
    stranded_jobs = stranded_jobs_of(settler)
    assert stranded_jobs.give_back_if_due()
    assert Job.objects.get(status="ready").pk == stranded.id
    settler._claimed.remove_all(known)
    assert stranded_jobs.give_back_if_due()  # once in a lease
    assert Job.objects.filter(status="running").count() == 2


def test_a_stranded_job_that_a_trigger_lets_nobody_change_stops_no_claim(settler: Settler) -> None:
    noop.enqueue_many([{}] * 3)
    stranded, *_ = claim_ready(settler._slot.worker)
    settler.thread.start()
    with refused(f"NEW.id = {stranded.id}"):
        assert stranded_jobs_of(settler).give_back_if_due()
    assert Job.objects.get(status="running").pk == stranded.id


def test_a_stranded_step_that_waits_for_its_run_stops_no_claim(settler: Settler) -> None:
    start_graph({"a": ""})
    (held,) = claim_ready(settler._slot.worker)
    assert cancel(held.id)
    noop.enqueue_many([{}] * 3)
    claim_ready(settler._slot.worker)
    settler.deadline = StatementTimeout(0.3)
    settler.thread.start()
    stranded_jobs = stranded_jobs_of(settler)
    with (
        open_elsewhere("SELECT 1 FROM django_jobs_workflowrun FOR UPDATE"),
        ThreadPoolExecutor(1) as thread,
    ):
        looking = thread.submit(stranded_jobs.give_back_if_due)
        until(lambda: settler.deadline.enforce() or looking.done())
        assert looking.result()
        assert Job.objects.filter(status="ready").count() == 3
    stranded_jobs.look_soon()
    assert stranded_jobs.give_back_if_due()
    assert Job.objects.get(pk=held.id).status == "cancelled"


def test_no_look_follows_a_heartbeat_that_found_no_job(settler: Settler) -> None:
    stranded_jobs = stranded_jobs_of(settler, draining=True)  # then a look fails at once
    stranded_jobs._due_at = time.monotonic() - 1
    assert not stranded_jobs.give_back_if_due()
    settler._slot.empty_at = time.monotonic()
    assert stranded_jobs.give_back_if_due()
    stranded_jobs.look_soon()  # an answer may have been lost since
    assert not stranded_jobs.give_back_if_due()


def test_a_claimer_that_drains_does_not_wait_for_the_settler(settler: Settler) -> None:
    assert not stranded_jobs_of(settler, draining=True).give_back_if_due()


def test_a_waiting_claimer_leaves_the_last_connection_to_the_settler(
    settler: Settler,
) -> None:
    def give_back() -> bool:
        ping()
        given_back = stranded_jobs.give_back_if_due()
        connected.append(connection.connection is not None)
        connection.close()
        return given_back

    connected: list[bool] = []
    stranded_jobs = stranded_jobs_of(settler)
    settler._slot.status.ask_for_room()
    assert settler._slot.is_short
    with ThreadPoolExecutor(1) as thread:
        giving_back = thread.submit(give_back)
        until(lambda: not settler._submitted.empty())
        settler.thread.start()
        assert giving_back.result(PATIENCE)
    assert connected == [False]
