"""The problems that the overview names: the sentence, and what it links to."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import dead_letters, quarantines, workflows
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Quarantine, Queue, Resource, Schedule, Worker, WorkflowRun
from tests.admin.walking import Page, change_url, list_url
from tests.app.gate_jobs import bill_tenant, refund_payment
from tests.app.jobs import add, add_async, noop
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    failure,
    fold_runs,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import DEAD, finish
from tests.workflows import saga, start_graph, step

from .looking import links_of_problems, overview, problems, url, words

pytestmark = pytest.mark.django_db


LONG = "interval '53 h 30 min'"
"""An age that is shown as 2 d 5 h, also if the machine stands still for minutes."""


def found(page: Page) -> dict[str, str]:
    """The problems, each with what it links to."""
    text = overview(page)
    return dict(zip(problems(text), links_of_problems(text), strict=True))


@pytest.fixture
def _served() -> None:
    """A worker that serves all queues and knows all job types."""
    register_worker("web-1", queues=tuple(Queue.objects.values_list("name", flat=True)))


def test_no_worker_is_alive(page: Page) -> None:
    noop.enqueue()
    assert found(page) == {"No worker is alive. 1 job waits.": list_url(Worker)}


@pytest.mark.usefixtures("_served")
def test_the_lease_of_a_worker_has_expired(page: Page) -> None:
    gone = register_worker("web-0", lease=-5)
    run_sql(f"UPDATE django_jobs_worker SET heartbeat_at = now() - {LONG} WHERE id = {gone}")
    sentence = "web-0 has sent no heartbeat for 2 d 5 h. Its jobs start again on other workers."
    assert found(page) == {sentence: change_url(Worker, gone)}


def test_the_jobs_of_an_expired_worker_start_elsewhere_only_if_another_is_alive(
    page: Page,
) -> None:
    register_worker("web-0", lease=-5)
    none_alive, expired = found(page)
    assert none_alive == "No worker is alive. 0 jobs wait."
    assert expired.startswith("web-0 has sent no heartbeat for ")
    assert "elsewhere" not in expired


def test_a_type_that_no_worker_knows_and_a_version_that_none_reads(page: Page) -> None:
    def add_more(a: int) -> None:
        """A handler whose payload has a new version."""

    register_worker(job_types={"app.add": 1, "app.add_more": 1})
    noop.enqueue_many([{}] * 3)
    with declared(add_more, name="app.add_more", version=2) as newer:
        newer.enqueue(a=1)
        seen = found(page)
    jobs = f"{list_url(Job)}?status=ready&job_type="
    assert seen == {
        "app.noop : no live worker of its queue knows this type. 3 jobs wait.": f"{jobs}app.noop",
        "app.add_more : its payload is of a newer version than any live worker of its queue reads. "
        "1 job waits.": f"{jobs}app.add_more",
    }


def test_a_queue_that_no_worker_serves(page: Page) -> None:
    register_worker(queues=("default",))
    add.using(queue="bulk").enqueue_many([{"first": 1}] * 2)
    assert found(page) == {
        "bulk : no running worker serves this queue. 2 jobs wait.": list_url(Worker)
    }


@pytest.mark.usefixtures("_served")
def test_a_paused_queue_is_a_problem_if_jobs_wait(page: Page) -> None:
    job_operations.pause(["default", "bulk"], reason="partner is down.")
    noop.enqueue()
    run_sql(f"UPDATE django_jobs_queue SET paused_at = now() - {LONG}")
    queue = Queue.objects.get(name="default")
    sentence = "default has been paused for 2 d 5 h: partner is down. 1 job waits."
    assert found(page) == {sentence: change_url(Queue, queue.pk)}


@pytest.mark.usefixtures("_served")
def test_a_full_queue_names_the_jobs_that_have_run_longest(page: Page) -> None:
    noop.enqueue_many([{}] * 5)
    first, second = claim_ready(Worker.objects.get().pk, limit=2)
    Queue.objects.filter(name="default").update(max_concurrency=2)
    run_sql(f"UPDATE django_jobs_job SET claimed_at = now() - {LONG} WHERE id = {second.id}")
    text = overview(page)
    (sentence,) = problems(text)
    assert sentence.startswith(
        "default : all 2 slots are taken, and 3 jobs wait. "
        f"Longest: app.noop #{second.id} for 2 d 5 h, app.noop #{first.id} for "
    )
    assert change_url(Job, second.id) in text


def wait(seconds: int) -> None:
    """Let the ready jobs have waited for that long."""
    run_sql("UPDATE django_jobs_job SET available_at = now() - make_interval(secs => %s)"
            " WHERE status = 'ready'", [seconds])  # fmt: skip


def test_busy_threads_are_a_problem_once_a_job_has_waited_for_a_minute(page: Page) -> None:
    worker = register_worker("web-1", threads=3)
    noop.enqueue_many([{}] * 6)
    add.enqueue(1, 2)
    first, *_ = claim_ready(worker, limit=2, job_types={"app.noop": 1})
    (held,) = claim_ready(worker, job_types={"app.add": 1})
    run_sql(f"UPDATE django_jobs_job SET claimed_at = now() - {LONG} WHERE id IN (%s, %s)",
            [first.id, held.id])  # fmt: skip
    assert found(page) == {}
    wait(31 * 3_600)
    text = overview(page)
    (sentence,) = problems(text)
    assert sentence == (
        f"default : all 3 threads are busy with 2 app.noop ( #{first.id} for 2 d 5 h), "
        f"1 app.add ( #{held.id} for 2 d 5 h); 4 jobs wait, the first for 1 d 7 h."
    )
    assert links_of_problems(text) == [change_url(Queue, Queue.objects.get(name="default").pk)]
    settle_one(held, Succeeded())
    assert found(page) == {}  # a thread is free


def test_an_objective_says_for_how_long_jobs_may_wait_for_a_thread(page: Page) -> None:
    worker = register_worker("web-1")
    Queue.objects.filter(name="default").update(slo_seconds=300, slo_target=0.9)
    noop.enqueue_many([{}] * 2)
    claim_ready(worker, limit=1)
    wait(185)
    assert found(page) == {}
    Queue.objects.filter(name="default").update(slo_seconds=150)
    (sentence,) = (one for one in found(page) if "thread" in one)
    assert sentence.startswith("default : its only thread is busy with 1 app.noop ( #")
    assert re.search(r"; 1 job waits, the first for 3 min \d+ s\.$", sentence)
    Queue.objects.update(slo_since="ready")
    run_sql("UPDATE django_jobs_job SET ready_at = now() WHERE status = 'ready'")
    assert not any("thread" in one for one in found(page))


def test_a_queue_is_late_only_if_all_pools_that_serve_it_are_busy(page: Page) -> None:
    pools = ((("default",), 1), (("default", "bulk"), 1), (("bulk",), 5))
    worker = register_worker("web-1", threads=7, queues=("default", "bulk"), pools=pools)
    noop.enqueue_many([{}] * 3)
    add.using(queue="bulk").enqueue_many([{"first": 1}] * 2)
    claim_ready(worker, limit=2)
    claim_ready(worker, "bulk", limit=1)
    wait(60)
    ((sentence, _),) = found(page).items()
    assert sentence.startswith("default : all 2 threads are busy with 2 app.noop ( #")
    assert "1 app.add ( #" in sentence


def test_busy_async_slots_hold_async_jobs_alone(page: Page) -> None:
    worker = register_worker("web-1", async_slots=2)
    add_async.enqueue_many([{"first": 1, "second": 2}] * 3)
    claim_ready(worker, limit=2)
    noop.enqueue()
    claim_ready(worker, job_types={"app.noop": 1})
    wait(60)
    (sentence,) = found(page)
    assert sentence.startswith("default : all 2 async slots are busy with 2 app.add_async ( #")
    noop.enqueue()
    run_sql("DELETE FROM django_jobs_job WHERE status = 'ready' AND job_type = 'app.add_async'")
    wait(60)
    (sentence,) = found(page)
    assert sentence.startswith("default : its only thread is busy with 1 app.noop ( #")


@pytest.mark.usefixtures("_served")
def test_a_backlog_at_its_limit_with_what_waits_at_gates(page: Page) -> None:
    """And not with jobs that a quarantine blocks, which no enqueue counts."""
    noop.enqueue()
    bill_tenant.enqueue_many([{"tenant_id": "acme"}] * 2)
    Queue.objects.filter(name="default").update(max_backlog=3)
    (sentence,) = found(page)
    assert sentence.startswith("default is full: 3 jobs wait, and the limit is 3.")
    run_sql("UPDATE django_jobs_job SET gates = NULL, reason = 'quarantined' WHERE tenant = 'acme'")
    assert found(page) == {}


@pytest.mark.usefixtures("_served")
def test_an_objective_whose_budget_burns(page: Page) -> None:
    Queue.objects.filter(name="default").update(slo_seconds=60, slo_target=0.9)
    noop.enqueue_many([{}] * 4)
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '1 h' WHERE id % 2 = 0")
    for job in claim_ready(Worker.objects.get().pk, limit=4):
        settle_one(job, Succeeded(), started=time.monotonic())
    fold_runs()
    (sentence,) = found(page)
    assert sentence == (
        "default : 50.0% of the last hour's jobs started within 1 min; the objective is 90%. "
        "The error budget burns 5.0 times too fast."
    )
    Queue.objects.update(slo_since="ready")
    (sentence,) = found(page)
    assert " within 1 min after they were ready; the objective" in sentence
    Queue.objects.filter(name="default").update(slo_target=0.4)
    assert found(page) == {}


@pytest.mark.usefixtures("_served")
def test_resources_that_are_full_paused_or_failing(page: Page) -> None:
    stripe = Resource.objects.create(name="stripe", max_concurrency=2)
    refund_payment.enqueue_many([{"payment_id": number} for number in range(5)])
    admit({"default": 10}, FairShares())
    link = change_url(Resource, stripe.pk)
    first = Job.objects.filter(status="ready").earliest("pk")
    ((sentence, target),) = found(page).items()
    assert sentence.startswith("stripe : all 2 slots are taken, and 3 jobs wait. Held by ")
    assert f"{first.job_type} #{first.pk}" in sentence
    assert target == link
    Resource.objects.update(breaker_state="open", breaker_changed_at="2020-01-01T00:00Z")
    ((sentence, target),) = found(page).items()
    assert sentence.startswith("stripe is failing: its breaker has been open for ")
    assert sentence.endswith("3 jobs wait.")
    Resource.objects.update(breaker_state="half_open")
    (sentence,) = found(page)
    assert (
        sentence
        == "stripe is being tested: its half-open breaker lets a few jobs through. 3 jobs wait."
    )
    Resource.objects.update(paused_at="2020-01-01T00:00Z", paused_reason="maintenance")
    assert found(page) == {"stripe is paused: maintenance. 3 jobs wait.": link}


@pytest.mark.usefixtures("_served")
def test_schedules_that_do_not_fire(page: Page) -> None:
    wrong = due_schedule(-60, name="wrong")
    due_schedule(53.5 * 3_600, name="late")
    Schedule.objects.filter(pk=wrong.pk).update(error="no such zone")
    run_sql(f"UPDATE django_jobs_worker SET schedules_seen_at = now() - {LONG}")
    seen = found(page)
    assert seen.pop("wrong does not fire: no such zone") == change_url(Schedule, wrong.pk)
    (overdue, looked) = seen
    assert overdue.startswith("1 schedule is overdue, by 2 d 5 h")
    assert looked.startswith("No worker has checked the schedules for 2 d 5 h")
    assert seen[overdue] == f"{list_url(Schedule)}?state=overdue"


@pytest.mark.usefixtures("_served")
def test_a_quarantine_with_waiting_jobs(page: Page) -> None:
    quarantines.quarantine("app.noop", reason="why not")
    assert found(page) == {}
    add.enqueue(1, 2)
    quarantines.quarantine("app.add", reason="why not")
    assert found(page) == {"app.add is quarantined. 1 job waits.": list_url(Quarantine)}


@pytest.mark.usefixtures("_served")
def test_new_dead_jobs_are_a_problem_until_they_are_replayed(page: Page) -> None:
    first, second, old = (make_dead(add, 1) for _ in range(3))
    Job.objects.update(queue="bulk")
    make_dead(noop)
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '61 min' WHERE id = %s",
            [old.pk])  # fmt: skip
    link = reverse("admin:django_jobs_failures") + "?span=1h"
    assert found(page) == {"3 jobs of the last hour are dead: 2 in bulk, 1 in default.": link}
    assert "3 dead jobs of 2 kinds" in words(page.text(link))
    job_operations.replay([first.pk, second.pk], check=lambda job: None)
    run_sql("DELETE FROM django_jobs_storedmetrics")
    sentences = [one for one in found(page) if "dead" in one]
    assert sentences == ["1 job of the last hour is dead: 1 in default."]


@pytest.mark.usefixtures("_served")
def test_workflow_runs_that_failed_lately_are_problems(page: Page) -> None:
    worker = Worker.objects.get().pk
    runs = []
    for _ in range(5):
        runs.append(start_graph({"a": ""}))
        (held,) = claim_ready(worker)
        settle_one(held, failure("boom", final=True))
    Job.objects.dead().update(finished_at=timezone.now() - timedelta(hours=2))
    seen = found(page)
    *named, others = seen
    newest = WorkflowRun.objects.order_by("-finished_at")[:3]
    assert [re.sub(r"failed .* ago", "failed", one) for one in named] == [
        f"{run.name} #{run.pk} failed." for run in newest
    ]
    assert [seen[one] for one in named] == [change_url(WorkflowRun, run.pk) for run in newest]
    assert others == "2 more runs of workflows failed in the last hour."
    assert seen[others] == f"{list_url(WorkflowRun)}?status=failed"
    run_sql("UPDATE django_jobs_workflowrun SET finished_at = now() - interval '61 min'")
    assert found(page) == {}


def failed_run(worker: int, graph: Mapping[str, str]) -> WorkflowRun:
    """A run whose first step is dead."""
    run = start_graph(graph)
    (first,) = claim_ready(worker, limit=1)
    settle_one(first, failure("boom", final=True))
    run.refresh_from_db()
    return run


@pytest.mark.usefixtures("_served")
def test_a_dead_step_is_one_problem_that_goes_when_it_is_dealt_with(page: Page) -> None:
    worker = Worker.objects.get().pk
    run = failed_run(worker, {"a": "", "b": "a"})
    assert run.status == "failed"
    (sentence,) = found(page)
    assert re.fullmatch(rf"graph #{run.pk} failed .* ago\.", sentence)
    dead_letters.dismiss([step(run, "a").pk])
    assert found(page) == {}
    assert "graph #" in overview(page)  # among the workflows


@pytest.mark.usefixtures("_served")
def test_a_dead_step_is_a_dead_job_until_its_run_has_ended(page: Page) -> None:
    run = failed_run(Worker.objects.get().pk, {"a": "", "b": ""})
    assert run.status == "running"
    assert list(found(page)) == ["1 job of the last hour is dead: 1 in default."]
    workflows.cancel([run.pk])
    run.refresh_from_db()
    assert run.status == "cancelled"
    assert found(page) == {}


def test_who_sees_no_runs_sees_their_dead_steps(page_of: Callable[..., Page]) -> None:
    failed_run(register_worker("web-1"), {"a": ""})
    text = overview(page_of("view_job"))
    assert problems(text) == ["1 job of the last hour is dead: 1 in default."]


@pytest.mark.usefixtures("_served")
def test_a_run_that_is_not_fully_undone_is_an_error_until_a_person_sees_to_it(page: Page) -> None:
    run = saga("a", "b")
    finish({"last": DEAD, "undo a": DEAD, "undo b": DEAD})
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '2 h' WHERE status = 'dead'")
    link = change_url(WorkflowRun, run.pk)
    assert found(page) == {f"saga #{run.pk} is not fully undone: undo b, undo a failed.": link}
    assert 'aria-label="Error"' in page.text(url())
    run_sql("UPDATE django_jobs_workflowrun SET finished_at = now() - interval '2 days'")
    assert len(found(page)) == 1
    for name in ("undo a", "undo b"):
        workflows.skip(run.pk, name, reason="by hand")
    (sentence,) = found(page)
    assert re.fullmatch(rf"saga #{run.pk} failed .* ago\.", sentence)


@pytest.mark.usefixtures("_served")
def test_runs_that_nobody_counts(page: Page) -> None:
    noop.enqueue()
    settle_one(claim_ready(Worker.objects.get().pk)[0], Succeeded())
    fold_runs()
    noop.enqueue()
    settle_one(claim_ready(Worker.objects.get().pk)[0], Succeeded())
    run_sql(f"UPDATE django_jobs_runwatermark SET reached_at = now() - {LONG}")
    (sentence,) = found(page)
    assert sentence.startswith("No worker has counted runs for 2 d 5 h")


def test_errors_come_before_warnings_and_are_named(page: Page) -> None:
    register_worker(queues=("default",), job_types={"app.add": 1})
    add.enqueue(1, 2)
    quarantines.quarantine("app.add", reason="why not")
    noop.enqueue()
    text = overview(page)
    assert len(problems(text)) == 2, problems(text)
    assert "2 problems" in text
    assert text.index('aria-label="Error"') < text.index('aria-label="Warning"')
    assert problems(text)[0].startswith("app.noop")


@pytest.mark.parametrize(
    ("permission", "shown"),
    [
        ("view_queue", {"bulk : no running worker serves this queue. 1 job waits."}),
        ("view_job", {"app.noop : no live worker of its queue knows this type. 1 job waits."}),
        ("view_schedule", {"wrong does not fire: no such zone"}),
        ("view_worker", set()),
    ],
)
def test_a_user_sees_the_problems_of_the_lists_that_they_may_see(
    page_of: Callable[..., Page], permission: str, shown: set[str]
) -> None:
    register_worker(queues=("default",), job_types={"app.add": 1})
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = now()")
    add.using(queue="bulk").enqueue(1, 2)
    noop.enqueue()
    wrong = due_schedule(-60, name="wrong")
    Schedule.objects.filter(pk=wrong.pk).update(error="no such zone")
    text = overview(page_of(permission))
    assert set(problems(text)) == shown
    assert ("No problem is known." in text) == (not shown)
