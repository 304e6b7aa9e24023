"""ready -> running: in order, once, within the limits."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_jobs import enqueue_many
from django_jobs.domain.outcomes import Lost, Succeeded
from django_jobs.lifecycle import reaping, workers
from django_jobs.lifecycle.claiming import START, Slots, claimed_by
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending
from django_jobs.lifecycle.settling_rows import settle_row_by_row
from django_jobs.models import Job, Queue, Run
from tests.app.async_jobs import noop_async
from tests.app.jobs import add, noop
from tests.factories import claim_ready, failure, in_threads, register_worker, run_sql, settle_one

pytestmark = pytest.mark.django_db


def ids_of(held: list) -> list[int]:  # type: ignore[type-arg]
    return [one.id for one in held]


def test_a_claimed_job_is_running_for_its_worker_with_its_attempt_counted() -> None:
    enqueued = add.using(idempotency_key="k", headers={"trace": "t"}).enqueue(1)
    worker = register_worker()
    (held,) = claim_ready(worker)
    stored = Job.objects.get()
    assert (stored.status, stored.worker_id, stored.attempt) == ("running", worker, 1)
    assert stored.claimed_at is not None
    assert stored.started_at is None
    assert (held.id, held.attempt, held.worker) == (enqueued.pk, 1, worker)
    assert (held.queue, held.job_type, held.idempotency_key) == ("default", "app.add", "k")
    assert held.payload == '{"first": 1}'
    assert held.headers == '{"trace": "t"}'
    assert held.claimed_at == pytest.approx(stored.claimed_at.timestamp(), abs=0.01)
    assert not held.is_suspect
    assert not held.cancel_requested


def test_jobs_are_ordered_by_priority_then_age() -> None:
    low, first, second, high = (
        noop.using(priority=priority).enqueue().pk for priority in (-5, 0, 0, 5)
    )
    assert ids_of(claim_ready(register_worker())) == [high, first, second, low]


def test_a_claim_with_a_limit_takes_the_first_ranks() -> None:
    ids = [noop.using(priority=priority).enqueue().pk for priority in (1, 3, 2)]
    assert ids_of(claim_ready(register_worker(), limit=2)) == [ids[1], ids[2]]


def test_waiting_raises_priority_unless_a_queue_is_strict() -> None:
    old = noop.using(run_at=timezone.now() - timedelta(minutes=11)).enqueue().pk
    fresh = noop.using(priority=10).enqueue().pk
    fresher = noop.using(priority=12).enqueue().pk
    assert ids_of(claim_ready(register_worker())) == [fresher, old, fresh]


def test_no_wait_makes_up_for_priority_in_a_strict_queue() -> None:
    strict = noop.using(queue="strict")
    old = strict.using(run_at=timezone.now() - timedelta(days=365)).enqueue().pk
    fresh = strict.using(priority=1).enqueue().pk
    assert ids_of(claim_ready(register_worker(), "strict")) == [fresh, old]


def test_a_claim_takes_one_queue_only() -> None:
    noop.enqueue()
    bulk = noop.using(queue="bulk").enqueue()
    assert ids_of(claim_ready(register_worker(), "bulk")) == [bulk.pk]


def test_jobs_of_types_that_the_worker_does_not_know_are_left_for_others() -> None:
    noop.enqueue()
    known = add.enqueue(1)
    worker = register_worker()
    assert ids_of(claim_ready(worker, job_types={"app.add": 1})) == [known.pk]
    assert Job.objects.get(job_type="app.noop").status == "ready"
    assert claim_ready(worker, job_types={}) == []


def test_scheduled_jobs_are_not_claimed() -> None:
    noop.using(delay=100).enqueue()
    assert claim_ready(register_worker()) == []


def test_a_paused_queue_gives_nothing_until_it_is_resumed() -> None:
    noop.enqueue()
    worker = register_worker()
    job_operations.pause(["default"])
    assert claim_ready(worker) == []
    assert claim_ready(worker, limited=True) == []
    job_operations.resume(["default"])
    assert len(claim_ready(worker)) == 1


def test_a_queue_without_a_row_gives_nothing() -> None:
    noop.enqueue()
    Queue.objects.filter(name="default").delete()
    worker = register_worker()
    assert claim_ready(worker) == []
    assert claim_ready(worker, limited=True) == []


def test_a_lost_or_ended_worker_claims_nothing() -> None:
    noop.enqueue()
    lost, ended = register_worker(lease=-1), register_worker()
    reaping.reap()
    workers.end(ended)
    assert claim_ready(lost) == []
    assert claim_ready(ended) == []
    assert claim_ready(10**12) == []


def test_a_draining_worker_may_still_claim() -> None:
    noop.enqueue()
    worker = register_worker()
    workers.mark_draining([worker])
    assert len(claim_ready(worker)) == 1


def test_a_claim_continues_after_the_given_position() -> None:
    ids = [noop.enqueue().pk for _ in range(4)]
    worker = register_worker()
    first = claim_ready(worker, limit=2)
    assert ids_of(first) == ids[:2]
    before = noop.using(priority=50).enqueue().pk
    assert ids_of(claim_ready(worker, after=first[-1].position)) == ids[2:]
    assert ids_of(claim_ready(worker, after=START)) == [before]


def test_claimed_by_returns_the_jobs_as_the_claim_did() -> None:
    for number in range(3):
        add.enqueue(number)
    worker = register_worker()
    claimed = claim_ready(worker)
    settle_one(claimed[0], Succeeded())
    # ``claimed_at`` and ``taken_at`` are when the row was read.
    read = [one._replace(claimed_at=0, taken_at=0) for one in claimed_by(worker)]
    assert read == [one._replace(claimed_at=0, taken_at=0) for one in claimed[1:]]
    assert ids_of(claimed_by(worker, [claimed[2].id, claimed[0].id])) == [claimed[2].id]
    assert claimed_by(register_worker()) == []


def test_a_job_whose_process_died_is_a_suspect_at_its_next_claim() -> None:
    noop.enqueue()
    worker = register_worker()
    settle_one(claim_ready(worker)[0], Lost(reason="SIGKILL"))
    (again,) = claim_ready(worker)
    assert again.is_suspect
    assert (again.attempt, again.crashes) == (2, 1)


def test_threads_get_the_suspects_of_async_types_and_the_loop_the_others() -> None:
    worker = register_worker()
    plain, healthy, suspect = noop.enqueue(), noop_async.enqueue(), noop_async.enqueue()
    plain_suspect = noop.enqueue()
    Job.objects.filter(pk__in=[suspect.pk, plain_suspect.pk]).update(crashes=1)
    names = [noop_async.name]
    for_loop = claim_ready(worker, job_types={noop_async.name: 1}, slots=Slots.LOOP)
    assert [held.id for held in for_loop] == [healthy.pk]
    for_threads = claim_ready(worker, slots=Slots.THREADS, async_types=names)
    assert [held.id for held in for_threads] == [plain.pk, suspect.pk, plain_suspect.pk]


def test_a_row_with_an_invalid_backoff_uses_the_default() -> None:
    job = noop.enqueue()
    run_sql("UPDATE django_jobs_job SET backoff = '[1, 2]' WHERE id = %s", [job.pk])
    (held,) = claim_ready(register_worker())
    assert held.facts().backoff is None


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_is_skipped() -> None:
    locked, free = noop.enqueue(), noop.enqueue()
    worker = register_worker()
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=locked.pk)
        (claimed,) = in_threads(1, lambda _: claim_ready(worker))
    assert ids_of(claimed) == [free.pk]


@pytest.mark.django_db(transaction=True)
def test_eight_threads_take_each_job_once() -> None:
    ids = enqueue_many("app.noop", [{}] * 400)

    def take_all(number: int) -> list[int]:
        worker, taken = register_worker(f"w{number}"), []
        while held := claim_ready(worker, limit=7):
            taken += ids_of(held)
        return taken

    taken = [id_ for each in in_threads(8, take_all) for id_ in each]
    assert sorted(taken) == ids
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


def test_a_row_with_the_highest_attempt_blocks_no_claim() -> None:
    """``attempt`` is a 32-bit column. Only a row that was written by hand gets there."""
    poisoned, healthy = (noop.enqueue().pk for _ in range(2))
    run_sql("UPDATE django_jobs_job SET attempt = 2147483647 WHERE id = %s", [poisoned])
    worker = register_worker()
    held = claim_ready(worker)
    assert [(job.id, job.attempt) for job in held] == [(poisoned, 2147483647), (healthy, 1)]
    settle_one(held[0], failure())
    run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE id = %s", [poisoned])
    (again,) = claim_ready(worker)
    (ended,) = settle_row_by_row([Ending(again, Succeeded())])
    assert ended.decision is not None
    job = Job.objects.get(pk=poisoned)
    assert (job.status, ended.decision.status) == ("dead", "dead")
    assert job.reason.startswith("its end could not be written: ")
    assert "duplicate key" in job.reason
    assert Run.objects.filter(job_id=poisoned).count() == 1


@pytest.mark.parametrize("compressible", [True, False])
def test_a_claim_is_limited_in_bytes(compressible: bool) -> None:
    """Counted as text, however little the table takes for it; and small ones are no exception."""
    ids = enqueue_many("app.write_effect", [{"note": text_of(10, compressible)}] * 5)
    ids += enqueue_many("app.write_effect", [{"note": text_of(300_000, compressible)}] * 10)
    worker, most = register_worker(), 3 * 2**20
    held = claim_ready(worker, most_bytes=most)
    assert ids_of(held) == ids[: len(held)]
    taken = sum(len(job.payload) for job in held)
    assert most / 4 < taken <= most
    rest = claim_ready(worker, after=held[-1].position)
    assert ids_of(rest) == ids[len(held) :]


@pytest.mark.parametrize("compressible", [True, False])
def test_headers_count_in_the_bytes_of_a_claim(compressible: bool) -> None:
    ids = enqueue_many("app.noop", [{}] * 5)
    ids += enqueue_many("app.noop", [{}] * 10, headers={"note": text_of(300_000, compressible)})
    worker, most = register_worker(), 3 * 2**20
    held = claim_ready(worker, most_bytes=most)
    assert ids_of(held) == ids[: len(held)]
    assert most / 4 < sum(job.bytes for job in held) <= most
    assert ids_of(claim_ready(worker, after=held[-1].position)) == ids[len(held) :]


@pytest.mark.parametrize(("limit", "counts"), [(3, False), (4, True)])
def test_bytes_are_counted_only_if_the_limit_could_be_exceeded(limit: int, counts: bool) -> None:
    noop.enqueue()
    worker = register_worker()
    with CaptureQueriesContext(connection) as queries:
        assert claim_ready(worker, limit=limit, most_bytes=3 * 2**20)
    (claim,) = (query for query in queries if "RETURNING" in query["sql"])
    assert ("sum(bytes)" in claim["sql"]) == counts


def test_a_payload_above_the_byte_limit_is_claimed_alone() -> None:
    ids = enqueue_many("app.write_effect", [{"note": text_of(300_000, False)}] * 2)
    worker = register_worker()
    assert [ids_of(claim_ready(worker, most_bytes=most)) for most in (1_000, 0, 0)] == [
        ids[:1],
        ids[1:],
        [],
    ]


def test_a_compressed_payload_of_megabytes_stops_no_claim() -> None:
    ids = enqueue_many("app.noop", [{}] * 2)
    text = text_of(12_000_000, False)
    twice = "".join(2 * text[at : at + 60] for at in range(0, len(text), 60))
    run_sql(  # 256 times what it takes is more than an integer of 32 bits holds
        "UPDATE django_jobs_job SET payload = jsonb_build_object('note', %s::text) WHERE id = %s",
        [twice, ids[0]],
    )
    assert ids_of(claim_ready(register_worker(), most_bytes=1_000)) == ids[:1]


def text_of(size: int, compressible: bool) -> str:
    return "x" * size if compressible else random.Random(size).randbytes(size // 2).hex()


@pytest.mark.parametrize(
    "poison",
    [
        "failures = 2147483647, max_attempts = 2147483647",
        "crashes = 32767",
        "rank = 'NaN'",
        "rank = '-infinity'",
        "rank = 'infinity'",
        "available_at = 'infinity'",
        "payload_version = 32767",
        "timeout = 'NaN'",
    ],
)
def test_a_row_with_odd_numbers_affects_only_itself(poison: str) -> None:
    """Claimed, failed or left; the others of its queue are claimed and settled."""
    poisoned, *healthy = (noop.enqueue().pk for _ in range(4))
    run_sql(f"UPDATE django_jobs_job SET {poison} WHERE id = %s", [poisoned])
    worker, after, held = register_worker(), START, []
    while got := claim_ready(worker, limit=2, after=after):
        held, after = held + got, got[-1].position
    assert {job.id for job in held} >= set(healthy)
    settle_row_by_row(
        [Ending(job, failure() if job.id == poisoned else Succeeded()) for job in held]
    )
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert [statuses[pk] for pk in healthy] == ["succeeded"] * 3
    assert statuses[poisoned] in ("ready", "dead", "scheduled")
