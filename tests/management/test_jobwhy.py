"""``manage.py jobwhy``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue
from tests.app.jobs import add, noop
from tests.commands import printed
from tests.factories import enqueue_and_claim, make_dead, register_worker, run_sql

pytestmark = pytest.mark.django_db


def jobwhy(job: int, *options: str) -> str:
    return printed("jobwhy", str(job), *options)


def test_each_gate_has_a_line_with_its_state() -> None:
    job = add.enqueue(1)
    register_worker(threads=2)
    lines = jobwhy(job.pk).splitlines()
    assert lines[0] == (
        f"app.add #{job.pk} on default is ready. "
        "Nothing holds it: a worker starts it in the next moment."
    )
    assert [line.split()[:2] for line in lines[2:]] == [
        ["ok", title]
        for title in ("Due", "Quarantine", "Queue", "Limit", "Workers", "Threads", "Line")
    ]
    job_operations.pause(["default"], reason="the feed is broken")
    lines = jobwhy(job.pk).splitlines()
    assert [line.split()[0] for line in lines[2:]] == [*["ok"] * 2, "HOLDS", *["ok"] * 4]
    assert lines[4].startswith("HOLDS  Queue       queue default is paused since ")
    assert lines[4].endswith("): the feed is broken")


def test_the_json_names_what_holds_the_job() -> None:
    Queue.objects.filter(name="default").update(max_concurrency=1)
    Queue.objects.forget_recent()
    held = enqueue_and_claim(
        add, 1, queue="bulk", worker=register_worker(queues=["default", "bulk"])
    )
    run_sql("UPDATE django_jobs_job SET queue = 'default'")
    shown = json.loads(jobwhy(noop.enqueue().pk, "--json"))
    gates: dict[str, Any] = {gate["gate"]: gate for gate in shown["gates"]}
    assert (shown["status"], shown["before"], shown["more_before"]) == ("ready", 0, False)
    assert shown["expected_start_seconds"] is None
    assert gates["limit"]["state"] == "holds"
    assert gates["limit"]["refs"] == [{"kind": "job", "id": held.id, "label": f"#{held.id}"}]
    assert gates["queue"]["state"] == "passed"


def test_running_and_ended_jobs_get_a_sentence() -> None:
    held = enqueue_and_claim(worker=register_worker("carol"))
    assert "is running. Runs for " in jobwhy(held.id)
    assert f"on carol #{held.worker}, attempt 1." in jobwhy(held.id)
    job = make_dead()
    text = jobwhy(job.pk)
    assert text.startswith(f"app.noop #{job.pk} on default is dead. Dead ")
    assert "ago, attempt 1" in text
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("id_", ["0", "-1", "99999999", str(2**63), str(10**30)])
def test_an_unknown_id_is_an_error(id_: str) -> None:
    with pytest.raises(CommandError, match=f"there is no job {id_}"):
        call_command("jobwhy", id_) if id_ != "-1" else call_command("jobwhy", "--", id_)


def test_a_name_cannot_control_the_terminal() -> None:
    job = noop.enqueue()
    Job.objects.update(job_type="evil\x1b[2J\nok     Queue")
    register_worker("red\x1b[31m")
    text = jobwhy(job.pk)
    assert "\x1b" not in text
    assert len([line for line in text.splitlines() if line.startswith("ok     Queue ")]) == 1
