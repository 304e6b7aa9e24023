"""What the scoreboard says about the health of a tree. With real processes: test_health."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs.worker.health.server import (
    CLAIM_SECONDS,
    SUPERVISOR_SECONDS,
    hung_after,
    liveness,
    readiness,
)
from django_jobs.worker.ipc.scoreboard import Scoreboard

from .scoreboards import LEASE, Clock, claiming


def test_a_tree_that_claims_is_alive_and_ready() -> None:
    assert liveness(claiming(), LEASE).problems == ()
    assert readiness(claiming(), LEASE).problems == ()


@pytest.mark.parametrize(
    "lease, age, is_alive",
    [(30.0, 11.25, True), (30.0, 11.3, False), (2.0, 1.5, True), (2.0, 1.6, False)],
)
def test_a_heartbeat_is_late_before_the_supervisor_kills_it(
    clock: Clock, lease: float, age: float, is_alive: bool
) -> None:
    scoreboard = claiming()
    scoreboard.status.beat_at = clock.ago(age)
    assert age < hung_after(lease)
    assert liveness(scoreboard, lease).is_ok is is_alive
    assert any("heartbeat" in one for one in readiness(scoreboard, lease).problems) is not is_alive


def test_a_heartbeat_that_waits_for_the_database_is_alive_until_it_should_be_replaced(
    clock: Clock,
) -> None:
    scoreboard = claiming()
    scoreboard.status.is_renewing = True
    scoreboard.status.beat_at = clock.ago(hung_after(LEASE) + SUPERVISOR_SECONDS)
    assert liveness(scoreboard, LEASE).is_ok
    scoreboard.status.beat_at = clock.ago(hung_after(LEASE) + SUPERVISOR_SECONDS + 1.2)
    assert liveness(scoreboard, LEASE).problems == ("the heartbeat process has not run for 29 s",)


def test_a_supervisor_that_stands_still_is_not_alive(clock: Clock) -> None:
    scoreboard = claiming()
    scoreboard.status.turned_at = clock.ago(SUPERVISOR_SECONDS + 1)
    assert liveness(scoreboard, LEASE).problems == ("the supervisor has not run for 6 s",)
    assert not readiness(scoreboard, LEASE).is_ok


def lose_database(scoreboard: Scoreboard) -> None:
    scoreboard.status.is_connected = False


def drain(scoreboard: Scoreboard) -> None:
    scoreboard.status.draining = True


def clear(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].clear()


def register_only(scoreboard: Scoreboard) -> None:
    clear(scoreboard)
    scoreboard.slots[0].register(9, scoreboard.status.beat_at + LEASE)
    scoreboard.slots[0].note_settling(connected=True)


def drain_process(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].draining = True


def let_lease_run_out(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].renewed(1, scoreboard.status.beat_at + 0.5)


def lose_lease(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].lose_lease(1)


def lose_settler(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].note_settling(connected=False)


def fail_claim(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].claim_failed = True


def stop_claiming(scoreboard: Scoreboard) -> None:
    scoreboard.slots[0].round_due = scoreboard.status.beat_at - CLAIM_SECONDS - 2


OF_THE_TREE = {
    lose_database: "the heartbeat process has no connection to the database",
    drain: "draining",
}
OF_A_PROCESS = {
    clear: "not registered",
    register_only: "it has not claimed yet",
    drain_process: "draining",
    let_lease_run_out: "its lease was not renewed",
    lose_lease: "its lease was not renewed",
    lose_settler: "its settler has no connection to the database",
    fail_claim: "its last claim failed",
    stop_claiming: "it should have claimed 12 s ago",
}


@pytest.mark.parametrize("happens", OF_THE_TREE, ids=lambda one: one.__name__)
def test_a_tree_that_does_not_claim_is_alive_and_not_ready(
    happens: Callable[[Scoreboard], None],
) -> None:
    scoreboard = claiming(2)
    happens(scoreboard)
    assert readiness(scoreboard, LEASE).problems == (OF_THE_TREE[happens],)
    assert liveness(scoreboard, LEASE).is_ok


@pytest.mark.parametrize("happens", OF_A_PROCESS, ids=lambda one: one.__name__)
def test_a_tree_is_ready_while_one_process_claims(happens: Callable[[Scoreboard], None]) -> None:
    alone, two = claiming(), claiming(2)
    happens(alone)
    happens(two)
    assert readiness(alone, LEASE).problems == (f"worker process 1: {OF_A_PROCESS[happens]}",)
    report = readiness(two, LEASE)
    assert report.is_ok
    assert [process.problem for process in report.processes] == [OF_A_PROCESS[happens], ""]
    assert liveness(alone, LEASE).is_ok


def test_a_later_round_of_the_claimer_makes_it_ready() -> None:
    scoreboard = claiming()
    fail_claim(scoreboard)
    stop_claiming(scoreboard)
    scoreboard.slots[0].note_round(0.0)
    assert readiness(scoreboard, LEASE).is_ok
