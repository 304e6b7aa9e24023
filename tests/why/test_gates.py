"""Each gate, with the rows of a real situation."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone, translation
from pytest_django import DjangoAssertNumQueries

from django_jobs.domain.outcomes import Lost, Snoozed, TimedOut
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.models import Job, Progress, Queue, Receipt, Resource, RunTotal, Tenant
from django_jobs.why.evaluation import explain
from django_jobs.why.explanation import Explanation, Gate, GateState, plain
from django_jobs.why.facts import MOST_READ
from tests.app.async_jobs import meet
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment, transfer_funds
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    copies_of,
    enqueue_and_claim,
    failure,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_plans import fill
from tests.moments import moment

pytestmark = pytest.mark.django_db


def of(job: Job | int) -> Explanation:
    return explain(Job.objects.get(pk=getattr(job, "pk", job)))


def gate(job: Job | int, name: str) -> Gate:
    (found,) = (one for one in of(job).gates if one.name == name)
    return found


def holding(job: Job | int) -> list[str]:
    return [one.name for one in of(job).gates if one.holds]


def sentence(job: Job | int) -> str:
    return plain(of(job).sentence)


def test_a_job_that_runs_in_the_next_moment_says_so() -> None:
    register_worker()
    job = noop.enqueue()
    assert holding(job) == []
    assert sentence(job) == "Nothing holds it: a worker starts it in the next moment."
    expected = of(job).expected
    assert expected is not None
    assert expected.seconds == 0


def test_a_job_that_waits_although_nothing_holds_it_sends_to_the_logs() -> None:
    register_worker()
    job = noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '10 min'")
    run_sql("UPDATE django_jobs_worker SET claim_failures = 12")
    assert sentence(job) == (
        "No gate holds it, and yet it has waited for 10 min: look at the logs of its workers. "
        "12 of their claims failed."
    )


# Due


def test_a_delay_is_the_origin_of_the_due_time() -> None:
    register_worker()
    job = noop.using(delay=7_200).enqueue()
    assert re.fullmatch(
        r"Runs in 1 h 59 min, at [\d:-]+( [\d:]+)? UTC: it was enqueued with a delay or a time to "
        r"run at\.",
        sentence(job),
    )
    with moment() as now:
        expected = of(job).expected
    assert expected is not None
    assert expected.seconds in now.until(job.available_at)
    assert expected.basis == "its due time"


@pytest.mark.parametrize(
    "outcome, text",
    [
        (failure(), "failed (ValueError), failure 1 of 5"),
        (TimedOut(seconds=30.0), "timed out"),
        (Lost(reason="SIGKILL"), "lost"),
    ],
)
def test_a_backoff_names_the_attempt_and_its_error(outcome: object, text: str) -> None:
    held = enqueue_and_claim()
    settle_one(held, outcome)  # type: ignore[arg-type]
    run_sql(
        "UPDATE django_jobs_job SET status = 'scheduled', available_at = now() + interval '1 h'"
    )
    assert f"the backoff after attempt 1: {text}" in plain(gate(held.id, "due").text)
    assert sentence(held.id).startswith("Failed ")


def test_a_snooze_and_a_sleep_are_named() -> None:
    held = enqueue_and_claim()
    settle_one(held, Snoozed(seconds=3600))
    assert plain(gate(held.id, "due").text).endswith(": its handler snoozed in attempt 1")
    until = (timezone.now() + timedelta(hours=1)).isoformat()
    Receipt.objects.create(
        job_id=held.id, key="sleep:cooling", attempt=1, answer={"until": until},
        made_at=timezone.now(),
    )  # fmt: skip
    assert plain(gate(held.id, "due").text).endswith(": its handler sleeps (cooling)")


def test_a_snooze_that_the_handler_did_not_ask_for_is_not_called_its_own() -> None:
    held = enqueue_and_claim()
    reason = "its transaction was rolled back by conflicts in the database 10 times"
    settle_one(held, Snoozed(seconds=3600, reason=reason))
    assert plain(gate(held.id, "due").text).endswith(": snoozed in attempt 1, whose run says why")


def test_an_edit_is_the_origin_of_the_due_time_that_it_set() -> None:
    later = timezone.now() + timedelta(hours=2)
    delayed, held = noop.using(delay=60).enqueue(), enqueue_and_claim()
    settle_one(held, failure())
    fired = noop.enqueue()
    Job.objects.filter(pk=fired.pk).update(scheduled_for=timezone.now())
    for id_ in (delayed.pk, held.id, fired.pk):
        job = Job.objects.get(pk=id_)
        job.edit(run_at=later)
        assert plain(gate(id_, "due").text).endswith(": an edit set it")
        job.edit(priority=3)
        assert plain(gate(id_, "due").text).endswith(": an edit set it")
    assert sentence(held.id).startswith("Failed 1 of 5 times; runs again in ")
    run_sql("UPDATE django_jobs_job SET available_at = now() + interval '1 h'")
    assert "the backoff after attempt 1: " in plain(gate(held.id, "due").text)


@pytest.mark.parametrize(
    "edits", ["7", "[7]", '[{"after": 7}]', '[{"after": {"due": "soon"}}]', '{"after": []}']
)
def test_edits_that_no_edit_has_noted_are_no_origin(edits: str) -> None:
    job = noop.using(delay=60).enqueue()
    sql = "UPDATE django_jobs_job SET headers = jsonb_build_object('edits', %s::jsonb)"
    run_sql(sql, [edits])
    assert "it was enqueued with a delay" in plain(gate(job, "due").text)


def test_a_due_job_that_is_still_scheduled_is_made_ready_soon() -> None:
    register_worker()
    job = noop.using(delay=60).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '2 s'")
    assert holding(job) == []
    assert sentence(job).endswith(": a worker makes it ready in the next moment.")


@pytest.mark.parametrize("moment", ["infinity", "20000-01-01"])
def test_a_due_time_that_python_cannot_represent_is_shown(moment: str) -> None:
    job = noop.using(delay=60).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = %s", [moment])
    assert "never" in plain(gate(job, "due").text)


def test_a_due_time_before_all_time_has_passed() -> None:
    job = noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = '-infinity'")
    assert plain(gate(job, "due").text) == "since -infinity"


def test_an_expired_job_says_that_it_will_not_run() -> None:
    register_worker()
    job = noop.enqueue()
    Job.objects.update(expires_at=timezone.now() + timedelta(hours=1))
    assert gate(job, "expires").state == GateState.PASSED
    Job.objects.update(expires_at=timezone.now() - timedelta(minutes=3))
    assert sentence(job).startswith("It expired 3 min ago: the worker that takes it ends it")


# The queue


def test_a_paused_queue_says_by_whom_since_when_and_why() -> None:
    register_worker(queues=["bulk"])
    job = noop.using(queue="bulk").enqueue()
    job_operations.pause(["bulk"], actor=make_user("pause_queue"), reason="it floods")
    assert re.fullmatch(
        r"Queue bulk is paused since [\d:]+ UTC \([^()]+\) by olga: it floods\.", sentence(job)
    )
    assert of(job).expected is None
    job_operations.resume(["bulk"])
    job_operations.pause(["bulk"], actor=make_user("pause_queue", name="rita"))
    assert sentence(job).endswith(" by rita.")


def test_a_queue_without_a_row_is_said_to_be_gone() -> None:
    register_worker(queues=["bulk"])
    job = noop.using(queue="bulk").enqueue()
    Queue.objects.filter(name="bulk").delete()
    assert sentence(job) == "The queue bulk no longer exists."


def test_a_full_limit_names_the_longest_jobs_with_their_progress() -> None:
    worker = register_worker(threads=9)
    first, second = (enqueue_and_claim(add, number, worker=worker) for number in (1, 2))
    run_sql(
        "UPDATE django_jobs_job SET claimed_at = now() - interval '22 min' WHERE id = %s",
        [first.id],
    )
    Progress.objects.create(
        job_id=first.id, attempt=first.attempt, fraction=0.41, reported_at=timezone.now()
    )
    Queue.objects.filter(name="default").update(max_concurrency=2)
    job = noop.enqueue()
    text = plain(gate(job, "limit").text)
    assert re.fullmatch(
        rf"2 of 2 slots: #{first.id} \(22 min, 41 %\), #{second.id} \([^,]+, no progress "
        r"reported\)",
        text,
    )
    assert sentence(job) == ("Waits for a free slot of queue default: its limit of 2 is full.")
    settle_one(second, failure(final=True))
    assert "limit" not in holding(job)


def test_jobs_of_other_queues_take_no_slot_of_a_limit() -> None:
    enqueue_and_claim(add, 1, queue="bulk", worker=register_worker(queues=["bulk"]))
    Queue.objects.filter(name="default").update(max_concurrency=1)
    assert plain(gate(noop.enqueue(), "limit").text) == "0 of 1 slots"


def test_the_jobs_before_it_are_counted() -> None:
    register_worker()
    low = noop.using(priority=-5).enqueue()
    noop.enqueue_many({} for _ in range(3))
    noop.using(queue="bulk").enqueue()
    noop.using(priority=-50).enqueue()
    assert (of(low).before, of(low).more_before) == (3, False)
    assert sentence(low) == "3 jobs are before it."
    first = Job.objects.order_by("rank", "id").filter(queue="default")[0]
    assert of(first).before == 0


# Workers and threads


def test_the_first_missing_ability_of_the_workers_is_named() -> None:
    job = add.using(queue="bulk").enqueue(1)
    assert sentence(job) == "No worker is alive."
    register_worker("other")
    assert sentence(job) == "No live worker serves this queue."
    stranger = register_worker("stranger", queues=["bulk"], job_types={"app.noop": 1})
    run_sql("UPDATE django_jobs_worker SET code_version = '1.4.2' WHERE id = %s", [stranger])
    assert sentence(job) == "No live worker of this queue knows this job type."
    assert plain(gate(job, "workers").text).endswith(f": stranger #{stranger} (code 1.4.2)")
    Job.objects.update(payload_version=2)
    old = register_worker("old", queues=["bulk"], job_types={"app.add": 1})
    assert sentence(job) == "No live worker of this queue reads version 2 of its payload."
    assert plain(gate(job, "workers").text).endswith(f": old #{old} (reads version 1)")
    new = register_worker("new", queues=["bulk"], job_types={"app.add": 2})
    assert holding(job) == []
    job_operations.stop_workers([new])
    assert sentence(job) == "All workers that could take it are draining."
    register_worker("expired", queues=["bulk"], job_types={"app.add": 2}, lease=-1.0)
    assert sentence(job) == "The leases of all workers that could take it have expired."


def test_a_worker_whose_lease_is_over_is_not_live() -> None:
    job = add.using(queue="bulk").enqueue(1, 2)
    register_worker("lapsed", queues=["bulk"], job_types={"app.noop": 1}, lease=-1.0)
    assert sentence(job) == "No worker is alive."
    register_worker("elsewhere", queues=["default"])
    assert sentence(job) == "No live worker serves this queue."
    assert plain(gate(job, "workers").text).endswith("1 live worker serves other queues")


def test_a_worker_of_an_older_release_reads_any_version() -> None:
    job = add.enqueue(1)
    Job.objects.update(payload_version=2)
    register_worker("of 0.1.0")
    run_sql("UPDATE django_jobs_worker SET payload_versions = NULL")
    assert holding(job) == []


@pytest.mark.parametrize("versions", ['{"app.add": "x"}', '{"app.add": null}', "[]", "7"])
def test_versions_of_a_worker_that_make_no_sense_are_version_one(versions: str) -> None:
    job = add.enqueue(1)
    register_worker("odd")
    run_sql("UPDATE django_jobs_worker SET payload_versions = %s::jsonb", [versions])
    assert holding(job) == []


def test_busy_threads_are_named_with_what_they_do() -> None:
    worker = register_worker("web-1", threads=2)
    for number in (1, 2):
        enqueue_and_claim(add, number, worker=worker)
    job = noop.enqueue()
    found = gate(job, "threads")
    first = Job.objects.order_by("id")[0].pk
    text = rf"2 of 2 busy on 1 worker: 2 app.add \(#{first} for [^()]+\)"
    assert re.fullmatch(text, plain(found.text))
    assert sentence(job) == "Waits for a free thread: all 2 of 1 worker that could run it are busy."
    other = register_worker("web-2", threads=2)
    assert "threads" not in holding(job)
    job_operations.cancel([job.pk])
    for _ in range(2):
        enqueue_and_claim(noop, worker=other)
    job = noop.enqueue()
    details = [plain(line) for line in gate(job, "threads").details]
    assert len(details) == 2
    assert any(line.startswith(f"web-2 #{other}: 2 of 2, 2 app.noop (#") for line in details)


def test_prefetched_jobs_are_not_named_as_those_that_run() -> None:
    worker = register_worker("web-1", threads=2)
    enqueue_and_claim(add, 1, worker=worker)
    for _ in range(5):
        enqueue_and_claim(noop, worker=worker)
    text = plain(gate(noop.enqueue(), "threads").text)
    text = re.sub(r" \([^()]*\)", "", text)
    assert text in (
        "2 of 2 busy on 1 worker: 1 app.add and 1 app.noop",
        "2 of 2 busy on 1 worker: 1 app.add, 1 app.noop",
    )


def test_the_only_thread_that_is_busy_is_not_called_all_threads() -> None:
    enqueue_and_claim(add, 1, worker=register_worker(threads=1))
    job = noop.enqueue()
    wanted = "Waits for a free thread: the only one of 1 worker that could run it is busy."
    assert sentence(job) == wanted
    job_operations.pause(["default"])
    assert sentence(job).endswith(" Also: the only thread that could run it is busy.")


def test_a_full_worker_of_many_async_slots_has_none_free() -> None:
    fill("running", 350, worker=register_worker(threads=1, async_slots=350))
    Job.objects.update(job_type=meet.name, queue="default")
    job = meet.enqueue(2, "here")
    assert plain(gate(job, "threads").text).startswith("350 of 350 busy on 1 worker")
    assert holding(job) == ["threads"]


FIRST_IDS = """
UPDATE django_jobs_worker SET id = (
    SELECT count(*) FROM django_jobs_worker AS other WHERE other.id <= django_jobs_worker.id)
"""
"""Random ids give way to the lowest ones."""


def test_workers_whose_leases_ran_out_do_not_hide_a_busy_one() -> None:
    for number in range(50):
        register_worker(f"expired-{number}", lease=-1.0)
    run_sql(FIRST_IDS)
    enqueue_and_claim(add, 1, worker=register_worker("busy", threads=1))
    assert holding(noop.enqueue()) == ["threads"]


def test_free_threads_are_unknown_where_the_workers_hold_more_jobs_than_are_counted() -> None:
    pools = [(["bulk"], 1), (["default"], 1)]
    worker = register_worker(threads=2, queues=["bulk", "default"], pools=pools)
    fill("running", MOST_READ, worker=worker)
    Job.objects.update(queue="bulk")
    job = noop.enqueue()
    assert gate(job, "threads").state == GateState.UNKNOWN
    wanted = "A thread may be free, or none: more workers or jobs than are counted."
    assert (sentence(job), of(job).expected) == (wanted, None)


def test_only_the_pools_that_serve_the_queue_count() -> None:
    pools = [(["bulk"], 1), (["default"], 1)]
    worker = register_worker(threads=2, queues=["bulk", "default"], pools=pools)
    enqueue_and_claim(add, 1, queue="bulk", worker=worker)
    job = noop.enqueue()
    assert plain(gate(job, "threads").text) == "0 of 1 busy on 1 worker"
    assert "threads" in holding(noop.using(queue="bulk").enqueue())


# Gates before ready


def test_all_gates_that_hold_a_job_are_listed_at_once() -> None:
    for name in ("stripe", "ledger"):
        Resource.objects.create(name=name, max_concurrency=1)
    Resource.objects.filter(name="ledger").update(paused_at=timezone.now(), paused_by="ada")
    job = transfer_funds.enqueue(7, "acme")
    limits.pause_tenants(["acme"], reason="unpaid")
    job_operations.pause(["default"])
    copies_of(job, 3)
    assert holding(job) == ["tenant", "resource", "resource", "key", "queue", "workers"]
    text = sentence(job)
    assert text.startswith("Waits: the tenant acme is paused since ")
    for part in ("the resource stripe (1 of 1 taken)", "no worker is alive", "is paused since"):
        assert part in text
    assert of(job).expected is None


def test_a_full_resource_and_a_full_tenant_name_the_jobs_that_take_them() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    job = refund_payment.enqueue(1)
    holders = copies_of(job, 2)
    named = ", ".join(f"#{id_} (ready)" for id_ in holders)
    assert plain(gate(job, "resource").text) == f"the resource stripe (2 of 2 taken): {named}"
    Tenant.objects.create(name="acme", max_concurrency=1)
    bill = bill_tenant.enqueue("acme")
    (holder,) = copies_of(bill)
    text = f"the tenant acme (1 of 1 taken): #{holder} (ready)"
    assert plain(gate(bill, "tenant").text) == text


@pytest.mark.parametrize(
    "fields, failures, text",
    [
        ({"breaker_state": "open"}, 0, "the breaker of stripe is open"),
        (
            {"breaker_state": "half_open"},
            0,
            "the breaker of stripe is half open and lets few jobs try",
        ),
        (
            {"retry_budget": 0.2, "recent_starts": 50.0, "recent_retries": 20.0},
            1,
            "the retry budget of stripe is used up",
        ),
    ],
)
def test_the_state_of_a_resource_is_a_sentence(
    fields: dict[str, Any], failures: int, text: str
) -> None:
    Resource.objects.create(name="stripe", counted_at=timezone.now(), **fields)
    register_worker()
    job = refund_payment.enqueue(1)
    copies_of(job, 3)
    Job.objects.filter(pk=job.pk).update(failures=failures)
    assert sentence(job).startswith(f"Waits: {text}.")


def test_the_clock_of_the_database_says_how_long_a_breaker_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Resource.objects.create(
        name="stripe", breaker_state="open", breaker_changed_at=Now(), breaker_open_for=60.0
    )
    register_worker()
    job = refund_payment.enqueue(1)
    assert sentence(job).startswith("Waits: the breaker of stripe is open until ")
    wrong = timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: wrong)
    assert sentence(job).startswith("Waits: the breaker of stripe is open until ")


def test_the_german_sentence_of_a_paused_tenant_has_it_as_its_subject() -> None:
    register_worker()
    job = bill_tenant.enqueue("acme")
    limits.pause_tenants(["acme"], reason="unpaid")
    with translation.override("de"):
        assert sentence(job).startswith("Wartet: der Mandant acme ist pausiert")


def test_a_job_that_is_due_later_names_the_pause_of_its_tenant() -> None:
    register_worker()
    job = bill_tenant.using(delay=600).enqueue("acme")
    limits.pause_tenants(["acme"], reason="unpaid")
    assert holding(job)[:2] == ["due", "tenant"]
    assert "Also: the tenant acme is paused: unpaid" in sentence(job)


def test_a_payload_of_a_newer_version_than_this_code_reads_is_left_to_the_workers() -> None:
    register_worker()
    job = add.enqueue(1)
    run_sql("""UPDATE django_jobs_job SET payload = '{"other": 1}'""")
    assert "payload" in holding(job)
    run_sql("UPDATE django_jobs_job SET payload_version = 7")
    assert "payload" not in holding(job)


def test_gates_with_room_say_how_much_is_taken() -> None:
    Resource.objects.create(name="stripe", max_concurrency=2)
    Tenant.objects.create(name="acme", weight=3.0, max_concurrency=10)
    refund, bill, charge = refund_payment.enqueue(1), bill_tenant.enqueue("acme"), charge_account
    copies_of(refund)
    assert plain(gate(refund, "resource").text) == "stripe has 1 of 2"
    assert plain(gate(bill, "tenant").text) == "acme has 0 of 10, weight 3"
    assert plain(gate(charge.enqueue(7), "key").text) == "account:7 is free"
    assert plain(gate(bill_tenant.enqueue("none"), "tenant").text).endswith("weight 1, no limit")


def test_a_blocked_job_knows_its_place_among_those_with_the_same_gates() -> None:
    first, second = charge_account.enqueue(7), charge_account.enqueue(7)
    charge_account.enqueue(8)
    assert (of(first).before, of(second).before) == (0, 1)
    (holder,) = copies_of(first)
    text = f"the concurrency key account:7 (limit 1): job #{holder} (ready) holds it"
    assert plain(gate(second, "key").text) == text
    assert "1 job is before it." in sentence(second)


def test_gates_that_cannot_be_read_hold_the_job() -> None:
    job = charge_account.enqueue(7)
    Job.objects.update(gates='["<script>"]')
    assert sentence(job).startswith("Blocked: its gates cannot be read")
    assert "gates cannot be read" in Job.objects.get().blocked_by


def test_a_job_of_a_quarantined_type_is_not_claimed_or_is_blocked_once_it_is_ready() -> None:
    register_worker()
    ready, later = noop.enqueue(), noop.using(delay=3600).enqueue()
    quarantines.quarantine("app.noop", reason="leaks", by="ada", seconds=-1)
    assert Job.objects.get(pk=ready.pk).status == "ready"
    assert claim_ready(register_worker()) == []
    since = r"its job type is quarantined since [^:]+"
    assert re.match(rf"No worker claims it: {since}", sentence(ready))
    assert holding(ready) == ["quarantine"]
    blocked = plain(gate(later, "quarantine").sentence)
    assert re.match(rf"A worker blocks it once it is ready: {since}", blocked)


def test_what_others_take_now_does_not_hold_a_job_that_is_due_later() -> None:
    enqueue_and_claim(add, 1, worker=register_worker())
    Queue.objects.filter(name="default").update(max_concurrency=1)
    job = noop.using(delay=3600).enqueue()
    assert holding(job) == ["due"]
    assert gate(job, "limit").state == GateState.UNKNOWN
    job_operations.pause(["default"])
    assert holding(job) == ["due", "queue"]


# Running and ended


def test_a_running_job_says_where_and_until_when_its_lease_lasts() -> None:
    held = enqueue_and_claim(worker=register_worker("carol"))
    Progress.objects.create(job_id=held.id, attempt=1, fraction=0.5, reported_at=timezone.now())
    wanted = rf"Runs for [^,]+ on carol #{held.worker}, attempt 1, 50 %\."
    assert re.fullmatch(wanted, sentence(held.id))
    assert gate(held.id, "lease").state == GateState.PASSED


def test_an_expired_lease_says_within_what_time_the_job_is_taken_over() -> None:
    held = enqueue_and_claim(worker=register_worker("carol"))
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '12 s'")
    assert "no live worker can take it over" in sentence(held.id)
    register_worker("dave")
    wanted = (
        rf"The lease of its worker carol #{held.worker} expired [^;]+ ago; a live worker takes "
    )
    assert re.search(rf"{wanted}it over within 5\.0 s\.", sentence(held.id))
    workers.end(held.worker)
    assert f"Its worker carol #{held.worker} is stopped; a live" in sentence(held.id)
    run_sql("DELETE FROM django_jobs_worker WHERE id = %s", [held.worker])
    assert f"Its worker #{held.worker} has no row any more" in sentence(held.id)


def test_a_job_that_may_wait_in_its_worker_is_unknown() -> None:
    worker = register_worker(threads=1)
    noop.enqueue_many({} for _ in range(3))
    (*_, last) = claim_ready(worker)
    assert gate(last.id, "start").state == GateState.UNKNOWN


def test_ended_jobs_say_how_and_when() -> None:
    held = enqueue_and_claim()
    settle_one(held, failure(final=True))
    assert re.match(r"Dead [^,]+ ago, attempt 1", sentence(held.id))
    job = noop.enqueue()
    job_operations.cancel([job.pk], reason="not needed")
    assert re.fullmatch(r"Cancelled [^,]+ ago, without an attempt: not needed\.", sentence(job))
    assert of(job).gates == ()


# The forecast


def sample(queue: str, seconds_ago: int, *, runs: int, running: int) -> None:
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " VALUES (%s, now() - make_interval(secs => %s), 0, %s, %s)",
        [queue, seconds_ago, running, runs],
    )


def total(queue: str, job_type: str, *, period: int, runs: int, seconds: float) -> None:
    zeros = [0] * 40
    run_sql(
        "INSERT INTO django_jobs_runtotal SELECT %s, CASE WHEN %s = 0 THEN '-infinity' ELSE"
        " date_bin('1 hour', now(), 'epoch') END, %s, %s, 'succeeded', %s, %s, 0, %s, 0, %s, 0, %s,"
        " %s, 0, 0",
        [period, period, queue, job_type, runs, *[zeros] * 4, seconds],
    )


def test_the_start_is_expected_by_the_claims_of_the_last_minutes() -> None:
    register_worker()
    sample("default", 240, runs=0, running=0)
    total("default", "app.noop", period=0, runs=24, seconds=1.0)
    run_sql("INSERT INTO django_jobs_runwatermark (id, run_id, reached_at) VALUES (1, 1, now())"
            " ON CONFLICT (id) DO UPDATE SET reached_at = now()")  # fmt: skip
    low = noop.using(priority=-50).enqueue()
    noop.enqueue_many({} for _ in range(11))
    expected = of(low).expected
    assert expected is not None
    assert expected.seconds == pytest.approx(120, rel=0.05)  # 12 jobs at 24 in four minutes
    assert expected.basis.startswith("24 jobs of its queue were claimed in the last 4 min")
    assert sentence(low) == "11 jobs are before it; expected start in about 2 min."


def test_the_start_behind_a_full_limit_is_expected_by_the_time_such_jobs_take() -> None:
    enqueue_and_claim(add, 1, worker=register_worker(threads=9))
    Queue.objects.filter(name="default").update(max_concurrency=1)
    total("default", "app.add", period=3600, runs=10, seconds=6_000.0)
    job = noop.enqueue()
    expected = of(job).expected
    assert expected is not None
    assert expected.seconds == pytest.approx(600)
    assert (
        sentence(job).endswith("its limit of 1 is full. expected start in about 10 min.") is False
    )
    assert sentence(job).endswith("Expected start in about 10 min.")


def test_the_start_behind_a_key_is_expected_by_the_time_of_its_type() -> None:
    register_worker(threads=9)
    total("default", "app.charge_account", period=3600, runs=4, seconds=240.0)
    job = charge_account.enqueue(7)
    copies_of(job)
    expected = of(job).expected
    assert expected is not None
    assert expected.seconds == pytest.approx(60)


def test_no_start_is_forecast_while_the_slots_have_no_end_in_sight() -> None:
    """Two of the queue's slots since before the claims that are known; a key for longer than three
    times as long as such jobs take."""
    worker = register_worker(threads=9)
    sample("default", 240, runs=0, running=0)
    total("default", "app.noop", period=0, runs=24, seconds=1.0)
    total("default", "app.noop", period=3600, runs=24, seconds=1.0)
    run_sql("INSERT INTO django_jobs_runwatermark (id, run_id, reached_at) VALUES (1, 1, now())"
            " ON CONFLICT (id) DO UPDATE SET reached_at = now()")  # fmt: skip
    for _ in range(2):
        enqueue_and_claim(noop, worker=worker)
    Queue.objects.filter(name="default").update(max_concurrency=2)
    job = noop.enqueue()
    assert of(job).expected is not None
    run_sql("UPDATE django_jobs_job SET claimed_at = now() - interval '407 s' WHERE attempt = 1")
    assert holding(job) == ["limit"]
    assert of(job).expected is None
    assert "expected" not in sentence(job).lower()

    job_operations.cancel([job.pk])
    Queue.objects.filter(name="default").update(max_concurrency=None)
    total("default", "app.charge_account", period=3600, runs=4, seconds=240.0)
    behind = charge_account.enqueue(7)
    run_sql(
        "UPDATE django_jobs_job SET status = 'running', worker_id = %s, claimed_at = now(),"
        " attempt = 1 WHERE id = ANY(%s)",
        [worker, copies_of(behind)],
    )
    assert of(behind).expected is not None
    run_sql("UPDATE django_jobs_job SET claimed_at = now() - interval '4 min' WHERE attempt = 1")
    assert of(behind).expected is None


@pytest.mark.parametrize("many", [False, True])
def test_no_start_is_forecast_while_all_threads_have_no_end_in_sight(many: bool) -> None:
    """Jobs without a time limit have all of them for longer than three times as long as jobs of
    the queue take, and longer than a minute. Some are of another queue."""
    first = register_worker("web-1", threads=1)
    workers_ = [first, register_worker("web-2", threads=2)] if many else [first]
    sample("default", 240, runs=0, running=0)
    total("default", "app.noop", period=0, runs=24, seconds=1.0)
    total("default", "app.noop", period=3600, runs=24, seconds=24 * 30.0)
    run_sql("INSERT INTO django_jobs_runwatermark (id, run_id, reached_at) VALUES (1, 1, now())"
            " ON CONFLICT (id) DO UPDATE SET reached_at = now()")  # fmt: skip
    held = [enqueue_and_claim(add, 1, worker=worker).id for worker in workers_]
    if many:
        held.append(enqueue_and_claim(noop, queue="emails", worker=workers_[1]).id)
    job = noop.enqueue()
    noop.using(priority=9).enqueue()

    def since(seconds: int, which: int = -1) -> None:
        run_sql(
            "UPDATE django_jobs_job SET claimed_at = now() - make_interval(secs => %s)"
            " WHERE id = ANY(%s)",
            [seconds, held if which < 0 else held[which : which + 1]],
        )

    since(80)
    assert of(job).expected is not None
    assert "sight" not in sentence(job)
    since(120)
    assert holding(job) == ["threads", "before"]
    assert of(job).expected is None
    text = sentence(job)
    assert text.endswith(" 1 job is before it.")
    assert "expected" not in text.lower()
    if many:
        assert "None of the jobs has a time limit, or an end in sight: 2 app.add" in text
        assert f"1 app.noop (#{held[2]} for 2 min)" in text
    else:
        assert f"has no time limit, and no end in sight: 1 app.add (#{held[0]} for 2 min)" in text
    Job.objects.filter(pk=held[-1]).update(timeout=300)
    assert of(job).expected is not None
    Job.objects.filter(pk=held[-1]).update(timeout=None)
    assert of(job).expected is None
    since(1, which=len(held) - 1)
    assert of(job).expected is not None
    since(120)
    register_worker("web-3", threads=1)  # which has a free thread
    assert of(job).expected is not None


def test_threads_without_an_end_in_sight_are_said_where_no_pace_is_known() -> None:
    held = enqueue_and_claim(add, 1, worker=register_worker(threads=1))
    job = noop.enqueue()
    assert "sight" not in sentence(job)
    run_sql(
        "UPDATE django_jobs_job SET claimed_at = now() - interval '2 h' WHERE id = %s", [held.id]
    )
    assert (of(job).expected, "no end in sight: 1 app.add" in sentence(job)) == (None, True)


def test_an_explanation_costs_two_statements(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    register_worker()
    noop.enqueue()
    job = Job.objects.get(pk=noop.using(priority=-9).enqueue().pk)
    with django_assert_num_queries(2):
        explain(job)
    ended = Job(status="succeeded", finished_at=timezone.now())
    with django_assert_num_queries(1):
        explain(ended)


def test_hostile_names_stay_texts() -> None:
    evil = "%(name)s %s {} <b>\x1b[2J"
    register_worker(evil, queues=["default"])
    job = noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = %s", [evil])
    job_operations.pause(["default"], reason=evil)
    assert f": {evil}. Also: " in sentence(job)
    assert evil in plain(gate(job, "workers").text)
    assert of(job).as_dict()["gates"]
    assert RunTotal.objects.count() == 0
