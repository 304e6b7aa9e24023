"""Async handlers hold slots of the loop and no threads, with real processes."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_jobs import enqueue_many
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import Job, Queue, Run, Worker
from django_jobs.worker.execution.failures import CANCELLED_HERE
from django_jobs.worker.supervisor.watchdog import SOFT_GRACE
from tests.app import async_jobs
from tests.app.models import Effect

from .processes import Start, in_case, let_go, lines, until, until_marked, until_status

pytestmark = pytest.mark.processes


def statuses(job_type: str) -> dict[str, int]:
    found = list(Job.objects.filter(job_type=job_type).values_list("status", flat=True))
    return {status: found.count(status) for status in set(found)}


@pytest.mark.parametrize("arguments", [(), ("--no-fork",)])
def test_a_thousand_handlers_wait_at_once_and_hold_no_thread(
    start_worker: Start, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The last of them comes behind jobs for threads, and these pass those that wait."""
    path = str(tmp_path / "met")
    enqueue_many("app.meet", [{"crowd": 1000, "path": path}] * 999)
    start_worker("--async-concurrency", "1000", "--threads", "2", *arguments)
    until_marked(Path(path), 999)  # a loop that is slow to start them gives the others back
    enqueue_many("app.noop", [{}] * 500)
    until(lambda: statuses("app.noop") == {"succeeded": 500})
    assert statuses("app.meet") == {"running": 999}
    (worker,) = take_snapshot().workers
    assert (worker.claimed, worker.threads, worker.async_slots) == (999, 2, 1000)
    last = async_jobs.meet.enqueue(crowd=1000, path=path)
    assert until_status(last, "succeeded").result == 1000
    until(lambda: statuses("app.meet") == {"succeeded": 1000})


def test_full_threads_and_a_full_loop_do_not_hold_up_each_other(
    start_worker: Start, tmp_path: Path
) -> None:
    """Each has a long line in front of the other's jobs, in one queue; nothing is hoarded."""
    path = str(tmp_path / "held")
    enqueue_many("app.hold", [{"path": path}] * 50)
    enqueue_many("app.hold_async", [{"path": path}] * 50)
    start_worker("--async-concurrency", "3", "--threads", "2")
    until_marked(Path(path), 5)
    until(lambda: statuses("app.hold") == {"running": 2, "ready": 48})
    until(lambda: statuses("app.hold_async") == {"running": 3, "ready": 47})
    let_go(Path(path))
    until(lambda: statuses("app.hold") == statuses("app.hold_async") == {"succeeded": 50})


def test_pools_share_the_slots_of_the_loop(start_worker: Start, tmp_path: Path) -> None:
    """By their threads: a full one leaves the others theirs."""
    for queue in ("heavy", "mail"):
        Queue.objects.create(name=queue)
        payload = {"path": str(tmp_path / queue)}
        enqueue_many("app.hold_async", [payload] * 20, queue=queue)
    start_worker("--pool", "heavy:1", "--pool", "mail:3", "--async-concurrency", "8")
    until_marked(tmp_path / "heavy", 2)
    until_marked(tmp_path / "mail", 6)
    running = Job.objects.filter(status="running")
    assert [running.filter(queue=queue).count() for queue in ("heavy", "mail")] == [2, 6]
    for queue in ("heavy", "mail"):
        let_go(tmp_path / queue)
    until(lambda: statuses("app.hold_async") == {"succeeded": 40})


def test_a_burst_runs_async_jobs_too(start_worker: Start) -> None:
    enqueue_many("app.noop_async", [{}] * 2000)
    enqueue_many("app.noop", [{}] * 300)
    assert start_worker("--burst").wait() == 0
    assert set(Run.objects.values_list("outcome", flat=True)) == {"succeeded"}
    assert Run.objects.count() == 2300


def test_a_drain_lets_async_handlers_end_and_gives_the_rest_back(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    enqueue_many("app.hold_async", [{"path": str(path)}] * 20)
    worker = start_worker("--async-concurrency", "10")
    until_marked(path, 10)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())  # it claims no more
    let_go(path)
    assert worker.wait() == 0
    assert statuses("app.hold_async") == {"succeeded": 10, "ready": 10}
    assert len(lines(path)) == 10


def test_a_forced_drain_releases_async_handlers(start_worker: Start, tmp_path: Path) -> None:
    path = tmp_path / "held"
    enqueue_many("app.hold_async", [{"path": str(path)}] * 10)
    worker = start_worker("--drain-timeout", "0.1")
    until_marked(path, 10)
    assert worker.drain() == 143
    assert statuses("app.hold_async") == {"ready": 10}
    assert set(Run.objects.values_list("outcome", flat=True)) == {"released"}


def test_the_jobs_of_a_dead_process_run_alone_without_holding_up_the_loop(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    enqueue_many("app.hold_async", [{"path": str(path)}] * 6)
    worker = start_worker("--async-concurrency", "6", "--threads", "1")
    until_marked(path, 6)
    died = int(lines(path)[-1][0])
    next(child for child in worker.children() if child.pid == died).kill()
    until(lambda: Job.objects.filter(job_type="app.hold_async", crashes=1).count() == 6)
    enqueue_many("app.noop_async", [{}] * 20)
    until(lambda: statuses("app.noop_async") == {"succeeded": 20})
    until_marked(path, 7)  # one of them, in the one thread
    let_go(path)
    until(lambda: statuses("app.hold_async") == {"succeeded": 6})


def test_the_orm_serves_many_handlers_with_few_connections(start_worker: Start) -> None:
    jobs_made = enqueue_many("app.keep_books", [{"number": number} for number in range(300)])
    start_worker("--threads", "2", "--burst").wait()
    results = dict(Job.objects.filter(pk__in=jobs_made).values_list("pk", "result"))
    assert [results[pk] for pk in jobs_made] == list(range(300))


def test_handlers_that_keep_all_sessions_can_still_use_other_threads(start_worker: Start) -> None:
    """With one thread there is one session to keep."""
    Effect.objects.bulk_create(Effect(note=f"page {number}") for number in range(5))
    walks = enqueue_many("app.walk_and_write", [{"notes": 5}] * 3)
    assert start_worker("--threads", "1", "--burst").wait() == 0
    assert list(Run.objects.values_list("outcome", flat=True)) == ["succeeded"] * 3
    results = Job.objects.filter(pk__in=walks).values_list("result", flat=True)
    assert list(results) == [0, 0, 0]


def test_the_wait_for_a_session_before_a_handler_begins_costs_none_of_its_time(
    start_worker: Start, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    keeps = async_jobs.hold_session.enqueue(str(path))
    worker = start_worker("--threads", "1")
    until_marked(path)
    processes = worker.session()
    late = async_jobs.begin_late.using(delay=0.1).enqueue()
    Job.objects.filter(pk=late.pk).update(attempt=1)  # it has a checkpoint to read
    until(lambda: Job.objects.filter(pk=late.pk, status="running").exists())
    begun = time.monotonic()
    until(lambda: time.monotonic() - begun > 1 + SOFT_GRACE + 1)  # the time is the condition
    let_go(path)
    assert until_status(late, "succeeded").result > 0.5
    until_status(keeps, "succeeded")
    assert worker.session() == processes


def test_what_a_handler_leaves_in_its_session_ends_with_it(start_worker: Start) -> None:
    start_worker("--threads", "2")
    for how in ("setting", "transaction", "atomic", "error", "closed"):
        with in_case(how):
            left = [async_jobs.leave_task_behind.enqueue(how) for _ in range(10)]
            until(lambda left=left: Run.objects.filter(job__in=left).count() >= 10)
            kept = Job.objects.filter(pk__in=enqueue_many("app.keep_session", [{}] * 20))
            until(lambda kept=kept: kept.filter(status="succeeded").count() == 20)
            assert set(kept.values_list("result", flat=True)) == {True}
            assert not Effect.objects.filter(note="not committed").exists()
            Job.objects.filter(pk__in=[job.pk for job in left]).delete()  # or it is tried again


def test_jobs_that_a_handler_cancels_before_they_begin_run_later(start_worker: Start) -> None:
    enqueue_many("app.cancel_everything", [{}])
    enqueue_many("app.noop_async", [{}] * 20)
    assert start_worker("--burst").wait() == 0
    assert list(Run.objects.values_list("outcome", "attempt")) == [("succeeded", 1)] * 21


def test_a_handler_that_cancels_all_tasks_costs_the_others_one_attempt(
    start_worker: Start, tmp_path: Path
) -> None:
    path, upgrade = tmp_path / "held", tmp_path / "upgrade"
    held = enqueue_many("app.hold_async", [{"path": str(path)}] * 5)
    upgraded = async_jobs.upgraded_slowly.enqueue(str(upgrade))
    Job.objects.filter(pk=upgraded.pk).update(payload_version=1)
    worker = start_worker("--async-concurrency", "20")
    until_marked(path, 5)
    until_marked(upgrade)
    processes = worker.session()
    async_jobs.cancel_everything.enqueue()
    failed = Run.objects.filter(job__in=held, outcome="failed")
    until(lambda: failed.count() == 5)
    (message,) = set(failed.values_list("error_message", flat=True))
    assert message == CANCELLED_HERE
    let_go(upgrade)
    until_status(upgraded, "succeeded")
    let_go(path)
    until(lambda: statuses("app.hold_async") == {"succeeded": 5})
    assert set(Run.objects.exclude(job__in=held).values_list("outcome", "attempt")) == {
        ("succeeded", 1)
    }
    assert worker.session() == processes


@pytest.mark.parametrize("deep", [False, True])
def test_a_handler_that_blocks_the_loop_is_named_in_the_log(
    start_worker: Start, tmp_path: Path, deep: bool
) -> None:
    path = tmp_path / "held"
    others = enqueue_many("app.hold_async", [{"path": str(path)}] * 5)
    worker = start_worker()
    until_marked(path, 5)
    blocks = async_jobs.block.enqueue(str(tmp_path / "blocks"), 3.0, deep=deep)
    until(lambda: "event=loop_blocked" in worker.text())
    (line,) = [line for line in worker.text().splitlines() if "loop_blocked" in line][:1]
    assert f"job_id={blocks.pk} job_type=app.block" in line
    name = "_doze" if deep else "block"
    assert re.search(rf'at="tests\.app\.async_jobs:\d+ in {name}', line), line
    let_go(path)
    until_status(blocks, "succeeded")
    until(lambda: Job.objects.filter(pk__in=others, status="succeeded").count() == 5)


def test_too_many_slots_for_one_process_are_refused(transactional_db: None) -> None:
    with pytest.raises(CommandError, match="at most 2,000 in a process; for more, use"):
        call_command("jobworker", "--async-concurrency", "2001")


HEARS_FAILURES = """
import traceback
from django_jobs.signals import attempt_failed


def note(sender, exception, **fields):
    names = [frame.name for frame in traceback.extract_tb(exception.__traceback__)]
    print(f"heard {sender}: {exception!r} from {names}", flush=True)


attempt_failed.connect(note)
"""


def test_attempt_failed_has_the_exception_of_an_async_handler(start_worker: Start) -> None:
    async_jobs.nap_async.using(max_attempts=1).enqueue("no number")  # type: ignore[arg-type]
    worker = start_worker("--burst", before=HEARS_FAILURES)
    assert worker.wait() == 0
    assert re.search(r"heard app\.nap_async: TypeError\(.+ from \[.*'nap_async'", worker.text())
