"""What a running job is doing: asked through the database, answered by real processes."""

from __future__ import annotations

import json
import signal
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_jobs.lifecycle.operations import inspections
from django_jobs.models import Inspection, Job, Worker
from tests.app import stack_jobs
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, run_sql
from tests.moments import moment

from .processes import (
    BEATS_OFTEN,
    REAPS_NEVER,
    Start,
    in_case,
    let_go,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


def inspect(job: Job | int, *options: str) -> str:
    out = StringIO()
    call_command("jobinspect", str(getattr(job, "pk", job)), *options, stdout=out)
    return out.getvalue()


def stack_of(job: Job) -> str:
    found = json.loads(inspect(job, "--json"))
    return str(found["stack"])


def test_the_stack_of_a_thread_shows_where_the_handler_is_and_no_values(
    start_worker: Start, path: Path
) -> None:
    job = stack_jobs.stand_still.enqueue(str(path))
    start_worker()
    pid = until_marked(path)
    text = inspect(job)
    assert f"job       {job.pk} app.stand_still on default" in text
    assert f"process   {pid}, django_jobs-" in text
    assert "in stand_still" in text.splitlines()[text.splitlines().index("") + 1]
    assert "in wait_in_vain" in text
    assert "time.sleep(0.01)" in text or ".go" in text
    assert stack_jobs.SECRET not in text
    assert str(path) not in text
    found = json.loads(inspect(job, "--json"))
    assert (found["attempt"], found["process"]) == (1, pid)
    assert found["ran_seconds"] <= found["claimed_seconds"]
    until(lambda: json.loads(inspect(job, "--json"))["note"] == "a quarter")
    assert "progress  25% a quarter" in inspect(job)
    let_go(path)
    until_status(job, "succeeded")


def test_the_stacks_of_the_tasks_of_an_async_handler_are_followed_to_what_they_await(
    start_worker: Start, tmp_path: Path
) -> None:
    path, other = tmp_path / "job", tmp_path / "other"
    job = stack_jobs.stand_on_loop.enqueue(str(path))
    stack_jobs.stand_on_loop.enqueue(str(other))
    start_worker()
    until_marked(path)
    until_marked(other)
    # Asked again, for a task may be in a step just then.
    until(lambda: stack_of(job).count("in await_in_vain") >= 2)
    stack = stack_of(job)
    assert "in stand_on_loop" in stack
    assert stack.count("task ") == 3, "of this handler only"
    for one in (path, other):
        let_go(one)
    until_status(job, "succeeded")


def test_an_isolated_handler_is_asked_in_its_own_process(
    start_worker: Start, tmp_path: Path
) -> None:
    asked = {
        "wait_in_vain": stack_jobs.stand_alone,
        "await_in_vain": stack_jobs.stand_alone_on_loop,
    }
    start_worker()
    for function, handler in asked.items():
        with in_case(handler.name):
            path = tmp_path / function
            job = handler.enqueue(str(path))
            pid = until_marked(path)
            for _ in range(2):
                found = json.loads(inspect(job, "--json"))
                assert found["process"] == pid
                assert f"in {function}" in found["stack"]
            let_go(path)
            until_status(job, "succeeded")


def test_a_question_is_found_by_the_heartbeat_without_a_notification(
    start_worker: Start, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stack_jobs.stand_still.enqueue(str(path))
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    until_marked(path)
    monkeypatch.setattr(inspections, "notify_after_commit", lambda hint: None)
    assert "in wait_in_vain" in stack_of(job)
    let_go(path)


def test_without_an_answer_the_command_says_why(start_worker: Start, path: Path) -> None:
    job = stack_jobs.stand_still.enqueue(str(path))
    worker = start_worker(TEST_DJANGO_JOBS=REAPS_NEVER)
    pid = until_marked(path)
    worker.signal_all(signal.SIGSTOP)
    with pytest.raises(CommandError, match=r"no answer within 0\.1 s: its worker renews its lease"):
        inspect(job, "--timeout", "0.1")
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'")
    with pytest.raises(CommandError, match="the lease of its worker has run out"):
        inspect(job, "--timeout", "0.1")
    run_sql("UPDATE django_jobs_worker SET status = 'lost'")
    with pytest.raises(CommandError, match="its worker has ended"):
        inspect(job, "--timeout", "0.1")
    assert Worker.objects.get().pid == pid
    worker.signal_all(signal.SIGKILL)


@pytest.mark.django_db(transaction=True)
def test_what_is_not_running_is_refused_with_its_status() -> None:
    job = noop.enqueue()
    with pytest.raises(CommandError, match=f"job {job.pk} is not running: it is ready"):
        inspect(job)
    with pytest.raises(CommandError, match="there is no job 4711"):
        inspect(4711)
    with pytest.raises(CommandError, match="--timeout takes 0 to 600 seconds"):
        inspect(job, "--timeout", "nan")
    assert not Inspection.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_without_a_stack_only_the_tables_are_read() -> None:
    held = enqueue_and_claim(noop)
    assert "worker    " in inspect(held.id, "--no-stack")
    assert not Inspection.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_questions_are_deleted_an_hour_later_with_the_next_one() -> None:
    held = enqueue_and_claim(noop)
    inspections.ask([held.id])
    run_sql("UPDATE django_jobs_inspection SET asked_at = now() - interval '61 minutes'")
    inspections.ask([held.id])
    assert Inspection.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_time_since_the_claim_is_by_the_clock_of_the_database(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = enqueue_and_claim()
    wrong = timezone.now() - timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    with moment() as now:
        shown = json.loads(inspect(held.id, "--no-stack", "--json"))
    assert shown["claimed_seconds"] in now.since(Job.objects.get(pk=held.id).claimed_at)
