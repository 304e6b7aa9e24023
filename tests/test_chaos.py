"""What the chaos test reckons with is right: its plan, its measures, its eye on a log.

The test itself takes minutes: ``python -m tests.chaos --ci``.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import neighbour, plan, requests, sessions, worker_logs
from tests.chaos.history import Fault, History
from tests.chaos.recovery import CRASH, Recoveries, Turns
from tests.chaos.timing import LEASE, STALL


def first_steps(seed: int) -> list[plan.Step]:
    return list(itertools.islice(plan.steps(seed, trees=4), 500))


def test_a_seed_gives_the_same_storm_again():
    assert first_steps(7) == first_steps(7)
    assert first_steps(7) != first_steps(8)
    assert plan.outages(7, 60) == plan.outages(7, 60)
    assert requests.errand("storm", 7, 300) == requests.errand("storm", 7, 300)


def test_a_storm_has_every_fault_on_every_tree():
    found = {(step.kind, step.tree) for step in first_steps(7)}
    assert found == set(itertools.product(plan.WEIGHTS, range(4)))
    assert all(1 <= step.backends <= 3 and 0.3 <= step.pause <= 0.9 for step in first_steps(7))


@pytest.mark.parametrize("seconds, count", [(20, 1), (60, 4), (1_200, 20)])
def test_one_of_four_outages_is_longer_than_the_lease(seconds, count):
    outages = plan.outages(3, seconds)
    assert len(outages) == count
    assert sum(outage.seconds > LEASE for outage in outages) == max(count // 4, 1)
    assert all(0 < outage.at < seconds for outage in outages)


@pytest.mark.parametrize("seed", range(5))
def test_the_storm_enqueues_jobs_of_all_kinds(seed):
    storm = requests.errand("storm", seed, 1_500)
    assert sum(request.count for request in storm) == 1_500
    kinds = [request.kind for request in storm]
    assert (kinds.count("poison"), kinds.count("hold_the_gil")) == (3, 3)
    assert set(kinds) == {*requests.KINDS, "poison", "hold_the_gil", "cancelled", "forced"}
    assert requests.LATER not in {request.queue for request in storm[: len(storm) // 3]}
    assert requests.LATER in {request.queue for request in storm}
    assert {request.manner for request in storm} == set(requests.MANNERS)
    usual = [request for request in storm if request.manner not in ("cancelled", "forced")]
    slow = [request for request in usual if request.seconds >= 0.04]
    assert 0.2 < len(slow) / len(usual) < 0.3
    assert max(request.seconds for request in storm) <= 1.5


def test_a_fault_disturbs_its_tree_and_an_outage_all():
    history = History(
        faults=[Fault(kind=plan.STOP_TREE, at=10, tree="tree-1", until=14)],
        outages=[Fault(kind=plan.OUTAGE, at=30, until=33, gone=30.5)],
    )
    assert history.disturbed({"tree-1"}, 13, 20)
    assert not history.disturbed({"tree-1"}, 14.1, 20)
    assert not history.disturbed({"tree-0"}, 10, 20)
    assert history.disturbed({"tree-0"}, 34, 40), "the others may still be connecting"
    assert not history.disturbed({"tree-1"}, 10, 12, but=history.faults[0])
    assert history.downtime() == 3
    assert history.downtime(32, 60) == 1


def test_a_late_recovery_and_a_late_median_do_not_balance():
    recoveries = Recoveries()
    for _ in range(5):
        recoveries.add(CRASH, 0.2, "in time")
    recoveries.add(CRASH, 60.0, "disturbed", able=0.0)
    assert list(recoveries.problems()) == []
    recoveries.add(CRASH, 1.1 + STALL, "a job")
    ((number, text),) = recoveries.problems()
    assert number == 7
    assert "a job" in text
    slow = Recoveries()
    for _ in range(5):
        slow.add(CRASH, 1.5, "each in its bound")
    ((_, text),) = slow.problems()
    assert "median" in text


def test_a_lost_job_waits_for_those_before_it_in_the_queue():
    older, younger = (0.1, 2), (0.3, 4)
    place = (0.2, 3)

    def turn(*claims: tuple[float, tuple[float, int]], claimed: float = 30.0) -> float:
        return Turns([(1.0, (0.0, 1)), *claims, (claimed, place)]).turn(place, 4.0, claimed)

    assert turn() == 4.0
    assert turn((5.0, older), (9.0, older)) == 9.0
    assert turn((5.0, older), (9.0, younger)) == 5.0
    assert turn((4.1, younger), (9.0, older)) == 9.0, "by a claim that was under way"
    assert turn((9.0, younger), (29.9, older)) == 4.0, "it was overtaken, so all of it counts"


def test_a_log_may_contain_only_events_that_faults_explain(tmp_path: Path):
    def line(level: str, event: str) -> str:
        return f"2026-11-21 12:17:36,870 {level} event={event}\n"

    log = tmp_path / "worker-0.log"
    log.write_text(
        line("WARNING", "lease_lost worker=3 jobs=2")
        + line("ERROR", "process_died pid=1 reason=SIGKILL")
        + line("ERROR", "job_dead job_id=1 job_type=chaos.poison")
        + "CommandError: the database 'default' does not answer: connection is bad: no such file\n"
        + "\tIs the server running locally and accepting connections on that socket?\n"
        + "error ignored terminating <psycopg.Pipeline [BAD] at 0x7f>: the connection is lost\n"
        + "error ignored terminating <psycopg.Pipeline [BAD] at 0x7f>: flush request failed: "
        + "terminating connection due to administrator command\nno connection to the server\n"
        + "error ignored in rollback on <psycopg.Connection [BAD] at 0x7f>: server closed the "
        + "connection unexpectedly\n\tThis probably means the server terminated abnormally\n"
    )
    assert list(worker_logs.problems([log])) == []
    for wrong in (
        line("ERROR", "job_dead job_id=1 job_type=chaos.outside"),
        line("ERROR", "crash_recovery_failed worker=3"),
        line("WARNING", 'database_error what=claim error="permission denied for table"'),
        "error ignored terminating <psycopg.Pipeline [INTRANS] at 0x7f>: a command is under way\n",
        "Traceback (most recent call last):\n",
    ):
        log.write_text(wrong)
        ((number, _),) = worker_logs.problems([log])
        assert number == 10


def test_a_setting_of_another_on_a_session_does_not_balance(tmp_path: Path):
    effects, clean = tmp_path / "effects", '["","\\"$user\\",public","",0]'
    looks = tmp_path / "effects.sessions"
    looks.write_text(f"1 7 70 setting {clean}\n2 7 71 nothing {clean}\n3 7 70 nothing {clean}\n")
    assert list(sessions.problems(effects)) == []
    assert set(sessions.counted(effects).values()) == {1}
    looks.write_text('4 7 70 nothing ["seven","\\"$user\\",public","",0]\n')
    ((number, text),) = sessions.problems(effects)
    assert number == 12
    assert "seven" in text


def test_concurrent_executions_overlap_unless_one_was_cut_off(tmp_path: Path):
    file = tmp_path / "effects.guests"
    file.write_text(
        "begin a 1 10.0\nbegin b 2 10.5\nend a 1 11.0\nbegin a 2 11.5\nend a 2 12.0\n"
        "begin b 3 11.0\nend b 3 12.0\n"
    )
    spans = neighbour.executions(file)
    assert not neighbour.overlap(spans["a"])
    assert not neighbour.overlap(spans["b"]), "its first was never seen to end"
    assert neighbour.overlap([(10.0, 11.0), (10.5, 12.0)])


def test_the_control_finds_the_statements_that_it_breaks():
    """Else it ends CI at its end, after a quarter of an hour."""
    broken = {f"CHAOS_WITHOUT_{name}": "1" for name in ("FENCE", "LIMITS", "ATOMICITY")}
    environment = {**os.environ, **broken, "DJANGO_SETTINGS_MODULE": "tests.chaos.settings"}
    setup = [sys.executable, "-c", "import django; django.setup()"]
    subprocess.run(setup, check=True, env=environment)
