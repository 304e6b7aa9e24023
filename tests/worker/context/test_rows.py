"""A walk over rows: in order, each once, and on from where the last attempt was."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, models, transaction
from django.db.models import QuerySet
from django.test.utils import CaptureQueriesContext, isolate_apps

from django_jobs import LeaseLost
from django_jobs.domain.outcomes import Cancelled, Failed, Released, Succeeded
from django_jobs.lifecycle.settling import Settled
from django_jobs.models import Progress, Schedule
from django_jobs.signals import worker_event
from tests.app.long_jobs import this_run
from tests.app.models import Effect
from tests.factories import heard, run_sql
from tests.worker.attempts import Desk


def sources(count: int) -> list[int]:
    """Rows to walk over; their keys."""
    made = Effect.objects.bulk_create([Effect(note="source") for _ in range(count)])
    return [row.pk for row in made]


def walked(seen: list[int], fail_after: int = 0, **options: Any) -> Any:
    """A handler that walks over the sources and notes what it has worked on."""

    def handler() -> None:
        for row in this_run().iterate(Effect.objects.filter(note="source"), **options):
            if fail_after and len(seen) == fail_after:
                raise ConnectionError("before it worked on it")
            seen.append(row.pk)

    return handler


def test_each_row_comes_once_and_the_next_attempt_continues(
    desk: Desk,
) -> None:
    keys = sources(25)
    seen: list[int] = []
    outcomes = desk.run(walked(seen, 12, chunk=10), walked(seen, 20), walked(seen))
    assert [type(one) for one in outcomes] == [Failed, Failed, Succeeded]
    assert seen == keys
    row = Progress.objects.get()
    assert (row.checkpoint["iterate"]["done"], row.checkpoint["iterate"]["total"]) == (20, 25)
    assert row.note == "20 of 25"


def test_it_reads_in_chunks_after_the_last_key_and_counts_once(desk: Desk) -> None:
    sources(25)
    seen: list[int] = []
    with CaptureQueriesContext(connection) as first:
        desk.run(walked(seen, 15, chunk=10))
    reads = [query["sql"] for query in first if "app_effect" in query["sql"]]
    assert not [sql for sql in reads if "OFFSET" in sql]
    assert len([sql for sql in reads if "COUNT(" in sql]) == 1
    assert len([sql for sql in reads if "LIMIT 10" in sql]) == 2


def test_iterate_over_no_rows_ends(desk: Desk) -> None:
    assert desk.run(walked([])) == [Succeeded()]


def test_rows_that_come_meanwhile_are_walked_too_if_their_keys_are_higher(desk: Desk) -> None:
    keys = sources(3)
    seen: list[int] = []

    def handler() -> None:
        for row in this_run().iterate(Effect.objects.filter(note="source"), chunk=2):
            if not seen:
                keys.extend(sources(2))
            seen.append(row.pk)

    assert desk.run(handler) == [Succeeded()]
    assert seen == keys


def test_a_row_that_a_join_gives_twice_comes_once(desk: Desk) -> None:
    groups = [Group.objects.create(name=name) for name in "abc"]
    users = [get_user_model().objects.create_user(f"user {number}") for number in range(4)]
    for user in users:
        user.groups.set(groups)
    seen: list[int] = []

    def handler() -> None:
        rows = get_user_model().objects.filter(groups__in=groups)
        seen.extend(row.pk for row in this_run().iterate(rows, chunk=2))

    assert desk.run(handler) == [Succeeded()]
    assert seen == [user.pk for user in users]


@pytest.mark.parametrize("part", [2, 3])
def test_keys_of_text_go_through_a_checkpoint(desk: Desk, part: int) -> None:
    names = sorted(["b", 'quoted "x"', "ä", "a b", "z' --"])
    for number, name in enumerate(names):
        Session.objects.create(
            session_key=name, session_data="", expire_date=datetime.now(UTC) + timedelta(number)
        )
    ordered = list(Session.objects.order_by("pk").values_list("pk", flat=True))
    seen: list[str] = []

    def handler() -> None:
        for row in this_run().iterate(Session.objects.all(), chunk=part):
            if len(seen) == 2 and this_run().attempt == 1:
                raise ConnectionError
            seen.append(row.pk)

    assert desk.run(handler, handler)[-1] == Succeeded()
    assert seen == ordered


@pytest.mark.parametrize(
    "field, values",
    [
        (models.UUIDField(unique=True), [uuid.UUID(int=number << 64) for number in range(1, 6)]),
        (
            models.DateTimeField(unique=True),
            [datetime(2026, 10, 25, 1, 0, 0, number, UTC) for number in range(5)],
        ),
        (models.DecimalField(unique=True, max_digits=12, decimal_places=6), [1, 2, 3, 4, 5]),
        (models.DateField(unique=True), [datetime(2026, 1, day).date() for day in range(1, 6)]),
    ],
)
def test_keys_of_any_kind_go_through_a_checkpoint(
    desk: Desk, field: models.Field[Any, Any], values: list[Any]
) -> None:
    with isolate_apps("tests.app"):

        class Keyed(models.Model):
            key = field.clone()

            class Meta:
                app_label = "app"

    seen: list[Any] = []

    def handler() -> None:
        for row in this_run().iterate(Keyed._base_manager.all(), key="key", chunk=2):
            if len(seen) == 2 and this_run().attempt == 1:
                raise ConnectionError
            seen.append(row.key)

    with connection.schema_editor() as editor:
        editor.create_model(Keyed)
    try:
        for value in reversed(values):
            Keyed._base_manager.create(key=value)
        assert desk.run(handler, handler)[-1] == Succeeded()
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Keyed)
    assert seen == values


@pytest.mark.parametrize(
    "make, key, problem",
    [
        (lambda: Effect.objects.all(), "note", "is not unique or may be null"),
        (lambda: Effect.objects.all(), "nothing", "app.Effect has no field 'nothing'"),
        (lambda: Effect.objects.all()[:5], "pk", "takes no slice"),
        (lambda: Effect.objects.all().union(Effect.objects.all()), "pk", "takes no slice, union"),
        (lambda: Effect.objects.distinct("note"), "pk", "DISTINCT ON"),
        (lambda: Effect.objects.values("pk"), "pk", "not of values()"),
        (lambda: Effect.objects.order_by("-pk"), "pk", "sorts by pk"),
        (lambda: Effect.objects.order_by("note", "pk"), "pk", "sorts by pk"),
        (lambda: [1, 2], "pk", "takes a queryset, not list"),
        (lambda: ContentType.objects.all(), "model", "is not unique"),
        (lambda: Group.objects.all(), "user", "is not a single column"),
    ],
)
def test_iterate_refuses_unsuitable_querysets(
    desk: Desk, make: Any, key: str, problem: str
) -> None:
    def handler() -> None:
        with pytest.raises(ValueError, match=problem.replace("(", r"\(").replace(")", r"\)")):
            this_run().iterate(make(), key=key)

    assert desk.run(handler) == [Succeeded()]


def accept(rows: QuerySet[Any], key: str = "pk") -> None:
    this_run().iterate(rows, key=key)


@pytest.mark.parametrize("order", [(), ("pk",), ("id",)])
def test_an_explicit_order_by_the_key_is_accepted(desk: Desk, order: tuple[str, ...]) -> None:
    def handler() -> None:
        accept(Effect.objects.order_by(*order))

    assert desk.run(handler) == [Succeeded()]


def test_a_key_that_a_constraint_makes_unique_will_do(desk: Desk) -> None:
    def handler() -> None:
        accept(Schedule.objects.all(), "name")

    assert desk.run(handler) == [Succeeded()]


@pytest.mark.parametrize("chunk", [0, -1, 2.5, True, None])
def test_an_invalid_chunk_is_refused(desk: Desk, chunk: Any) -> None:
    def handler() -> None:
        with pytest.raises(ValueError, match="chunk is a number of rows"):
            this_run().iterate(Effect.objects.all(), chunk=chunk)

    assert desk.run(handler) == [Succeeded()]


def test_a_handler_iterates_once_and_iterate_owns_the_checkpoint(desk: Desk) -> None:
    def handler() -> None:
        accept(Effect.objects.all())
        with pytest.raises(ValueError, match="can call iterate\\(\\) once"):
            accept(Effect.objects.all())
        with pytest.raises(ValueError, match="iterate\\(\\) saves the checkpoint"):
            this_run().checkpoint(1)

    assert desk.run(handler) == [Succeeded()]


def test_a_checkpoint_of_other_code_is_ignored_and_logged(desk: Desk) -> None:
    keys = sources(3)
    seen: list[int] = []

    def before() -> None:
        this_run().checkpoint({"page": 7})
        raise ConnectionError

    with heard(worker_event) as events:
        outcomes = desk.run(before, walked(seen))
    assert outcomes[-1] == Succeeded()
    assert seen == keys
    assert [one["fields"]["wanted"] for one in events if one["sender"] == "checkpoint_ignored"] == [
        "app.Effect.id"
    ]


class TestStopping:
    """It ends between two rows, with the last one written down."""

    def stopped(self, desk: Desk, ask: Any, **options: Any) -> tuple[list[int], list[Any]]:
        seen: list[int] = []

        def handler() -> None:
            for row in this_run().iterate(Effect.objects.filter(note="source")):
                seen.append(row.pk)
                if len(seen) == 3:
                    ask()

        return seen, list(desk.run(handler, **options))

    def test_a_drain_releases_the_attempt_and_the_next_continues(self, desk: Desk) -> None:
        keys = sources(6)

        def drain() -> None:
            desk.draining = True

        seen, outcomes = self.stopped(desk, drain)
        assert (seen, [type(one) for one in outcomes]) == (keys[:3], [Released])
        assert Progress.objects.get().checkpoint["iterate"]["after"] == str(keys[2])

    def test_a_cancel_ends_the_job(self, desk: Desk) -> None:
        keys = sources(6)

        def cancel() -> None:
            desk.stopping = True

        seen, outcomes = self.stopped(desk, cancel)
        assert seen == keys[:3]
        assert outcomes == [Cancelled(reason="cancelled while running")]

    def test_a_lost_lease_is_reported(self, desk: Desk) -> None:
        sources(6)

        def lose() -> None:
            run_sql("UPDATE django_jobs_job SET attempt = 2")
            desk.stopping = True

        with pytest.raises(LeaseLost):
            self.stopped(desk, lose)

    def test_a_drain_does_not_stop_iterate_if_its_work_would_be_lost(self, desk: Desk) -> None:
        """There is no next attempt of what is delivered at most once, and a transaction would be
        rolled back."""
        keys = sources(6)

        def drain() -> None:
            desk.draining = True

        seen, outcomes = self.stopped(desk, drain, delivery="at_most_once")
        assert (seen, outcomes) == (keys, [Succeeded()])
        seen, outcomes = self.stopped(desk, drain, delivery="exactly_once")
        assert seen == keys
        assert isinstance(outcomes[0], Settled)


def test_rows_done_in_transactions_are_neither_repeated_nor_skipped(
    desk: Desk,
) -> None:
    keys = sources(5)

    def handler() -> None:
        rows = this_run().iterate(Effect.objects.filter(note="source"))
        for row in rows:
            with transaction.atomic():
                Effect.objects.create(note=f"of {row.pk}")
                rows.done()
                if row.pk == keys[2] and this_run().attempt == 1:
                    raise ConnectionError

    assert desk.run(handler, handler)[-1] == Succeeded()
    made = Effect.objects.filter(note__startswith="of").values_list("note", flat=True)
    assert sorted(made) == sorted(f"of {key}" for key in keys)


def test_done_requires_a_current_row(desk: Desk) -> None:
    sources(1)

    def handler() -> None:
        for count in (1, 0):
            rows = this_run().iterate(Effect.objects.filter(note="source"))
            with pytest.raises(ValueError, match="the loop over these rows has not started"):
                rows.done()
            assert len(list(rows)) == count
            rows.done()
            desk.reporter.of(this_run()._attempt).walked = False
            Effect.objects.all().delete()

    assert desk.run(handler) == [Succeeded()]


def test_async_handlers_get_a_hint_to_async_for(desk: Desk) -> None:
    sources(1)

    async def handler() -> None:
        with pytest.raises(SynchronousOnlyOperation, match="write `async for`"):
            for _ in this_run().iterate(Effect.objects.filter(note="source")):
                pass

    assert desk.run(handler) == [Succeeded()]


def test_async_handlers_iterate_with_async_for(desk: Desk) -> None:
    keys = sources(7)
    seen: list[int] = []

    async def handler() -> None:
        async for row in this_run().iterate(Effect.objects.filter(note="source"), chunk=3):
            if len(seen) == 4 and this_run().attempt == 1:
                raise ConnectionError
            seen.append(row.pk)

    assert desk.run(handler, handler)[-1] == Succeeded()
    assert seen == keys


def test_async_handlers_are_stopped_by_a_drain(desk: Desk) -> None:
    sources(7)

    async def handler() -> None:
        async for _ in this_run().iterate(Effect.objects.filter(note="source")):
            desk.draining = True

    (outcome,) = desk.run(handler)
    assert isinstance(outcome, Released)
    assert Progress.objects.get().checkpoint["iterate"]["done"] == 1
