"""What a worker process does with jobs, seen from the database."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from multiprocessing import Pipe
from pathlib import Path

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Released
from django_jobs.models import Job, Run, Worker
from django_jobs.worker.ipc.pipes import MessagePipe, MessageType
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import Options, QueueShare
from django_jobs.worker.process import worker_process
from django_jobs.worker.process.worker_process import WorkerProcess
from tests.app import database_jobs, fault_jobs, jobs
from tests.app.models import Effect
from tests.patience import PATIENCE
from tests.worker.attempts import Desk
from tests.worker.execution.test_handler_call import HELD
from tests.worker.firing import each_second, until_fires_on
from tests.worker.processes import (
    BEATS_OFTEN,
    LONG_POLL,
    Start,
    end_other_sessions,
    let_go,
    other_sessions,
    until,
    until_marked,
    until_status,
)
from tests.worker.test_cancel import HOARDS

pytestmark = pytest.mark.processes


def test_a_job_that_cannot_be_forked_is_retried_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The supervisor answers that it could not fork; once that is settled the job is ready."""
    monkeypatch.setattr(worker_process, "FORK_PAUSE", 0.2)
    ours, theirs = (MessagePipe(end) for end in Pipe())
    options = Options(queues=(QueueShare(name="default"),))
    worker = WorkerProcess(ours, Scoreboard(1).slots[0], options)
    attempt = Desk().begin(HELD)
    index = attempt.entry.index
    with ThreadPoolExecutor(1) as thread:
        began = time.monotonic()
        isolating = thread.submit(worker._isolate, attempt)
        asked = theirs.receive(PATIENCE)
        assert asked is not None
        assert (asked["type"], asked["index"]) == (MessageType.ISOLATE, index)
        answer = {
            "end": "never_began",
            "reason": "no process ids",
            "seconds": 0.0,
            "usage": (0.0, 0),
        }
        worker._obey({"type": MessageType.ISOLATED, "index": index, **answer})
        assert isolating.result(PATIENCE) == Released(reason="no process ids", began=False)
        assert time.monotonic() - began >= 0.2
    for end in (ours, theirs):
        end.close()


def test_burst_runs_all_ready_and_due_jobs_and_exits_zero(start_worker: Start) -> None:
    ids = enqueue_many("app.add", [{"first": number} for number in range(300)])
    later = jobs.noop.using(delay=3600).enqueue()
    worker = start_worker("--burst", "--processes", "2")
    assert worker.wait() == 0
    done = Job.objects.filter(pk__in=ids, status="succeeded")
    assert {job.payload["first"] + 1 for job in done} == {job.result for job in done}
    assert done.count() == 300
    assert Run.objects.count() == 300
    assert Job.objects.get(pk=later.pk).status == "scheduled"


def test_a_burst_waits_until_the_jobs_of_its_dead_processes_are_settled(
    start_worker: Start, path: Path
) -> None:
    pill = jobs.kill_itself.enqueue(str(path))
    worker = start_worker("--burst")
    doomed = until_marked(path)
    (heart,) = (child for child in worker.children() if child.pid != doomed)
    heart.suspend()
    let_go(path)
    until(lambda: "event=process_died" in worker.text())
    with pytest.raises(AssertionError):  # what would be too soon comes within milliseconds
        until(lambda: worker.text().count("event=worker_started") > 1, 0.5)
    heart.resume()
    assert worker.wait() == 0
    assert Job.objects.get(pk=pill.pk).status == "dead"


def test_a_failure_is_retried_until_its_attempts_are_used_up(start_worker: Start) -> None:
    job = jobs.fail.enqueue()
    start_worker()
    dead = until_status(job, "dead")
    runs = list(Run.objects.filter(job=job).order_by("attempt"))
    assert [run.outcome for run in runs] == ["failed"] * 3
    assert (dead.failures, dead.attempt) == (3, 3)
    assert dead.reason == "failed 3 of 3 times"
    assert dead.last_error == "ValueError: as asked"
    assert runs[0].fingerprint == runs[2].fingerprint != ""
    assert "as asked" in runs[0].traceback
    for run in runs:
        assert run.started_at is not None
        assert run.available_at <= run.claimed_at <= run.started_at <= run.finished_at


def test_a_job_past_its_max_age_at_its_turn_is_dead_and_never_starts(
    start_worker: Start, tmp_path: Path
) -> None:
    """Whether it was over before its claim, or while it waited behind another job."""
    path = tmp_path / "slow"
    over = jobs.write_effect.enqueue("over")
    Job.objects.filter(pk=over.pk).update(expires_at=over.created_at)
    start_worker("--threads", "1", before=HOARDS)
    assert "max_age was over" in until_status(over, "dead").reason
    until_status(jobs.noop.enqueue(), "succeeded")  # now it knows that jobs are quick
    with transaction.atomic():
        slow = jobs.hold.enqueue(str(path), note="slow")
        waits = jobs.write_effect.enqueue("waits")
        # It is to be claimed before that, also where the machine stands still for seconds.
        Job.objects.filter(pk=waits.pk).update(expires_at=Now() + timedelta(seconds=8))
    until_marked(path)
    until_status(waits, "running")
    until(lambda: Job.objects.filter(pk=waits.pk, expires_at__lt=Now()).exists())
    let_go(path)
    assert "max_age was over" in until_status(waits, "dead").reason
    until_status(slow, "succeeded")
    for job in over, waits:
        run = Run.objects.get(job=job)
        assert (run.outcome, run.error_type) == ("failed", "Expired")
    assert set(Effect.objects.values_list("note", flat=True)) == {"slow"}


def test_a_process_that_saw_quick_jobs_does_not_hoard_slow_ones(
    start_worker: Start, tmp_path: Path
) -> None:
    """None of them keeps its thread for the half second that work may wait: the last of what one
    claim took would have waited for twenty."""
    start_worker("--threads", "1")
    until_status(jobs.noop.enqueue(), "succeeded")  # now it knows that jobs are quick
    enqueue_many("app.sleep_deaf", [{"path": str(tmp_path / "job"), "seconds": 0.2}] * 100)
    slow = Job.objects.filter(job_type="app.sleep_deaf")
    until(lambda: slow.filter(status="succeeded").exists())  # all were claimed with it
    until(lambda: slow.filter(status="ready").count() > 50)


def test_no_exception_ends_a_thread(start_worker: Start) -> None:
    kinds = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
    raising = [(kind, jobs.fail.using(max_attempts=1).enqueue(kind)) for kind in kinds]
    raising += [("MemoryError", fault_jobs.use_up_the_memory.enqueue())]
    for abandon in (fault_jobs.abandon, fault_jobs.abandon_async):
        raising += [("tests.app.fault_jobs.Abandoned", abandon.enqueue())]
    after = jobs.noop.enqueue()
    start_worker("--threads", "1")
    for kind, job in raising:
        until_status(job, "dead")
        run = Run.objects.get(job=job)
        assert (run.outcome, run.error_type) == ("failed", kind)
    until_status(after, "succeeded")
    assert Worker.objects.count() == 1


def test_a_handler_chooses_its_fate(start_worker: Start) -> None:
    retried = jobs.ask_for.enqueue("retry")
    moved = jobs.ask_for.enqueue("elsewhere")
    snoozed = jobs.ask_for.enqueue("snooze")
    discarded = jobs.ask_for.enqueue("discard")
    cancelled = jobs.ask_for.enqueue("cancel")
    start_worker()
    assert until_status(retried, "succeeded").failures == 1
    there = until_status(moved, "succeeded")
    assert (there.queue, there.priority, there.failures) == ("bulk", 7, 1)
    assert until_status(snoozed, "succeeded").failures == 0
    assert "hopeless" in until_status(discarded, "dead").reason
    assert until_status(cancelled, "cancelled").reason == "not needed any more"


def test_async_handlers_run_and_time_out(start_worker: Start) -> None:
    sums = [jobs.add_async.enqueue(number, 1) for number in range(20)]
    start_worker()
    assert [until_status(job, "succeeded").result for job in sums] == list(range(1, 21))
    assert Effect.objects.filter(note="async").count() == 20
    for _ in range(4):  # a loop that was held up for two seconds cannot stop it in time
        before = Worker.objects.count()
        slow = jobs.too_slow_async.enqueue()
        until_status(slow, "dead")
        assert Run.objects.get(job=slow).outcome == "timed_out"
        until(lambda: Worker.objects.filter(status="running").exists())
        if Worker.objects.count() == before:
            return
    raise AssertionError("each time the process was killed for it")


def test_an_isolated_job_runs_in_its_own_process(start_worker: Start) -> None:
    first, second = jobs.alone.enqueue(), jobs.alone.enqueue()
    start_worker()
    pids = {until_status(job, "succeeded").result for job in (first, second)}
    assert len(pids) == 2
    assert not pids & set(Worker.objects.values_list("pid", flat=True))


def test_a_connection_is_clean_after_each_job(start_worker: Start) -> None:
    worker = start_worker("--threads", "1")
    for how in ("setting", "transaction", "atomic"):
        spoiler = jobs.spoil_connection.enqueue(how)
        checks = [jobs.tell_connection.enqueue() for _ in range(3)]
        until_status(spoiler, "succeeded")
        found = [until_status(job, "succeeded").result for job in checks]
        assert found == [["0", "True", "False"]] * 3, how
        told = f"event=transaction_left_open job_id={spoiler.pk} " in worker.text()
        assert told is (how != "setting"), how
    assert Effect.objects.count() == 0


def test_a_project_without_autocommit_has_its_jobs_run_once_and_settled(
    start_worker: Start,
) -> None:
    """Before, nothing that its worker claimed or settled was committed."""
    plain, once = jobs.write_effect.enqueue(note="plain"), database_jobs.write_once.enqueue()
    start_worker("--threads", "1", TEST_DATABASE_AUTOCOMMIT="0")
    for job in (plain, once):
        assert until_status(job, "succeeded").attempt == 1
    assert sorted(effect.note for effect in Effect.objects.all()) == ["once", "plain"]


def test_a_limited_queue_never_runs_more_than_its_limit(
    start_worker: Start, tmp_path: Path
) -> None:
    paths = [tmp_path / f"job-{number}" for number in range(6)]
    held = [jobs.hold.using(queue="emails").enqueue(str(path)) for path in paths]
    start_worker("--processes", "2", "--poll-seconds", "0.1")
    running = Job.objects.filter(queue="emails", status="running")
    until(lambda: sum(path.exists() for path in paths) == 2)
    assert running.count() == 2
    for path in paths:
        let_go(path)
    while Job.objects.filter(pk__in=[job.pk for job in held]).exclude(status="succeeded").exists():
        assert running.count() <= 2
    assert Effect.objects.count() == 6


def test_a_payload_that_cannot_be_read_fails_alone(start_worker: Start) -> None:
    broken, unfitting, fine = (jobs.add.enqueue(1) for _ in range(3))
    with connection.cursor() as cursor:
        digits = "9" * 5001
        cursor.execute(
            "UPDATE django_jobs_job SET payload = %s::jsonb WHERE id = %s",
            [f'{{"first": {digits}}}', broken.pk],
        )
        cursor.execute(
            "UPDATE django_jobs_job SET payload = '{\"third\": 1}' WHERE id = %s", [unfitting.pk]
        )
    start_worker()
    for pk in (broken.pk, unfitting.pk):
        until(lambda pk=pk: Job.objects.filter(pk=pk, status="dead").exists())
        assert "payload" in Job.objects.defer("payload").get(pk=pk).reason
    until_status(fine, "succeeded")


def test_terminated_connections_are_survived(start_worker: Start, tmp_path: Path) -> None:
    """Neither handlers, nor heartbeats, nor schedules notice; a session that died while its thread
    was idle costs no attempt."""
    path, schedule = tmp_path / "job", each_second()
    start_worker("--threads", "2", "--poll-seconds", "0.2", TEST_DJANGO_JOBS=BEATS_OFTEN)
    held = jobs.hold.enqueue(str(path))
    until_marked(path)
    boot = Worker.objects.get()
    for _ in range(3):
        until_status(jobs.write_effect.enqueue("before"), "succeeded")
        end_other_sessions()  # it waits until they are gone: one that dies in a statement costs one
        beat = Worker.objects.get().heartbeat_at
        after = jobs.write_effect.using(max_attempts=1).enqueue("after")
        assert until_status(after, "succeeded").failures == 0
        until(Worker.objects.filter(heartbeat_at__gt=beat).exists)
        until_fires_on(schedule)
    let_go(path)
    until_status(held, "succeeded")
    assert Run.objects.filter(job=held).count() == 1
    assert Worker.objects.get() == boot


def test_an_unknown_queue_is_refused_with_the_known_ones(start_worker: Start) -> None:
    worker = start_worker("--queues", "defualt")
    assert worker.wait() == 1
    assert "no queue is named defualt" in worker.text()
    assert "default" in worker.text()


def test_sigterm_leaves_no_process_and_no_connection(start_worker: Start) -> None:
    worker = start_worker("--processes", "2")
    until(lambda: Worker.objects.filter(status="running").count() == 2)
    until_status(jobs.tell_connection.enqueue(), "succeeded")
    assert worker.drain() == 0
    until(lambda: other_sessions() == 0)


def test_lone_scheduled_jobs_start_on_time_again_and_again(start_worker: Start) -> None:
    """The poll is long, so that one that is missed would be minutes late."""
    start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    for _ in range(15):
        job = jobs.noop.using(delay=0.1).enqueue()
        until_status(job, "succeeded")
        run = Run.objects.get(job=job)
        assert run.claimed_at >= run.available_at


def test_a_job_with_a_throttled_hint_does_not_wait_for_the_poll(start_worker: Start) -> None:
    """A process sends one hint in 20 ms. The poll is long, so that a job that none tells of would
    be minutes late."""
    worker = start_worker(*LONG_POLL)
    until(lambda: Worker.objects.filter(status="running").exists())
    for delay in (0.0, 0.01, 0.02, 60.0) * 4:
        jobs.noop.using(delay=delay).enqueue()
        for _ in range(2):
            until_status(jobs.noop.using(delay=delay % 60).enqueue(), "succeeded")
    assert "listen_fails" not in worker.text()
