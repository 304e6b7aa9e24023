"""Operations on all jobs that match: chunk by chunk, each job once, and why some were left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.exceptions import OperationRefused
from django_jobs.lifecycle.operations import bulk
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.maintenance import bulk_operations
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.maintenance.retention import Retention
from django_jobs.models import BulkOperation, Job
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    copies_of,
    enqueue_and_claim,
    failure,
    in_threads,
    make_dead,
    make_user,
    open_elsewhere,
    register_worker,
    run_sql,
    settle_one,
)
from tests.moments import moment

pytestmark = pytest.mark.django_db


def run_all(most: int = 50) -> BulkOperation:
    """Run chunks, without the rest between them, until the operation ends."""
    for _ in range(most):
        BulkOperation.objects.update(next_at="2026-01-01T00:00:00Z")
        if not run_chunk():
            break
    return BulkOperation.objects.latest("id")


def statuses() -> dict[str, int]:
    counts: dict[str, int] = {}
    for status in Job.objects.values_list("status", flat=True):
        counts[status] = counts.get(status, 0) + 1
    return counts


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_operations, "CHUNK", 10)
    monkeypatch.setattr(bulk_operations, "REPLAYED", 10)


@pytest.mark.usefixtures("small_chunks")
def test_all_matching_jobs_are_cancelled_in_chunks_and_no_others() -> None:
    noop.enqueue_many({} for _ in range(25))
    noop.using(queue="bulk").enqueue_many({} for _ in range(5))
    bulk.start("cancel", {"queue": "default"}, reason="no longer needed")
    noop.enqueue()
    assert run_chunk() == 1
    operation = BulkOperation.objects.get()
    assert (operation.status, operation.matched, operation.done) == ("running", 25, 10)
    operation = run_all()
    assert (operation.status, operation.done, operation.left) == ("completed", 25, 0)
    assert statuses() == {"cancelled": 25, "ready": 6}
    assert Job.objects.filter(status="cancelled").first().reason == "no longer needed"  # type: ignore[union-attr]


def test_an_operation_rests_between_two_chunks() -> None:
    noop.enqueue()
    bulk.start("cancel", {"queue": "default"})
    assert [run_chunk(), run_chunk()] == [1, 0]


def test_what_was_left_is_counted_by_its_reason_and_named() -> None:
    dead = make_dead().pk
    running = enqueue_and_claim().id
    ready = noop.enqueue().pk
    bulk.start("reprioritize", {"job_type": "app.noop"}, arguments={"priority": 7})
    operation = run_all()
    assert (operation.done, operation.left) == (1, 2)
    assert operation.reasons == {
        "it is running": {"count": 1, "jobs": [running]},
        "it is dead": {"count": 1, "jobs": [dead]},
    }
    assert Job.objects.get(pk=ready).priority == 7


def test_reasons_that_differ_in_names_are_one() -> None:
    for key in ("a", "b"):
        make_dead(noop, idempotency_key=key)
    for key in ("a", "b"):
        noop.using(idempotency_key=key).enqueue()
    bulk.start("replay", {"status": "dead"})
    assert run_all().reasons.keys() == {"job … (ready) holds its idempotency key …"}


def test_scheduled_jobs_are_made_ready() -> None:
    noop.using(delay=900).enqueue_many({} for _ in range(3))
    bulk.start("run_now", {"status": "scheduled"})
    assert run_all().done == 3
    assert statuses() == {"ready": 3}


def test_who_and_why_are_stored_with_replayed_jobs() -> None:
    dead = make_dead()
    ada = make_user("replay_job", name="ada")
    bulk.start(
        "replay", {"error": dead.runs.get().fingerprint}, actor=ada, reason="partner is back"
    )
    assert run_all().done == 1
    dead.refresh_from_db()
    (replay,) = dead.headers["replays"]
    assert (dead.status, replay["by"], replay["why"]) == ("ready", "ada", "partner is back")


@pytest.mark.parametrize(
    "terms",
    [
        {"ids": [1, 2]},
        {"status": "ready"},
        {"queue": "bulk"},
        {"job_type": "app.add"},
        {"key": "k"},
        {"tenant": "acme"},
        {"created_since": "2999-01-01T00:00:00+00:00"},
        {"error": "f" * 16},
        {"code": "503"},
        {"schedule": 5},
        {"workflow_run": 5},
        {"finished_since": "2026-01-01T00:00:00+00:00"},
    ],
    ids=lambda terms: next(iter(terms)),
)
def test_each_term_leaves_the_jobs_of_which_it_is_not_true(terms: dict[str, Any]) -> None:
    other = noop.using(delay=900).enqueue()
    bulk.start("cancel", terms)
    assert run_all().status == "completed"
    other.refresh_from_db()
    assert other.status == "scheduled"


@pytest.mark.parametrize(
    "column, term, value",
    [
        ("queue", "queue", "bulk"),
        ("tenant", "tenant", "acme"),
        ("schedule_id", "schedule", 5),
        ("workflow_run_id", "workflow_run", 5),
        ("idempotency_key", "key", "k"),
    ],
)
def test_each_term_finds_the_jobs_of_which_it_is_true(column: str, term: str, value: Any) -> None:
    mine = noop.enqueue()
    run_sql(f"UPDATE django_jobs_job_live SET {column} = %s", [value])
    bulk.start("reprioritize", {term: value}, arguments={"priority": 3})
    assert run_all().done == 1
    assert Job.objects.get(pk=mine.pk).priority == 3


def test_an_operation_without_a_term_or_with_an_unknown_one_is_refused() -> None:
    for terms in ({}, {"payload__x": 1}, {"queue": "a\0b"}, {"ids": ["1 OR 1=1"]}, {"status": "x"}):
        with pytest.raises(OperationRefused):
            bulk.start("cancel", terms)
    with pytest.raises(OperationRefused, match="'delete'"):
        bulk.start("delete", {"queue": "default"})
    for arguments in ({}, {"priority": 101}, {"priority": 1, "x": 1}):
        with pytest.raises(OperationRefused, match="arguments"):
            bulk.start("reprioritize", {"queue": "default"}, arguments=arguments)


def test_values_of_terms_are_no_sql() -> None:
    noop.enqueue()
    bulk.start("cancel", {"queue": "' OR true --", "job_type": "%(x)s; DROP TABLE"})
    assert run_all().status == "completed"
    assert statuses() == {"ready": 1}


@pytest.mark.django_db(transaction=True)
def test_the_same_is_asked_for_once_also_by_two_at_the_same_moment() -> None:
    def start(number: int) -> BulkOperation:
        since = f"2026-01-01T00:00:0{number}+00:00"  # of "the last hour", as each read the clock
        return bulk.start("cancel", {"queue": "default", "created_since": since})

    operations = in_threads(6, start)
    first = BulkOperation.objects.get()
    assert {operation.pk for operation in operations} == {first.pk}
    assert sorted(operation.deduplicated for operation in operations) == [False, *[True] * 5]


def test_a_job_beyond_the_newest_one_cannot_be_asked_for() -> None:
    newest = noop.enqueue().pk
    assert bulk.start("cancel", {"queue": "default"}, max_id=2**63 - 1).max_id == newest


def test_what_differs_or_was_stopped_or_ended_is_another_operation() -> None:
    priority = {"arguments": {"priority": 1}}
    asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("reprioritize", {"queue": "default"}, priority),
        ("reprioritize", {"queue": "default"}, {"arguments": {"priority": 2}}),
        ("reprioritize", {"queue": "bulk"}, priority),
        ("cancel", {"queue": "default"}, {}),
        ("cancel", {"queue": "default", "status": "ready"}, {}),
        ("cancel", {"created_since": "2026-01-01T00:00:00+00:00"}, {}),
        ("cancel", {"created_since": "2026-01-01T00:02:00+00:00"}, {}),
    ]
    for action, terms, more in asked:
        assert not bulk.start(action, terms, **more).deduplicated
    again = bulk.start("cancel", {"queue": "default"})
    assert again.deduplicated
    bulk.stop([again.pk])
    assert not bulk.start("cancel", {"queue": "default"}).deduplicated
    BulkOperation.objects.update(status="completed")
    assert not bulk.start("cancel", {"queue": "default"}).deduplicated


def test_jobs_that_the_one_under_way_does_not_reach_are_another_operation() -> None:
    noop.enqueue()
    first = bulk.start("cancel", {"queue": "default"})
    noop.enqueue()
    assert bulk.start("cancel", {"queue": "default"}, max_id=first.max_id).deduplicated
    assert not bulk.start("cancel", {"queue": "default"}).deduplicated


def test_a_plan_that_only_waits_for_outcomes_does_not_refuse_another() -> None:
    make_dead(noop)
    bulk.start("replay", {"queue": "default"}, plan=ReplayPlan())
    while not BulkOperation.objects.get().progress.get("all_sent"):
        BulkOperation.objects.update(next_at="2026-01-01T00:00:00Z")
        assert run_chunk()
    assert not bulk.start("replay", {"queue": "default"}).deduplicated


def test_what_another_does_meanwhile_is_not_continued() -> None:
    noop.enqueue()
    stopped = bulk.start("cancel", {"queue": "default"})
    bulk.stop([stopped.pk])
    run_chunk()
    again = bulk.start("cancel", {"queue": "default"})
    assert bulk.resume([stopped.pk]) == []
    BulkOperation.objects.filter(pk=again.pk).update(status="completed")
    assert bulk.resume([stopped.pk]) == [stopped.pk]


def test_starting_stopping_and_resuming_need_the_permission_of_the_verb() -> None:
    olga = make_user("replay_job")
    with pytest.raises(PermissionDenied):
        bulk.start("cancel", {"queue": "default"}, actor=olga)
    operation = bulk.start("cancel", {"queue": "default"})
    with pytest.raises(PermissionDenied):
        bulk.stop([operation.pk], actor=olga)
    replays = bulk.start("replay", {"queue": "default"})
    with pytest.raises(PermissionDenied):
        bulk.stop([replays.pk, operation.pk], actor=olga)
    assert not BulkOperation.objects.exclude(stop_requested_by="").exists()
    bulk.stop([operation.pk, replays.pk])
    run_all()
    with pytest.raises(PermissionDenied):
        bulk.resume([operation.pk], actor=olga)


@pytest.mark.usefixtures("small_chunks")
def test_an_operation_stops_when_its_actor_loses_the_permission() -> None:
    noop.enqueue_many({} for _ in range(25))
    olga = make_user("cancel_job")
    bulk.start("cancel", {"queue": "default"}, actor=olga)
    run_chunk()
    olga.user_permissions.clear()
    operation = run_all()
    assert (operation.status, operation.done) == ("failed", 10)
    assert operation.why == "olga lacks the permission django_jobs.cancel_job"


@pytest.mark.parametrize("change", ["deactivate", "delete"])
def test_an_operation_of_somebody_without_an_account_does_nothing(change: str) -> None:
    noop.enqueue()
    olga = make_user("cancel_job")
    bulk.start("cancel", {"queue": "default"}, actor=olga)
    if change == "delete":
        olga.delete()
    else:
        olga.is_active = False
        olga.save()
    operation = run_all()
    assert (operation.status, operation.done) == ("failed", 0)
    assert "no active account" in operation.why
    assert statuses() == {"ready": 1}


@pytest.mark.usefixtures("small_chunks")
def test_a_stopped_operation_continues_where_it_stopped() -> None:
    noop.enqueue_many({} for _ in range(25))
    started = bulk.start("cancel", {"queue": "default"})
    run_chunk()
    assert bulk.stop([started.pk], by="ada") == [started.pk]
    assert bulk.stop([started.pk], by="bob") == []
    operation = run_all()
    assert (operation.status, operation.why, operation.done) == ("stopped", "stopped by ada", 10)
    assert bulk.resume([started.pk]) == [started.pk]
    assert bulk.resume([started.pk]) == []
    operation = run_all()
    assert (operation.status, operation.why, operation.done) == ("completed", "", 25)


@pytest.mark.usefixtures("small_chunks")
def test_the_time_for_which_an_operation_was_stopped_is_not_counted() -> None:
    noop.enqueue_many({} for _ in range(35))
    pk = bulk.start("cancel", {"queue": "default"}).pk
    with moment() as here:
        for minutes in (60, 30):
            run_chunk()
            bulk.stop([pk])
            run_all(1)
            run_sql(
                "UPDATE django_jobs_bulkoperation SET started_at = now() - interval '3 h',"
                " finished_at = now() - make_interval(mins => %s)",
                [minutes],
            )
            bulk.resume([pk])
        operation = run_all()
    assert operation.finished_at is not None
    worked = operation.worked(operation.finished_at)
    assert worked is not None
    assert abs(worked - timedelta(minutes=180 - 60 - 30)) <= here.length


def test_an_operation_that_was_stopped_before_it_began_has_no_time_to_leave_out() -> None:
    operation = bulk.start("cancel", {"queue": "default"})
    bulk.stop([operation.pk])
    run_all(1)
    bulk.resume([operation.pk])
    operation = run_all()
    assert "stopped_seconds" not in operation.progress
    assert operation.finished_at is not None
    assert operation.started_at is not None
    took = operation.finished_at - operation.started_at
    assert operation.worked(operation.finished_at) == took


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(("counted", "number"), [(bulk.COUNTED, 15), (25, 0)])
def test_what_no_longer_matches_is_known_at_the_end_if_it_was_counted(
    monkeypatch: pytest.MonkeyPatch, counted: int, number: int
) -> None:
    monkeypatch.setattr(bulk.count, "__defaults__", (counted,))
    noop.enqueue_many({} for _ in range(25))
    asked = bulk.start("cancel", {"queue": "default"})
    run_chunk()
    bulk.stop([asked.pk])
    operation = run_all(1)
    run_sql("UPDATE django_jobs_job SET queue = 'bulk' WHERE status = 'ready'")
    assert operation.no_longer_matched == 0
    bulk.resume([asked.pk])
    operation = run_all()
    assert (operation.status, operation.matched, operation.done) == ("completed", 25, 10)
    assert operation.no_longer_matched == number


def test_the_end_is_logged_for_the_actor() -> None:
    noop.enqueue()
    olga = make_user("cancel_job")
    operation = bulk.start("cancel", {"queue": "default"}, actor=olga)
    run_all()
    entry = LogEntry.objects.get(object_id=str(operation.pk))
    assert (entry.user, entry.change_message) == (olga, "completed: 1 done, 0 left")


def interrupt(*_given: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.django_db(transaction=True)
def test_a_chunk_that_is_cut_short_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    noop.enqueue_many({} for _ in range(5))
    bulk.start("cancel", {"queue": "default"})
    monkeypatch.setattr(bulk, "store", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_chunk()
    monkeypatch.undo()
    operation = BulkOperation.objects.get()
    assert (operation.status, operation.done, statuses()) == ("pending", 0, {"ready": 5})
    assert run_all().done == 5


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("small_chunks")
def test_two_workers_change_each_job_once() -> None:
    ids = copies_of(make_dead(), 200, status="dead")
    bulk.start("replay", {"status": "dead"})

    def work(_number: int) -> None:
        while not BulkOperation.objects.get().progress.get("all_sent"):
            BulkOperation.objects.filter(next_at__gt="2026-01-02T00:00:00Z").update(
                next_at="2026-01-01T00:00:00Z"
            )
            run_chunk()

    in_threads(3, work)
    assert BulkOperation.objects.get().done == 201
    assert set(Job.objects.filter(pk__in=ids).values_list("replays", flat=True)) == {1}


@pytest.mark.django_db(transaction=True)
def test_jobs_that_another_session_has_locked_are_tried_again_and_then_left() -> None:
    held, other = noop.enqueue().pk, noop.enqueue().pk
    bulk.start("cancel", {"queue": "default"})
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held]):
        run_chunk()
        assert BulkOperation.objects.get().done == 1
        operation = run_all()
    assert (operation.status, operation.done) == ("completed", 1)
    assert operation.reasons == {bulk_operations.LOCKED: {"count": 1, "jobs": [held]}}
    assert Job.objects.get(pk=other).status == "cancelled"


@pytest.mark.django_db(transaction=True)
def test_jobs_that_were_locked_for_a_moment_are_changed_at_the_end() -> None:
    held = noop.enqueue().pk
    bulk.start("cancel", {"queue": "default"})
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [held]):
        run_chunk()
    operation = run_all()
    assert (operation.done, operation.left) == (1, 0)


@pytest.mark.django_db(transaction=True)
def test_jobs_that_changed_while_they_were_locked_are_left_if_they_match_no_longer() -> None:
    held = noop.enqueue().pk
    bulk.start("cancel", {"queue": "default"})
    with open_elsewhere(
        "UPDATE django_jobs_job SET queue = 'bulk' WHERE id = %s", [held]
    ) as connection:
        run_chunk()
        connection.commit()
    operation = run_all()
    assert (operation.done, operation.left) == (0, 1)
    assert list(operation.reasons) == ["it matches no longer"]
    assert Job.objects.get(pk=held).status == "ready"


def test_the_rest_of_a_plan_goes_at_its_rate_in_several_chunks() -> None:
    make_dead()
    copies_of(Job.objects.get(), 299, status="dead")
    operation = bulk.start("replay", {"status": "dead"}, plan=ReplayPlan(then=0, rate=100))
    run_sql(
        "UPDATE django_jobs_bulkoperation SET progress = jsonb_build_object("
        " 'sent', 1, 'sent_at', extract(epoch FROM now() - interval '1 hour'))"
    )
    assert run_chunk() == 2
    assert run_chunk() > 0
    operation.refresh_from_db()
    assert operation.done == 200


@contextmanager
def locked(ids: list[int]) -> Iterator[None]:
    """Another session holds the rows of these jobs."""
    with open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = ANY(%s) FOR UPDATE", [ids]):
        yield


@pytest.mark.django_db(transaction=True)
def test_a_plan_replays_no_more_jobs_at_once_because_they_were_locked() -> None:
    ids = copies_of(make_dead(), 12, status="dead")
    operation = bulk.start("replay", {"ids": ids}, plan=ReplayPlan(first=2, then=3))
    with locked(ids):
        while operation.cursor < operation.max_id:
            run_all(1)
            operation.refresh_from_db()
    assert (operation.done, sorted(operation.progress["again"])) == (0, ids)
    operation = run_all(5)
    assert (operation.done, len(operation.progress["awaited"])) == (2, 2)
    assert len(operation.progress["again"]) == 10


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("small_chunks")
def test_many_locked_jobs_are_all_tried_again_before_one_is_left() -> None:
    ids = copies_of(make_dead(), 60, status="dead")
    bulk.start("replay", {"ids": ids})
    with locked(ids):
        assert run_all(7).progress["again"]
    operation = run_all()
    assert (operation.done, operation.left, operation.progress["all_sent"]) == (60, 0, True)


def test_a_job_that_postgresql_refuses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [noop.using(delay=900).enqueue().pk for _ in range(5)]
    run_sql(
        "ALTER TABLE django_jobs_job_live ADD CONSTRAINT odd CHECK (id <> %s OR status <> 'ready')",
        [ids[2]],
    )
    bulk.start("run_now", {"status": "scheduled"})
    operation = run_all()
    assert (operation.status, operation.done, operation.left) == ("completed", 4, 1)
    ((reason, entry),) = operation.reasons.items()
    assert reason.startswith("PostgreSQL refuses it")
    assert entry["jobs"] == [ids[2]]


def test_an_error_ends_the_operation_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    noop.enqueue()
    operation = bulk.start("cancel", {"queue": "default"})
    BulkOperation.objects.filter(pk=operation.pk).update(action="vanish")
    assert run_chunk() == 1
    operation.refresh_from_db()
    assert (operation.status, operation.why) == ("failed", "KeyError: 'vanish'")


def test_jobs_that_only_other_workers_know_are_replayed() -> None:
    dead = make_dead(add, 1)
    run_sql("UPDATE django_jobs_job_live SET job_type = 'new.type'")
    bulk.start("replay", {"status": "dead"})
    assert run_all().reasons.keys() == {"no handler is registered for …"}
    register_worker(job_types={"new.type": 1})
    bulk.start("replay", {"status": "dead"})
    assert run_all().done == 1
    dead.refresh_from_db()
    assert dead.status == "ready"


def test_the_count_is_an_estimate_beyond_the_jobs_that_are_looked_at() -> None:
    noop.enqueue_many({} for _ in range(100))
    ((newest,),) = run_sql("SELECT max(id) FROM django_jobs_job_live")
    assert bulk.count("cancel", {"queue": "default"}, newest) == (100, True)
    assert bulk.count("cancel", {"queue": "default"}, newest, looked=100) == (100, False)
    assert bulk.count("cancel", {"queue": "default"}, newest, looked=20) == (100, False)
    assert bulk.count("cancel", {"queue": "bulk"}, newest, looked=20) == (0, False)


def test_cancelling_what_runs_asks_it_to_stop() -> None:
    held = enqueue_and_claim()
    bulk.start("cancel", {"queue": "default"})
    assert run_all().done == 1
    assert Job.objects.get(pk=held.id).cancel_requested_at is not None
    assert job_operations.cancel([held.id]).asked == [held.id]


def test_ended_operations_are_kept_for_a_time() -> None:
    noop.enqueue()
    old, recent, running = (bulk.start("cancel", {"queue": "default"}).pk for _ in range(3))
    for operation, days in ((old, 91), (recent, 89)):
        run_sql(
            "UPDATE django_jobs_bulkoperation SET status = 'completed',"
            " finished_at = now() - make_interval(days => %s) WHERE id = %s",
            [days, operation],
        )
    Retention(budget=60).run_once()
    assert set(BulkOperation.objects.values_list("pk", flat=True)) == {recent, running}


def test_a_replay_ends_when_it_knows_how_its_jobs_ended() -> None:
    good, bad, late = (make_dead().pk for _ in range(3))
    bulk.start("replay", {"status": "dead"})
    operation = run_all(5)
    assert (operation.status, operation.done, operation.outcomes_unknown) == ("running", 3, 3)
    held = {one.id: one for one in claim_ready(register_worker())}
    settle_one(held[good], Succeeded())
    settle_one(held[bad], failure())
    operation = run_all(5)
    assert (operation.status, operation.succeeded, operation.failed) == ("running", 1, 1)
    assert operation.progress["failed"] == [bad]
    settle_one(held[late], Succeeded())
    operation = run_all(5)
    assert (operation.status, operation.succeeded, operation.failed) == ("completed", 2, 1)
    assert (operation.why, operation.outcomes_unknown) == ("", 0)


def test_a_replay_does_not_wait_for_ever_nor_for_each_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_operations, "MOST_AWAITED", 2)
    copies_of(make_dead(), 4, status="dead")
    bulk.start("replay", {"status": "dead"})
    operation = run_all(3)
    assert (operation.status, len(operation.progress["awaited"])) == ("running", 2)
    monkeypatch.setattr(bulk_operations, "OUTCOME_SECONDS", 0.0)
    operation = run_all(1)
    assert operation.status == "completed"
    assert operation.why == "how 5 of the replayed jobs went is not known"
