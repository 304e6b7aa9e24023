"""Handlers in real workers that sleep, wait for signals, and are killed between."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from django_jobs import registry
from django_jobs.domain.workflows import WAIT
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Job, Receipt, WorkflowRun
from tests.app.durable_jobs import (
    ask_alone,
    ask_for_approval,
    sleep_while_killed,
)
from tests.workflows import states, step, steps_of

from .processes import (
    BEATS_OFTEN,
    LONG_POLL,
    Start,
    let_go,
    outcomes,
    until,
    until_marked,
    until_status,
)

pytestmark = pytest.mark.processes


def test_a_worker_killed_after_a_sleep_does_not_repeat_it(start_worker: Start, path: Path) -> None:
    job = sleep_while_killed.enqueue(str(path))
    start_worker(TEST_DJANGO_JOBS=BEATS_OFTEN)
    pid = until_marked(path)
    until = Receipt.objects.get().answer["until"]
    os.kill(pid, signal.SIGKILL)
    until_marked(path, 2)
    assert Receipt.objects.get().answer["until"] == until
    let_go(path)
    done = until_status(job, "succeeded")
    ended = outcomes(job)
    # On a busy machine a sleep of 10 ms is over before its attempt could end as snoozed.
    assert [one for one in ended if one != "snoozed"] == ["lost", "succeeded"]
    assert (done.result, done.failures) == (len(ended), 0)


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_signal_wakes_the_handler_whenever_it_is_sent(
    start_worker: Start, path: Path, when: str
) -> None:
    job = ask_for_approval.enqueue(str(path))
    data = {"by": "ada", "ok": True}
    if when == "before":
        assert job.signal("approval", data)
    start_worker(*LONG_POLL)  # notified, not found by a poll
    until_marked(path)
    if when == "during":
        assert job.signal("approval", data)
    let_go(path)
    if when == "after":
        until_status(job, "waiting")
        assert Job.objects.get(pk=job.pk).awaits == "approval"
        assert job.signal("approval", data)
    done = until_status(job, "succeeded")
    assert done.result == data
    assert outcomes(job) == (["snoozed"] if when == "after" else []) + ["succeeded"]


def test_a_wait_step_that_times_out_opens_its_failure_branch(start_worker: Start) -> None:
    steps = steps_of({"approval": "", "b": "approval", "remind": "-approval", "end": "*b remind"})
    payload = {"name": "approval", "timeout": 0.3, "on_timeout": "fail"}
    wait = registry.get(WAIT)
    steps[0] = replace(steps[0], new=wait.request(), payload=wait.encoded_payload(payload))
    run = start(NewRun(name="approvals"), steps)
    start_worker()
    until(lambda: WorkflowRun.objects.get(pk=run.pk).finished_at)
    assert states(run) == {
        "approval": "dead",
        "b": "cancelled (failed)",
        "remind": "succeeded",
        "end": "succeeded",
    }
    run.refresh_from_db()
    assert (run.status, run.reason) == ("failed", "approval failed")
    approval = step(run, "approval")
    assert outcomes(approval) == ["snoozed", "failed"]
    assert "the signal 'approval' did not arrive in time" in approval.reason
    assert not run.signal("approval")


def test_an_isolated_handler_sleeps_and_waits_too(start_worker: Start, path: Path) -> None:
    job = ask_alone.enqueue(str(path))
    start_worker()
    until_status(job, "waiting")
    assert job.signal("approval", 7)
    assert until_status(job, "succeeded").result == 7
    *before, last = outcomes(job)
    # Its nap may be over before the attempt could end for it.
    assert (set(before), last) == ({"snoozed"}, "succeeded")
