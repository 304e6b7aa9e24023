"""What an operator does most, from the admin's first page, in few clicks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from django.conf import settings
from django.test import override_settings

from django_jobs import registry
from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle.claiming import claim
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import Job, Queue, Resource, Schedule, Worker, WorkflowRun
from tests.receivers import webhook

from .visitor import Visitor, index

Task = Callable[[Visitor, dict[str, int]], None]
TASKS: list[tuple[Task, int]] = []
"""What is done, and in how many clicks at most. All share a scene, so the order matters: first what
changes nothing."""
MOST = 6
"""Clicks of a task above which a console earns no B."""


def in_clicks(most: int) -> Callable[[Task], Task]:
    """A task that begins at the first page."""

    def add(task: Task) -> Task:
        TASKS.append((task, most))
        return task

    return add


def begin(visitor: Visitor, model: str) -> None:
    """The link of the first page."""
    visitor.click(visitor.page.locator(f"#content a[href$='/django_jobs/{model}/']").first)


def press(visitor: Visitor, name: str, *, exact: bool = False) -> None:
    visitor.click(visitor.page.get_by_role("button", name=name, exact=exact).first)


def follow(visitor: Visitor, name: str, *, exact: bool = False) -> None:
    visitor.click(visitor.page.locator("#main").get_by_role("link", name=name, exact=exact).last)


def confirm(visitor: Visitor) -> str:
    """Answer the question; returns what the next page says."""
    visitor.click(visitor.page.locator(".submit-row .default"))
    text: str = visitor.page.locator(".messagelist").inner_text()
    return text


def find(visitor: Visitor, words: str) -> None:
    begin(visitor, "job")
    visitor.page.locator("#searchbar").fill(words)
    press(visitor, "Search")


def open_dead(visitor: Visitor, error: str) -> Job:
    """The page of the newest dead job of the first page of the list with this error."""
    job = Job.objects.dead().filter(last_error__contains=error).latest("pk")
    begin(visitor, "deadletter")
    follow(visitor, str(job.pk), exact=True)
    return job


def shown(visitor: Visitor) -> str:
    text: str = visitor.page.locator("#content").inner_text()
    return text


@in_clicks(2)
def all_jobs_of_a_customer_are_found(visitor: Visitor, found: dict[str, int]) -> None:
    find(visitor, "customer_id:42")
    rows = visitor.page.locator("#result_list tbody tr")
    assert rows.count() == Job.objects.filter(payload__customer_id=42).count() > 1


@in_clicks(1)
def it_is_seen_when_a_queue_will_be_empty(visitor: Visitor, found: dict[str, int]) -> None:
    follow(visitor, "Overview")
    table = visitor.page.locator("table", has=visitor.page.get_by_text("Empty in"))
    place = table.get_by_role("columnheader").all_text_contents().index("Empty in")
    cells = {
        row.locator("th").inner_text(): row.locator("th, td").nth(place).inner_text()
        for row in table.locator("tbody tr").all()
    }
    assert re.fullmatch(r"\d+\s(s|min|h)( \d+\s(s|min))?|growing", cells["emails"])
    assert re.fullmatch(r"\d+\s(s|min|h)( \d+\s(s|min))?", cells["media"])


@in_clicks(3)
def job_types_are_sorted_by_their_p95(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "run")
    follow(visitor, "Cost by job type")
    follow(visitor, "p95")
    types = visitor.page.locator("#content tbody th").all_inner_texts()
    assert types[0] == "media.transcode"
    assert types.index("mail.send_digest") < types.index("crm.push_contact")  # whose sum is larger


@in_clicks(2)
def it_is_seen_why_the_jobs_of_a_tenant_wait(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "tenant")
    follow(visitor, "acme")
    assert "Waits for the resource stripe (10 of 10 taken)." in shown(visitor)


@in_clicks(3)
def failures_that_a_version_brought_are_listed(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "worker")
    follow(visitor, "Deploys")
    follow(visitor, "4 new kinds")
    assert visitor.page.locator(".jobs-failures tbody tr").count() == 4


@in_clicks(4)
def the_dead_jobs_of_a_queue_are_exported(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "deadletter")
    visitor.choose(visitor.page.get_by_label("Queue"), "payments")
    press(visitor, "Search")
    visitor.clicks += 1
    with visitor.page.expect_download() as download:  # no page follows
        visitor.page.get_by_role("button", name="Export CSV").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert len(lines) == 1 + Job.objects.dead().filter(queue="payments").count()


@in_clicks(3)
def a_test_of_an_alert_is_sent(visitor: Visitor, found: dict[str, int]) -> None:
    with webhook() as receiver:
        alert = {"to": f"http://127.0.0.1:{receiver.port}/secret"}
        with override_settings(DJANGO_JOBS={**settings.DJANGO_JOBS, "ALERTS": {"ops": alert}}):
            begin(visitor, "worker")
            follow(visitor, "Doctor")
            press(visitor, "Send a test of ops")
            told = visitor.page.locator(".messagelist .success").inner_text()
    assert told == "A test of “ops” was sent."
    assert receiver.received == [{"rule": "ops", "test": True, "situations": []}]


@in_clicks(4)
def an_error_is_read_and_its_job_replayed(visitor: Visitor, found: dict[str, int]) -> None:
    job = open_dead(visitor, "CardError")
    text = shown(visitor)
    assert "stripe.CardError: Your card was declined." in text
    assert 'File "/srv/shop/crm/client.py", line 88, in put' in text
    press(visitor, "Replay")
    assert "1 job" in confirm(visitor)
    assert not Job.objects.dead().filter(pk=job.pk).exists()


@in_clicks(4)
def a_dead_job_is_dismissed(visitor: Visitor, found: dict[str, int]) -> None:
    job = open_dead(visitor, "CardError")
    press(visitor, "Dismiss")
    confirm(visitor)
    assert Job.objects.get(pk=job.pk).status == "cancelled"


@in_clicks(5)
def the_arguments_of_a_dead_job_are_mended(visitor: Visitor, found: dict[str, int]) -> None:
    job = open_dead(visitor, "CardError")
    follow(visitor, "Edit and replay")
    visitor.page.locator("#id_argument_cents").fill("4300")
    press(visitor, "Show the changes")
    visitor.page.locator("#id_reason").fill("a new price")
    confirm(visitor)
    job.refresh_from_db()
    assert (job.payload["cents"], job.status) == (4300, "blocked")


@in_clicks(4)
def all_dead_jobs_of_one_kind_of_failure_are_replayed(
    visitor: Visitor, found: dict[str, int]
) -> None:
    failed = Job.objects.dead().filter(last_error__startswith="TimeoutError")
    ids = list(failed.values_list("pk", flat=True))
    assert len(ids) == 18
    others = Job.objects.dead().exclude(pk__in=ids).count()
    begin(visitor, "deadletter")
    follow(visitor, "Failures")
    row = visitor.page.get_by_role("row", name="TimeoutError")
    visitor.click(row.get_by_role("button", name="Replay"))
    press(visitor, "Replay 18 jobs")
    visitor.page.locator(".messagelist").wait_for()
    assert not Job.objects.dead().filter(pk__in=ids).exists()
    assert Job.objects.dead().count() == others > 0


@in_clicks(5)
def a_job_is_found_by_its_id_and_put_first(visitor: Visitor, found: dict[str, int]) -> None:
    find(visitor, str(found["limited"]))
    follow(visitor, str(found["limited"]), exact=True)
    press(visitor, "Change priority")
    visitor.page.locator("#id_priority").fill("50")
    confirm(visitor)
    assert Job.objects.get(pk=found["limited"]).priority == 50


@in_clicks(5)
def a_scheduled_job_runs_now(visitor: Visitor, found: dict[str, int]) -> None:
    find(visitor, "key:contact-42")
    follow(visitor, str(found["scheduled"]), exact=True)
    press(visitor, "Run now")
    confirm(visitor)
    assert Job.objects.get(pk=found["scheduled"]).status == "ready"


@in_clicks(5)
def another_job_like_it_is_enqueued(visitor: Visitor, found: dict[str, int]) -> None:
    job = Job.objects.filter(job_type="mail.send_digest").latest("pk")
    find(visitor, "type:mail.send_digest")
    follow(visitor, str(job.pk), exact=True)
    follow(visitor, "Enqueue another like it")
    confirm(visitor)
    new = Job.objects.filter(job_type=job.job_type).latest("pk")
    assert new.pk > job.pk
    assert new.payload == job.payload


@in_clicks(4)
def a_running_job_is_stopped(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "job")
    follow(visitor, "Running now")
    press(visitor, f"Cancel media.transcode #{found['running']}")
    confirm(visitor)
    assert Job.objects.get(pk=found["running"]).cancel_requested_at is not None


@in_clicks(6)
def all_jobs_that_match_are_cancelled(visitor: Visitor, found: dict[str, int]) -> None:
    matching = Job.objects.filter(queue="emails", status="scheduled")
    assert matching.count() == 60
    begin(visitor, "job")
    visitor.choose(visitor.page.get_by_label("Status"), "scheduled")
    visitor.choose(visitor.page.get_by_label("Queue"), "emails")
    press(visitor, "Search")
    press(visitor, "Cancel all 60")
    confirm(visitor)
    assert not matching.exists()


def decide(visitor: Visitor, word: str, reason: str) -> dict[str, object]:
    """Answer the newest run that waits for a person; returns what its step learned."""
    step = Job.objects.filter(awaits="approval", signals__isnull=True).latest("pk")
    begin(visitor, "workflowrun")
    follow(visitor, f"#{step.workflow_run_id}", exact=True)
    press(visitor, word)
    visitor.page.locator("#id_reason").fill(reason)
    confirm(visitor)
    step.refresh_from_db()
    assert step.signals is not None
    (data,) = step.signals.values()
    return dict(data)


@in_clicks(4)
def a_step_is_approved(visitor: Visitor, found: dict[str, int]) -> None:
    _ask_for_approval()
    assert decide(visitor, "Approve", "") == {"approved": True, "by": "ada", "reason": ""}


@in_clicks(4)
def a_step_is_rejected_with_a_reason(visitor: Visitor, found: dict[str, int]) -> None:
    answer = {"approved": False, "by": "ada", "reason": "no stock"}
    assert decide(visitor, "Reject", "no stock") == answer


def _ask_for_approval() -> None:
    """All runs of the shop's workflow come to the step that waits for a person."""
    worker = Worker.objects.get(name="web-1").pk
    for outcome in (Succeeded(), Snoozed(seconds=3600, awaits="approval")):
        known = registry.versions()
        held = claim("critical", worker=worker, job_types=known, limit=9)
        assert len(held) == WorkflowRun.objects.count() > 1
        settle([Ending(one, outcome) for one in held])


@in_clicks(3)
def a_queue_is_paused(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "queue")
    press(visitor, "Pause emails")
    confirm(visitor)
    assert Queue.objects.get(name="emails").paused


@in_clicks(6)
def a_schedule_is_paused_with_a_reason_and_resumed(visitor: Visitor, found: dict[str, int]) -> None:
    paused = Schedule.objects.filter(name="reindex", paused_at__isnull=False)
    begin(visitor, "schedule")
    follow(visitor, "reindex")
    press(visitor, "Pause", exact=True)
    visitor.page.locator("#id_reason").fill("the index moves")
    confirm(visitor)
    assert paused.get().paused_reason == "the index moves"
    press(visitor, "Resume", exact=True)
    confirm(visitor)
    assert not paused.exists()


@in_clicks(4)
def a_schedule_runs_now_with_another_payload(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "schedule")
    follow(visitor, "digest on weekdays")
    follow(visitor, "Run now with")
    visitor.page.locator("#id_argument_customer_id").fill("77")
    confirm(visitor)
    (job,) = Job.objects.filter(schedule__name="digest on weekdays")
    assert job.payload == {"customer_id": 77}


@in_clicks(4)
def a_worker_is_drained(visitor: Visitor, found: dict[str, int]) -> None:
    begin(visitor, "worker")
    follow(visitor, "web-2")
    press(visitor, "Drain the process")
    confirm(visitor)
    assert Worker.objects.get(name="web-2").drain_requested_at is not None


@in_clicks(4)
def a_resource_is_limited_and_its_history_says_by_whom(
    visitor: Visitor, found: dict[str, int]
) -> None:
    begin(visitor, "resource")
    follow(visitor, "stripe")
    visitor.page.locator("#id_max_concurrency").fill("4")
    press(visitor, "Save and continue editing")
    follow(visitor, "History")
    assert Resource.objects.get(name="stripe").max_concurrency == 4
    assert re.search("ada.*Changed Maximum concurrency", shown(visitor), re.DOTALL)


@in_clicks(2)
def it_is_seen_why_a_job_does_not_run(visitor: Visitor, found: dict[str, int]) -> None:
    Job.objects.filter(pk__gt=found["limited"]).exclude(status="running").delete()
    begin(visitor, "job")
    follow(visitor, str(found["limited"]), exact=True)
    why = visitor.page.locator("section", has_text="Why is it not running?").inner_text()
    assert "3 of 3" in why


def test_an_operator_does_each_task_in_few_clicks(visitor: Visitor, found: dict[str, int]) -> None:
    beyond = {}
    for task, most in TASKS:
        visitor.visit(index())
        visitor.clicks, began = 0, perf_counter()
        task(visitor, found)
        took, name = perf_counter() - began, task.__name__.replace("_", " ")
        print(f"{name}: {visitor.clicks} clicks, {took:.1f} s")
        if visitor.clicks > most:
            beyond[name] = visitor.clicks
    assert beyond == {}
    assert max(most for _, most in TASKS) <= MOST
