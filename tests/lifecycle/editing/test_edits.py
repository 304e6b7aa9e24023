"""An edit changes a job that has not started, or a dead one, or is refused with the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from pytest_django import Settings

from django_jobs import (
    EnqueueError,
    OperationRefused,
    PayloadError,
    UnknownQueue,
    enqueue_many,
)
from django_jobs.api.editing import edit_job
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.editing import edits
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import quarantines
from django_jobs.lifecycle.promoting import promote
from django_jobs.models import Job, Queue, Resource, Run, UniqueKey
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.app.jobs import add, noop
from tests.factories import (
    analyze,
    claim_ready,
    declared,
    enqueue_and_claim,
    explain,
    failure,
    in_threads,
    listening,
    make_dead,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.operations.test_workflows import with_approval
from tests.workflows import start_graph, step

pytestmark = pytest.mark.django_db

LATER = datetime(2999, 1, 1, tzinfo=UTC) - timedelta(days=365 * 970)


def soon(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def test_the_payload_of_a_ready_job_is_changed_in_place() -> None:
    job = add.using(idempotency_key="k", headers={"trace": "t"}).enqueue(1)
    report = edit_job(
        job.pk,
        payload={"first": 7, "second": 8},
        actor=make_user("edit_job", "view_job_payload"),
        reason="a typo",
    )
    assert (report.done, report.refused) == ([job.pk], {})
    stored = Job.objects.get()
    assert (stored.payload, stored.status) == ({"first": 7, "second": 8}, "ready")
    assert (stored.rank, stored.available_at, stored.idempotency_key) == (
        pytest.approx(job.rank, abs=1e-3),
        job.available_at,
        "k",
    )
    assert stored.headers["trace"] == "t"
    (entry,) = stored.headers["edits"]
    assert (entry["by"], entry["why"], entry["changed"]) == ("olga", "a typo", ["payload"])
    assert (entry["before"], entry["after"]) == ({"payload": {"first": 1}}, {})
    (held,) = claim_ready(register_worker())
    assert held.payload == '{"first": 7, "second": 8}'


def test_queue_priority_and_due_time_are_changed_and_the_rank_follows() -> None:
    Queue.objects.filter(name="bulk").update(priority_weight=10)
    job = add.using(delay=60).enqueue(1)
    at = soon(2)
    edit_job(job.pk, queue="bulk", priority=7, run_at=at)
    stored = Job.objects.get()
    assert (stored.queue, stored.priority, stored.available_at) == ("bulk", 7, at)
    assert stored.rank == pytest.approx(at.timestamp() - 70, abs=1e-3)
    assert stored.payload == {"first": 1}
    (entry,) = stored.headers["edits"]
    assert entry["changed"] == ["queue", "priority", "due"]
    due = job.available_at.isoformat()
    assert entry["before"] == {"queue": "default", "priority": 0, "due": due}
    assert entry["after"] == {"queue": "bulk", "priority": 7, "due": at.isoformat()}


def test_a_scheduled_job_that_becomes_due_is_ready_and_a_ready_one_can_be_put_off() -> None:
    job = add.using(delay=3600).enqueue(1)
    edit_job(job.pk, run_at=soon(-1))
    assert Job.objects.get().status == "ready"
    edit_job(job.pk, run_at=soon(1))
    assert Job.objects.get().status == "scheduled"
    assert claim_ready(register_worker()) == []
    assert promote()[0] == 0


def test_a_dead_job_is_changed_and_replayed_and_keeps_its_runs() -> None:
    dead = make_dead(add, 1, priority=4)
    actor = make_user("edit_job", "replay_job", "view_job_payload")
    report = edit_job(dead.pk, payload={"first": 2}, actor=actor, reason="wrong number")
    assert report.done == [dead.pk]
    job = Job.objects.get()
    assert (job.status, job.payload, job.replays, job.failures) == ("ready", {"first": 2}, 1, 0)
    assert job.rank == pytest.approx(job.available_at.timestamp() - 240, abs=1e-3)
    assert job.headers["replays"][0]["why"] == "wrong number"
    assert Run.objects.count() == 1
    assert claim_ready(register_worker())[0].attempt == 2


def test_a_dead_job_can_be_replayed_later_in_another_queue() -> None:
    dead, at = make_dead(add, 1), soon(3)
    edit_job(dead.pk, queue="bulk", run_at=at)
    job = Job.objects.get()
    assert (job.status, job.queue, job.available_at) == ("scheduled", "bulk", at)
    assert job.rank == pytest.approx(at.timestamp(), abs=1e-3)


def test_a_job_that_runs_or_has_ended_or_is_gone_is_refused_and_stays() -> None:
    running = enqueue_and_claim(add, 1)
    assert edit_job(running.id, payload={"first": 2}).refused == {running.id: "it is running"}
    done = add.using(delay=60).enqueue(1)
    run_sql(
        "UPDATE django_jobs_job SET status = 'cancelled', finished_at = now() WHERE id = %s",
        [done.pk],
    )
    assert edit_job(done.pk, priority=1).refused == {done.pk: "it is cancelled"}
    run_sql(  # which Python cannot read
        "UPDATE django_jobs_job SET result = %s::jsonb WHERE id = %s", ["9" * 5000, done.pk]
    )
    assert edit_job(done.pk, priority=1).refused == {done.pk: "it is cancelled"}
    assert edit_job(10**15, priority=1).refused == {10**15: "there is no such job"}
    assert set(Job.objects.values_list("payload__first", flat=True)) == {1}


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"payload": {"fist": 1}}, PayloadError),
        ({"payload": {"first": float("nan")}}, PayloadError),
        ({"payload": {"first": "x" * 2_000_000}}, PayloadError),
        ({"payload": {"first": "\0"}}, PayloadError),
        ({"queue": "nowhere"}, UnknownQueue),
        ({"priority": 101}, EnqueueError),
        ({"priority": True}, EnqueueError),
        ({"run_at": datetime(2031, 1, 1)}, EnqueueError),
    ],
)
@pytest.mark.parametrize("make", [lambda: add.enqueue(1), lambda: make_dead(add, 1)])
def test_what_an_enqueue_refuses_an_edit_refuses_too(
    changes: dict[str, Any], error: type[Exception], make: Any
) -> None:
    job = make()
    before = Job.objects.values().get()
    with pytest.raises(error):
        edit_job(job.pk, **changes)
    assert Job.objects.values().get() == before


def test_an_edit_that_changes_nothing_is_refused_but_1_is_not_true() -> None:
    job = add.enqueue(1)
    same = edit_job(job.pk, payload={"first": 1}, queue="default", priority=0)
    assert same.refused == {job.pk: "nothing was changed"}
    assert edit_job(job.pk, payload={"first": True}).done == [job.pk]


def test_a_job_without_a_handler_is_refused() -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.gone'")
    with pytest.raises(EnqueueError, match=r"no handler is registered for 'app\.gone'"):
        edit_job(job.pk, priority=1)


def test_each_permission_is_demanded() -> None:
    dead, ready = make_dead(add, 1), add.enqueue(1)
    everything = ("edit_job", "replay_job", "view_job_payload")
    wanted = [
        (ready.pk, {"priority": 1}, {"edit_job"}),
        (ready.pk, {"payload": {"first": 2}}, {"edit_job", "view_job_payload"}),
        (dead.pk, {"priority": 1}, {"edit_job", "replay_job"}),
        (dead.pk, {"payload": {"first": 2}}, set(everything)),
    ]
    for id_, changes, needed in wanted:
        for left_out in needed:
            user = make_user(*set(everything) - {left_out}, name=f"no {left_out} {id_} {changes}")
            with pytest.raises(PermissionDenied, match=left_out):
                edit_job(id_, actor=user, **changes)
    assert Job.objects.get(pk=dead.pk).status == "dead"
    assert Job.objects.get(pk=ready.pk).payload == {"first": 1}
    for id_, changes, needed in wanted[:2]:
        assert edit_job(id_, actor=make_user(*needed, name=str(needed)), **changes).done


def test_an_edit_of_a_wait_needs_the_permission_of_the_step_besides() -> None:
    demanded = "django_jobs.replay_job"
    job = step(with_approval(demanded), "approval")
    may = "edit_job", "view_job_payload"
    at_once = {**job.payload, "timeout": 0, "on_timeout": "continue"}
    ada = make_user(*may, name="ada")
    with pytest.raises(PermissionDenied, match=demanded):
        edit_job(job.pk, payload=at_once, actor=ada)
    assert edit_job(job.pk, priority=1, actor=ada).done
    assert edit_job(job.pk, payload=at_once, actor=make_user(*may, "replay_job", name="eve")).done


def test_a_key_that_is_held_in_the_other_queue_refuses_the_move() -> None:
    job = add.using(idempotency_key="k").enqueue(1)
    holder = add.using(idempotency_key="k", queue="bulk").enqueue(1)
    report = edit_job(job.pk, queue="bulk")
    assert report.refused == {job.pk: f"job {holder.pk} holds its key in the queue bulk"}
    run_sql("UPDATE django_jobs_job SET queue = 'default' WHERE false")
    dead = make_dead(add, 1, idempotency_key="other")
    taken = add.using(idempotency_key="other").enqueue(1)
    report = edit_job(dead.pk, payload={"first": 5})
    assert f"job {taken.pk} (ready) holds its idempotency key" in report.refused[dead.pk]
    stored = Job.objects.get(pk=dead.pk)
    assert (stored.status, stored.payload, stored.headers) == ("dead", {"first": 1}, {})


def test_the_state_is_no_hash_that_others_can_compute(settings: Settings) -> None:
    job = add.enqueue(1)
    ((plain,),) = run_sql(f"SELECT {edits.STATE} FROM django_jobs_job AS job")
    seen = edits.stored_job(job.pk)
    settings.SECRET_KEY = "another"
    other = edits.stored_job(job.pk)
    assert seen is not None
    assert other is not None
    assert len({plain, seen.state, other.state}) == 3


def test_a_key_that_is_unique_for_a_time_goes_with_its_job() -> None:
    unique = add.using(idempotency_key="k", unique_for=3_600)
    job = unique.enqueue(1)
    run_sql(
        "INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)"
        " VALUES ('bulk', 'k', 'app.add', 1, now() - interval '1 s')"
    )
    assert edit_job(job.pk, queue="bulk").done == [job.pk]
    settle_one(claim_ready(register_worker(), queue="bulk")[0], Succeeded())
    assert unique.using(queue="bulk").enqueue(2).pk == job.pk
    assert unique.enqueue(3).pk != job.pk


def test_a_key_that_is_still_unique_in_the_other_queue_refuses_the_move() -> None:
    ended = add.using(idempotency_key="k", unique_for=3_600, queue="bulk").enqueue(1)
    settle_one(claim_ready(register_worker(), queue="bulk")[0], Succeeded())
    job = add.using(idempotency_key="k", unique_for=3_600).enqueue(1)
    report = edit_job(job.pk, queue="bulk")
    assert report.refused == {job.pk: "another job holds its key in the queue bulk"}
    assert Job.objects.get(pk=job.pk).queue == "default"
    assert UniqueKey.objects.get(queue="bulk").job_id == ended.pk


def test_a_job_that_changed_since_it_was_looked_at_is_refused() -> None:
    job = add.enqueue(1)
    stored = edits.stored_job(job.pk)
    assert stored is not None
    edit_job(job.pk, priority=5)
    report = edit_job(job.pk, payload={"first": 2}, state=stored.state)
    assert report.refused == {job.pk: "it was changed meanwhile"}
    stored = edits.stored_job(job.pk)
    assert stored is not None
    assert edit_job(job.pk, payload={"first": 2}, state=stored.state).done


def test_a_due_time_after_the_maximum_age_is_refused() -> None:
    with declared(lambda_of(), name="app.aged", max_age=60) as aged:
        job = aged.enqueue(1)
        assert edit_job(job.pk, run_at=soon(1)).refused == {job.pk: "it expires before that time"}


def lambda_of() -> Any:
    def aged(number: int) -> None: ...

    return aged


def test_gates_that_follow_from_the_payload_follow_from_the_new_one() -> None:
    job = charge_account.enqueue(7)
    admit({"default": 10}, FairShares())
    assert Job.objects.get().status == "ready"
    edit_job(job.pk, payload={"account_id": 7, "amount": 2})
    assert Job.objects.get().status == "ready"  # the same gates: it keeps its slot
    edit_job(job.pk, payload={"account_id": 8, "amount": 2})
    stored = Job.objects.get()
    assert (stored.status, stored.concurrency_key) == ("blocked", "account:8")
    admit({"default": 10}, FairShares())
    assert claim_ready(register_worker())[0].id == job.pk


def test_gates_that_the_request_named_stay() -> None:
    Resource.objects.create(name="stripe")
    named = add.using(concurrency_key="mine").enqueue(1)
    edit_job(named.pk, payload={"first": 2})
    assert Job.objects.get(pk=named.pk).concurrency_key == "mine"
    used = refund_payment.enqueue(1)
    edit_job(used.pk, payload={"payment_id": 2})
    assert Job.objects.get(pk=used.pk).resources == ["stripe"]


def test_a_job_whose_key_is_unique_within_its_tenant_stays_with_it() -> None:
    job = bill_tenant.using(idempotency_key="k", key_scope="tenant").enqueue("globex")
    report = edit_job(job.pk, payload={"tenant_id": "acme"})
    assert report.refused == {job.pk: "its key is unique within its tenant, which stays"}
    edit_job(job.pk, priority=5)
    assert (Job.objects.get().priority, Job.objects.get().tenant) == (5, "globex")


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_a_tenant_takes_its_turns_in_the_new_queue(tenant: str | None) -> None:
    job = (bill_tenant if tenant is None else bill_tenant.using(tenant=tenant)).enqueue("globex")
    edit_job(job.pk, queue="bulk")
    stored = Job.objects.get()
    assert stored.tenant == (tenant or "globex")
    assert '"bulk"' in str(stored.gates)
    admit({"bulk": 10}, FairShares())
    assert claim_ready(register_worker(queues=["bulk"]), "bulk")[0].id == job.pk


def test_a_quarantined_job_stays_blocked() -> None:
    job = add.enqueue(1)
    quarantines.quarantine("app.add", reason="eats")
    quarantines.block("default")
    edit_job(job.pk, payload={"first": 2})
    assert (Job.objects.get().status, Job.objects.get().reason) == ("blocked", "quarantined")
    edit_job(job.pk, run_at=soon(1))
    assert (Job.objects.get().status, Job.objects.get().reason) == ("scheduled", "")


def test_the_headers_remember_the_latest_edits() -> None:
    job = add.enqueue(1)
    for number in range(edits.MOST_EDITS + 5):
        edit_job(job.pk, payload={"first": number + 2}, by="ada@host", reason=str(number))
    remembered = Job.objects.get().headers["edits"]
    assert [one["why"] for one in remembered] == [str(n) for n in range(5, edits.MOST_EDITS + 5)]
    assert remembered[0]["by"] == "ada@host"


@pytest.mark.parametrize("headers", ["[1]", "7", '{"edits": 7}'])
def test_odd_headers_of_a_row_break_nothing(headers: str) -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET headers = %s", [headers])
    report = edit_job(job.pk, priority=1)
    assert bool(report.done) is headers.startswith("{")


def test_a_payload_that_python_cannot_read_can_be_replaced() -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET payload = %s", ['{"first": ' + "9" * 5001 + "}"])
    assert edit_job(job.pk, payload={"first": 2}).done
    assert Job.objects.get().payload == {"first": 2}


@pytest.mark.parametrize(
    "payload",
    [
        '{"first": "' + "x" * edits.MOST_KEPT + '"}',
        '{"first": ' + "9" * 5001 + "}",
        '{"first": ' + "[" * 5000 + "]" * 5000 + "}",
        '{"first": ' + "[" * 64 + "]" * 64 + "}",
    ],
)
def test_a_payload_that_would_make_the_headers_large_or_unreadable_is_not_kept(
    payload: str,
) -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET payload = %s", [payload])
    assert edit_job(job.pk, payload={"first": 2}).done
    assert Job.objects.get().headers["edits"][0]["before"] == {"payload": None}


@pytest.mark.django_db(transaction=True)
def test_workers_of_the_queue_are_woken() -> None:
    job = add.using(delay=3600).enqueue(1)
    with listening() as received:
        edit_job(job.pk, queue="bulk", run_at=soon(-1))
        assert received() == ["bulk"]


def test_job_edit_changes_the_instance_and_raises_what_an_operation_reports() -> None:
    job = add.using(delay=60).enqueue(1)
    job.edit(payload={"first": 2}, priority=3, reason="by hand")
    assert (job.payload, job.priority) == ({"first": 2}, 3)
    held = enqueue_and_claim(noop)
    with pytest.raises(OperationRefused, match=f"job {held.id}: it is running"):
        Job.objects.get(pk=held.id).edit(priority=1)


@pytest.mark.django_db(transaction=True)
def test_of_a_claim_and_an_edit_at_once_one_sees_the_other() -> None:
    ids = enqueue_many(add, [{"first": 0}] * 200)
    worker = register_worker()

    def work(number: int) -> dict[int, Any]:
        if number:
            claimed: dict[int, Any] = {}
            while len(claimed) < len(ids) // 2:
                claimed |= {one.id: one.payload for one in claim_ready(worker, limit=3)}
            return claimed
        return {id_: edit_job(id_, payload={"first": 1}) for id_ in reversed(ids)}

    reports, claimed = in_threads(2, work)
    payloads = dict(Job.objects.values_list("pk", "payload"))
    for id_, report in reports.items():
        if report.done:
            assert payloads[id_] == {"first": 1}
        else:
            assert report.refused == {id_: "it is running"}
            assert payloads[id_] == {"first": 0}
    for id_, payload in claimed.items():
        assert json.loads(payload) == payloads[id_]
    assert any(report.done for report in reports.values())


@pytest.mark.django_db(transaction=True)
def test_of_several_edits_of_what_one_has_seen_one_is_done() -> None:
    dead = make_dead(add, 1)
    stored = edits.stored_job(dead.pk)
    assert stored is not None

    def work(number: int) -> bool:
        return bool(edit_job(dead.pk, payload={"first": number + 2}, state=stored.state).done)

    assert sorted(in_threads(4, work)) == [False, False, False, True]
    job = Job.objects.get()
    assert (job.status, job.replays, len(job.headers["edits"])) == ("ready", 1, 1)


def test_a_retried_job_keeps_its_counters() -> None:
    held = enqueue_and_claim(add, 1)
    settle_one(held, failure())
    edit_job(held.id, payload={"first": 2})
    job = Job.objects.get()
    assert (job.status, job.failures, job.attempt) == ("scheduled", 1, 1)


def test_a_dead_step_is_edited_and_its_run_goes_on() -> None:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    settle_one(held, failure(final=True))
    assert edit_job(held.id, priority=3, run_at=soon(1)).refused == {
        held.id: "its workflow run decides when the step is due"
    }
    assert edit_job(held.id, priority=3).done == [held.id]
    step = Job.objects.get(pk=held.id)
    assert (step.status, step.priority, step.step) == ("ready", 3, "a")
    run.refresh_from_db()
    assert run.status == "running"
    assert Job.objects.get(step="b").status == "waiting"


@pytest.mark.parametrize("statement", [edits.LOCK, edits.EDIT, edits.POSTPONE])
@pytest.mark.usefixtures("fresh_tables")
def test_the_statements_find_the_job_by_primary_key(statement: str) -> None:
    enqueue_many(add, [{"first": 0}] * 300)
    analyze("django_jobs_job_live")
    parameters = dict.fromkeys(
        ("payload", "payload_version", "tenant", "concurrency_key", "resources", "gates", "run_at")
    )
    parameters |= {"before": "{}", "after": "{}"}
    values = {"id": 7, "by": "", "why": "", "changed": "[]", "queue": "bulk", "weight": 1.0}
    nodes = explain(statement, {**parameters, **values, "priority": 0, "run_at": LATER})
    reads = [node for node in nodes if "Scan" in node["Node Type"] and "Relation Name" in node]
    assert {node["Relation Name"] for node in reads} == {"django_jobs_job_live"}
    assert {node["Index Name"] for node in nodes if "Index Name" in node} == {
        "django_jobs_job_pkey"
    }
    assert not [node for node in reads if node["Node Type"] == "Seq Scan"]
