"""``jobstatus``: the queues and the workers at a glance."""

from __future__ import annotations

import json
import re
import time
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from pytest_django import Settings

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.run_log import RunCost
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.metrics.slo import MOST_LATE
from django_jobs.metrics.unclaimable import MOST_LOOKED_AT
from django_jobs.models import Job, Queue, Schedule, Worker
from tests.app.jobs import noop
from tests.commands import printed
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.moments import moment
from tests.worker.processes import manage


def status(*arguments: str) -> str:
    return printed("jobstatus", *arguments)


def row_of(name: str, shown: str) -> list[str]:
    return next(line.split() for line in shown.splitlines() if line.startswith(name))


class Impatient(StringIO):
    """An output whose reader presses Ctrl-C after the third look."""

    looks = 0

    def write(self, text: str) -> int:
        self.looks += "QUEUE" in text
        if self.looks == 3:
            raise KeyboardInterrupt
        return super().write(text)


@pytest.mark.django_db
def test_it_shows_each_queue_on_a_line() -> None:
    make_dead()
    noop.enqueue()
    noop.using(delay=60).enqueue()
    job_operations.pause(["bulk"])
    shown = status()
    assert row_of("QUEUE", shown) == [
        "QUEUE",
        "STATE",
        "READY",
        "OLDEST",
        "RUNNING",
        "LIMIT",
        "SCHEDULED",
        "DEAD",
        "PRESSURE",
    ]
    default = row_of("default", shown)
    assert re.fullmatch(r"\d+[sm]", default.pop(3))
    assert default == ["default", "open", "1", "0", "-", "1", "1", "-"]
    assert row_of("bulk", shown)[1] == "paused"
    assert row_of("emails", shown)[5] == "2"


@pytest.mark.django_db
def test_a_paused_queue_has_a_line_that_says_since_when_by_whom_and_why() -> None:
    noop.using(queue="bulk").enqueue()
    ada = get_user_model().objects.create_superuser("ada")
    job_operations.pause(["bulk"], actor=ada, reason="the feed is broken")
    job_operations.pause(["emails"], reason="the provider is down")
    run_sql("UPDATE django_jobs_queue SET paused_at = now() - interval '3 h' WHERE name = 'bulk'")
    lines = status().splitlines()
    assert "Paused by ada 3h ago, 1 ready: bulk: the feed is broken" in lines
    (emails,) = (line for line in lines if line.endswith(": emails: the provider is down"))
    assert re.fullmatch(r"Paused \S+ ago, none ready: .*", emails)
    with moment() as now:
        shown = {queue["name"]: queue for queue in json.loads(status("--json"))["queues"]}
    assert shown["bulk"]["paused_by"] == "ada"
    assert shown["bulk"]["paused_seconds"] in now.since(Queue.objects.get(name="bulk").paused_at)
    assert (shown["default"]["paused_by"], shown["default"]["paused_seconds"]) == ("", None)


@pytest.mark.django_db
def test_a_queue_with_a_limit_shows_its_pressure() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    noop.using(queue="bulk").enqueue_many([{}] * 4)
    assert row_of("bulk", status())[-1] == "high"
    noop.using(queue="bulk").enqueue()
    assert row_of("bulk", status())[-1] == "full"
    shown = {queue["name"]: queue for queue in json.loads(status("--json"))["queues"]}
    assert (shown["bulk"]["pressure"], shown["bulk"]["max_backlog"]) == ("full", 5)
    assert (shown["default"]["pressure"], shown["default"]["max_backlog"]) == (None, None)


@pytest.mark.django_db
def test_ages_are_shown_in_a_suitable_unit() -> None:
    noop.enqueue()
    for seconds, output in ((90, "(9|1[01])[0-9]s"), (600, "10m"), (10_800, "3h"), (345_600, "4d")):
        run_sql(
            "UPDATE django_jobs_job SET available_at = now() - make_interval(secs => %s)",
            [seconds],
        )
        assert re.fullmatch(output, row_of("default", status())[3])


@pytest.mark.django_db
def test_it_lists_the_live_workers_or_says_there_are_none() -> None:
    assert "No worker is alive." in status()
    noop.enqueue()
    claim_ready(register_worker("web-1"))
    register_worker("web-2", lease=-1)
    shown = status()
    assert row_of("web-1", shown)[2:7] == ["running", "testhost", "4711", "1", "1"]
    assert "no heartbeat" in next(line for line in shown.splitlines() if "web-2" in line)


@pytest.mark.django_db
def test_the_pools_of_a_worker_are_shown() -> None:
    register_worker("web-1", threads=4, queues=["default", "bulk"])
    assert row_of("web-1", status())[-1] == "default,bulk"
    pools = [(["default"], 3), (["bulk"], 1)]
    register_worker("web-2", threads=4, queues=["default", "bulk"], pools=pools)
    assert row_of("web-2", status())[-2:] == ["default:3", "bulk:1"]
    (_, worker) = json.loads(status("--json"))["workers"]
    assert worker["pools"] == [
        {"queues": ["default"], "threads": 3},
        {"queues": ["bulk"], "threads": 1},
    ]


@pytest.mark.django_db
def test_json_has_the_same_content() -> None:
    noop.enqueue()
    register_worker("web-1")
    output = json.loads(status("--json"))
    ready = {queue["name"]: queue["ready"] for queue in output["queues"]}
    assert (ready["default"], ready["bulk"]) == (1, 0)
    (worker,) = output["workers"]
    assert (worker["name"], worker["queues"]) == ("web-1", ["default"])
    assert output["unknown_job_types"] == []


@pytest.mark.django_db
def test_jobs_that_no_living_worker_knows_are_shown() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.from_view'")
    assert "knows" not in status()
    register_worker("web-1")
    output = "1 job of a type no live worker of its queue knows: shop.from_view"
    assert status().rstrip().endswith(output)
    assert json.loads(status("--json"))["unknown_job_types"] == [
        {"job_type": "shop.from_view", "ready": 1}
    ]


@pytest.mark.django_db
def test_blocked_jobs_that_no_living_worker_knows_are_not_called_ready() -> None:
    register_worker("web-1")
    enqueue_many("app.charge_account", [{"account_id": 7}] * 3)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone'")
    assert {job.status for job in Job.objects.all()} == {"blocked"}
    expected = "\n3 jobs of a type no live worker of its queue knows: shop.gone"
    assert status().rstrip().endswith(expected)


@pytest.mark.django_db
def test_ready_jobs_in_a_queue_without_a_worker_are_shown() -> None:
    noop.using(queue="bulk").enqueue()
    assert "serves" not in status()
    register_worker("web-1")
    assert status().rstrip().endswith("1 job in a queue no running worker serves: bulk")
    register_worker("web-2", queues=["bulk"])
    assert "serves" not in status()


@pytest.mark.django_db
def test_jobs_too_new_for_all_live_workers_are_shown() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET payload_version = 2")
    register_worker("web-1")
    output = "1 job of a newer version than any live worker of its queue reads: app.noop, version 2"
    assert status().rstrip().endswith(output)
    assert json.loads(status("--json"))["unread_versions"] == [
        {"job_type": "app.noop", "version": 2, "ready": 1}
    ]


@pytest.mark.django_db(transaction=True)
def test_watch_repeats_until_ctrl_c() -> None:
    out = Impatient()
    call_command("jobstatus", "--watch", "0.1", stdout=out)
    assert out.getvalue().count("QUEUE  ") == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_an_invalid_interval_is_refused(seconds: str) -> None:
    with pytest.raises(CommandError, match="--watch takes"):
        status(f"--watch={seconds}")


def make_schedule(name: str = "nightly") -> Schedule:
    return Schedule.objects.create(name=name, job_type="app.noop", every=3600)


@pytest.fixture
def _no_schedules(db: None) -> None:
    """Not even those that the demo declares."""
    Schedule.objects.all().delete()


@pytest.mark.usefixtures("_no_schedules")
def test_schedules_are_summed_up_in_one_line() -> None:
    worker = register_worker()
    assert "chedules" not in status()
    make_schedule()
    Scheduling().look()
    line = "Schedules: 1 on, 0 paused, 0 error"
    assert status().endswith(f"{line}\n")  # it has just started, and tells with its next heartbeat
    run_sql("UPDATE django_jobs_worker SET started_at = now() - interval '99 s'")
    assert status().endswith(f"{line}. No worker looks at schedules.\n")
    workers.renew([worker], 30, looked_ago=0.4)
    schedule_operations.pause([make_schedule("other").pk])
    Schedule.objects.create(name="off", job_type="app.noop", every=60, enabled=False)
    assert re.search(
        r"^Schedules: 1 on, 1 paused, 0 error, 1 disabled; looked at \S+ s ago$",
        status(),
        re.MULTILINE,
    )
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = now() - interval '95 s'")
    assert re.search(
        r"disabled\. No worker has looked at schedules for (9[5-9]|10\d) s\.\n$", status()
    )


@pytest.mark.usefixtures("_no_schedules")
def test_json_has_the_schedules_too() -> None:
    make_schedule()
    assert json.loads(status("--json"))["schedules"] == {
        "on": 1,
        "paused": 0,
        "overdue": 0,
        "error": 0,
        "disabled": 0,
        "ended": 0,
        "overdue_seconds": None,
        "most_overdue": None,
        "seen_seconds": None,
        "unseen_seconds": None,
    }


@pytest.mark.usefixtures("_no_schedules")
def test_check_prints_ok_or_the_problem_in_one_line() -> None:
    with pytest.raises(CommandError, match=r"^no worker is alive$") as refused:
        status("--check")
    assert refused.value.returncode == 1
    worker = register_worker()
    assert status("--check") == "OK\n"
    make_schedule()
    run_sql("UPDATE django_jobs_worker SET started_at = now() - interval '70 s'")
    with pytest.raises(CommandError, match=r"^no worker looks at schedules$"):
        status("--check")
    workers.renew([worker], 30, looked_ago=10)
    assert status("--check") == "OK\n"
    with pytest.raises(CommandError, match=r"^no worker has looked at schedules for \d+ s$"):
        status("--check", "--max-lag", "5")
    run_sql("UPDATE django_jobs_schedule SET stale = false, next_due_at = now() - interval '70 s'")
    with pytest.raises(CommandError, match=r"^the schedule 'nightly' is overdue by \d+ s$"):
        status("--check")


@pytest.mark.usefixtures("_no_schedules")
def test_a_check_fails_for_jobs_that_no_live_worker_can_run() -> None:
    worker = register_worker(queues=["default"], job_types={"app.noop": 1})
    noop.enqueue()
    assert status("--check") == "OK\n"
    noop.using(queue="bulk").enqueue()
    served = "1 job in a queue no running worker serves: bulk"
    with pytest.raises(CommandError, match=f"^{served}$") as refused:
        status("--check")
    assert refused.value.returncode == 1
    run_sql(
        "UPDATE django_jobs_job SET queue = 'default', payload_version = 2 WHERE queue = 'bulk'"
    )
    with pytest.raises(CommandError, match=r"^1 job of a newer .*: app\.noop, version 2$"):
        status("--check")
    run_sql("UPDATE django_jobs_job SET job_type = 'crm.push', payload_version = 1")
    known = "2 jobs of a type no live worker of its queue knows: crm.push"
    with pytest.raises(CommandError, match=f"^{known}$"):
        status("--check")
    make_schedule()
    run_sql("UPDATE django_jobs_schedule SET error = 'no such zone'")
    with pytest.raises(CommandError, match=f"^{known}; schedules with an error: 1$"):
        status("--check")
    workers.end(worker)
    with pytest.raises(CommandError, match=r"^no worker is alive$"):
        status("--check")


@pytest.mark.usefixtures("_no_schedules")
def test_check_names_three_kinds_of_stuck_jobs_and_counts_the_others() -> None:
    register_worker()
    for _ in range(5):
        noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = 'crm.push_' || id")
    with pytest.raises(CommandError) as refused:
        status("--check")
    *named, more = str(refused.value).split("; ")
    assert len(named) == 3
    assert more == "and 2 more kinds of jobs that no live worker can run"


@pytest.mark.usefixtures("_no_schedules")
def test_check_gives_a_new_worker_time_to_look_at_schedules() -> None:
    make_schedule()
    register_worker()
    assert json.loads(status("--json"))["schedules"]["seen_seconds"] is None
    assert status("--check") == "OK\n"
    run_sql("UPDATE django_jobs_worker SET started_at = now() - interval '40 s'")
    assert status("--check") == "OK\n"
    with pytest.raises(CommandError, match=r"^no worker looks at schedules$"):
        status("--check", "--max-lag", "30")


@pytest.mark.usefixtures("_no_schedules")
def test_check_ignores_schedules_that_are_switched_off(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SCHEDULES": False}
    register_worker()
    make_schedule()
    assert status("--check") == "OK\n"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--max-lag", "5"), "--max-lag requires --check"),
        (("--check", "--json"), "--check cannot be combined with --json or --watch"),
        (("--check", "--watch"), "--check cannot be combined with --json or --watch"),
        (("--check", "--max-lag", "0"), "--max-lag takes 1 to 86,400 seconds"),
        (("--sizing", "--check"), "--sizing and --cost can only be combined with --json"),
        (("--sizing", "--watch"), "--sizing and --cost can only be combined with --json"),
        (("--cost", "--sizing"), "--sizing and --cost can only be combined with --json"),
        (("--cost", "--check"), "--sizing and --cost can only be combined with --json"),
        (("--check", "--max-lag", "nan"), "--max-lag takes 1 to 86,400 seconds"),
    ],
)
def test_invalid_options_of_check_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        status(*arguments)


OPPOSITES = {"<=": ">", ">=": "<", "!=": "=", "<": ">=", ">": "<=", "=": "!="}


@pytest.mark.django_db
def test_conditions_compare_with_the_numbers_of_the_snapshot(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SCHEDULES": True}
    Queue.objects.filter(name="bulk").update(max_backlog=5)
    make_dead()
    enqueue_and_claim()
    run_sql("UPDATE django_jobs_worker SET status = 'stopped'")
    register_worker(queues=["default", "bulk"], job_types={"app.noop": 1})
    register_worker(lease=-1)
    noop.using(queue="bulk").enqueue_many([{}] * 4)
    noop.using(delay=600).enqueue()
    noop.using(queue="emails").enqueue_many([{}] * 2)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '2 h' WHERE queue = 'bulk'")
    run_sql(
        "UPDATE django_jobs_job SET job_type = 'gone' WHERE id IN ("
        "SELECT max(id) FROM django_jobs_job WHERE queue = 'bulk')"
    )
    make_schedule()
    run_sql("UPDATE django_jobs_schedule SET stale = false, next_due_at = now() - interval '70 s'")
    true = (
        "age>=2h,age<9h,bulk.age>=2h,emails.age<2h,dead=1,default.dead=1,bulk.dead=0,ready=6,"
        "bulk.ready=4,running=1,default.running=1,scheduled=1,default.scheduled=1,workers=1,"
        "bulk.workers=1,emails.workers=0,unclaimable=3,pressure=high,bulk.pressure<full,"
        "default.pressure=ok,lag>=70,lag<60m"
    )
    assert status("--check", true) == "OK\n"
    for condition in true.split(","):
        false = re.sub(r"[<>=!]+", lambda found: OPPOSITES[found[0]], condition)
        with pytest.raises(CommandError, match=r"^\S+, but it is \S+$") as refused:
            status("--check", f"{false},workers<5")
        assert refused.value.returncode == 1


@pytest.mark.django_db
@pytest.mark.parametrize("schedules", [True, False])
def test_json_has_the_numbers_that_conditions_compare(settings: Settings, schedules: bool) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "SCHEDULES": schedules}
    noop.enqueue_many([{}] * 3)
    make_schedule()
    run_sql("UPDATE django_jobs_schedule SET stale = false, next_due_at = now() - interval '70 s'")
    with moment() as now:
        shown = json.loads(status("--json"))
    assert shown["unclaimable"] == 3
    due_at = Schedule.objects.get().next_due_at
    assert shown["lag"] in now.since(due_at) if schedules else shown["lag"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("quantity", ["dead", "running", "scheduled"])
def test_a_shared_count_at_its_end_is_not_compared_for_one_queue(
    monkeypatch: pytest.MonkeyPatch, quantity: str
) -> None:
    enqueue_and_claim()
    noop.using(delay=600).enqueue()
    make_dead()
    assert status("--check", f"bulk.{quantity}=0,default.{quantity}<2") == "OK\n"
    monkeypatch.setattr("django_jobs.metrics.snapshot.MOST_COUNTED", 1)
    monkeypatch.setattr("django_jobs.management.status_check.MOST_COUNTED", 1)
    assert status("--check", f"{quantity}>0,bulk.ready=0") == "OK\n"
    wanted = rf"^--check: bulk\.{quantity}=0 is not known: 1 or more jobs are {quantity}, and "
    with pytest.raises(CommandError, match=wanted) as refused:
        status("--check", f"bulk.{quantity}=0")
    assert refused.value.returncode == 2


@pytest.mark.django_db
def test_a_shared_count_at_its_end_is_shown_as_a_least_for_each_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue_and_claim()
    noop.using(delay=600).enqueue()
    make_dead()
    assert row_of("bulk", status())[4:8] == ["0", "-", "0", "0"]
    monkeypatch.setattr("django_jobs.metrics.snapshot.MOST_COUNTED", 1)
    monkeypatch.setattr("django_jobs.management.status_text.MOST_COUNTED", 1)
    shown = status()
    assert row_of("default", shown)[4:8] == ["1+", "-", "1+", "1+"]
    assert row_of("bulk", shown)[4:8] == ["0+", "-", "0+", "0+"]


@pytest.mark.django_db
def test_counts_that_stop_earlier_are_marked_where_they_do() -> None:
    Queue.objects.filter(name="default").update(slo_seconds=30)
    register_worker(job_types={"app.add": 1})
    noop.enqueue_many([{}] * MOST_LATE)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h'")
    assert row_of("default", status().partition("IN TIME")[2])[-1] == f"{MOST_LATE}+"
    unknown = f"{MOST_LOOKED_AT}+ jobs of a type no live worker of its queue knows: app.noop"
    assert unknown in status().splitlines()
    with pytest.raises(CommandError, match=f"^{re.escape(unknown)}"):
        status("--check")
    run_sql("UPDATE django_jobs_job SET job_type = 'app.add' WHERE id % 2 = 0")
    with pytest.raises(CommandError, match=rf"^{MOST_LOOKED_AT // 2}\+ jobs of a type"):
        status("--check")


@pytest.mark.django_db
def test_each_false_condition_is_named_with_its_value() -> None:
    make_dead()
    run_sql("UPDATE django_jobs_worker SET status = 'stopped'")
    wanted = r"^workers>0, but it is 0; dead=0, but it is 1; pressure>ok, but it is ok$"
    with pytest.raises(CommandError, match=wanted) as refused:
        status("--check", "workers>0, ready<5, dead=0, pressure>ok")
    assert refused.value.returncode == 1


@pytest.mark.django_db
def test_without_a_live_worker_each_ready_job_is_unclaimable() -> None:
    noop.enqueue_many([{}] * 3)
    assert status("--check", "unclaimable=3") == "OK\n"


@pytest.mark.django_db
def test_more_unclaimable_jobs_than_are_counted_fulfil_no_condition() -> None:
    register_worker(job_types={})
    noop.enqueue_many([{}] * (MOST_LOOKED_AT + 10))
    for condition in (f"unclaimable<{MOST_LOOKED_AT + 1}", f"unclaimable<{MOST_LOOKED_AT - 1}"):
        with pytest.raises(CommandError):
            status("--check", condition)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("age",), "^--check: 'age' is not a condition such as age<60"),
        (("",), "^--check: '' is not a condition"),
        (("nowhere.age<60",), "^--check: 'nowhere.age<60': no queue is named 'nowhere'; known"),
        (("age<60", "--max-lag", "5"), "^--max-lag cannot be combined with conditions"),
        (("age<60", "--sizing"), "^--sizing and --cost can only be combined with --json"),
        (("age<60", "--json"), "^--check cannot be combined with --json or --watch"),
    ],
)
def test_conditions_that_cannot_be_checked_exit_with_two(
    arguments: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(CommandError, match=problem) as refused:
        status("--check", *arguments)
    assert refused.value.returncode == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "conditions, environment, code",
    [
        ("workers=0", {}, 0),
        ("workers>0", {}, 1),
        ("wrokers>0", {}, 2),
        ("workers=0", {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}, 2),
    ],
)
def test_the_exit_codes_of_conditions_are_those_of_the_process(
    conditions: str, environment: dict[str, str], code: int
) -> None:
    ended, printed, errors = manage("jobstatus", "--check", conditions, **environment)
    assert (ended, "Traceback" in errors) == (code, False), errors
    assert printed == ("OK\n" if code == 0 else "")
    assert bool(errors) == bool(code)


@pytest.mark.django_db
def test_sizing_shows_what_each_queue_needs_and_has() -> None:
    assert status("--sizing") == "No run ended in the last hour.\n"
    settle_one(enqueue_and_claim(), Succeeded(), started=time.monotonic())
    run_sql("UPDATE django_jobs_run SET started_at = finished_at - interval '10 s'")
    workers.end(Worker.objects.get().pk)
    shown = status("--sizing")
    assert shown.startswith("From 1 run of the last 10 s.\n\nQUEUE ")
    queue, rate, mean, p95, needs, threads, slots = row_of("default", shown)
    assert (queue, mean, p95, threads, slots) == ("default", "10s", "10s", "0", "-")
    assert 0.05 < float(rate) <= 0.1
    assert 0.6 <= float(needs) <= 1.2
    assert re.search(r"^default needs [12] threads?, and has none\.$", shown, re.MULTILINE)
    output = json.loads(status("--sizing", "--json"))
    assert output["problems"]
    assert output["queues"][0]["slots"] == 0
    run_sql("UPDATE django_jobs_job SET job_type = 'app.noop_async'")
    shown = status("--sizing")
    assert row_of("default", shown)[-2:] == ["-", "0"]
    assert re.search(r"^default needs [12] async slots?, and has none\.$", shown, re.MULTILINE)


@pytest.mark.django_db
def test_cost_shows_what_the_job_types_used() -> None:
    assert status("--cost") == "No run ended in the last hour.\n"
    now = time.monotonic()
    cost = RunCost(cpu_seconds=1.5, queries=3, query_seconds=0.25)
    settle([Ending(enqueue_and_claim(), Succeeded(), now - 2, now, cost=cost)])
    shown = status("--cost")
    assert shown.startswith("From 1 run of the last ")
    assert row_of("app.noop", shown)[1:] == ["1", "2s", "1.5s", "-", "3", "0.25s"]
    (of_type,) = json.loads(status("--cost", "--json"))["types"]
    assert (of_type["job_type"], of_type["cpu_seconds"], of_type["max_rss_kb"]) == (
        "app.noop",
        1.5,
        None,
    )
