"""Hooks around an enqueue: what they write is in the headers, and what they raise refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.utils import translation
from pytest_django import DjangoAssertNumQueries

from django_jobs import PayloadError, UnknownQueue, chain, enqueue, enqueue_many
from django_jobs.exceptions import HookError
from django_jobs.models import Job, Schedule, Tick
from tests.app import hooks
from tests.app.jobs import add, noop
from tests.factories import due_schedule, look

pytestmark = pytest.mark.django_db


def refuse(event: Any) -> None:
    raise PermissionDenied("not today")


def headers() -> list[dict[str, Any]]:
    return list(Job.objects.order_by("id").values_list("headers", flat=True))


def test_hooks_are_entered_in_order_and_left_in_reverse(hooked: Callable[..., None]) -> None:
    hooked("outer", "inner")
    job = add.using(queue="bulk", headers={"given": 1}).enqueue(1, second=2)
    assert hooks.seen == [
        ("outer", "enqueue"),
        ("inner", "enqueue", "app.add", "bulk", {"given": 1}),
        ("inner left", "enqueue", {"first": 1, "second": 2}, job.pk, None),
        ("outer left", "enqueue"),
    ]


def test_a_job_has_the_headers_that_hooks_write(hooked: Callable[..., None]) -> None:
    hooked("tenants", "locale")
    hooks.tenant.set("acme")
    with translation.override("de"):
        written = noop.enqueue()
        noop.using(headers={"tenant": "mine", "more": 1}).enqueue()
    expected = {"tenant": "acme", "language": "de", "zone": "UTC"}
    assert headers() == [expected, {**expected, "tenant": "mine", "more": 1}]
    assert written.headers == expected


def test_each_enqueue_gets_new_headers(hooked: Callable[..., None]) -> None:
    hooked("tenants")
    for name in ("a", "b"):
        hooks.tenant.set(name)
        noop.enqueue()
    assert headers() == [{"tenant": "a"}, {"tenant": "b"}]


@pytest.mark.django_db(transaction=True)
def test_async_code_enqueues_with_its_context(hooked: Callable[..., None]) -> None:
    hooked("tenants", "locale")

    async def view() -> None:
        hooks.tenant.set("acme")
        with translation.override("fr"):
            await noop.aenqueue()

    async_to_sync(view)()
    assert headers() == [{"tenant": "acme", "language": "fr", "zone": "UTC"}]


def test_a_bulk_enqueue_is_one_event(
    hooked: Callable[..., None], django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    noop.enqueue()  # the queue's row is cached
    hooked("inner", "tenants")
    with django_assert_num_queries(2):  # as without hooks: ids, and COPY
        enqueue_many("app.add", [{"first": n} for n in range(300)])
    assert [note[:2] for note in hooks.seen] == [("inner", "enqueue"), ("inner left", "enqueue")]
    assert hooks.seen[-1] == ("inner left", "enqueue", None, None, None)
    assert headers()[1:] == [{"tenant": "nobody"}] * 300


def test_a_hook_that_raises_refuses_the_enqueue(hooked: Callable[..., None]) -> None:
    hooked("inner", "changing")
    hooks.changes["before"] = refuse
    for call in (
        noop.enqueue,
        lambda: enqueue("app.add", {"first": 1}),
        lambda: noop.enqueue_many([{}]),
        lambda: chain(noop.step()).start(),
    ):
        with pytest.raises(PermissionDenied, match="not today"):
            call()
    assert not Job.objects.exists()
    assert {note[-1] for note in hooks.seen if note[0] == "inner left"} == {"PermissionDenied"}


def test_what_a_hook_raises_after_the_enqueue_reaches_the_caller(
    hooked: Callable[..., None],
) -> None:
    hooked("changing")
    hooks.changes["after"] = refuse
    with pytest.raises(PermissionDenied):
        noop.enqueue()


def test_a_hook_cannot_suppress_a_refusal(hooked: Callable[..., None]) -> None:
    hooked("swallowing")
    with pytest.raises(UnknownQueue):
        noop.using(queue="nowhere").enqueue()
    with pytest.raises(PayloadError):
        noop.enqueue_many([{"unknown": 1}])
    assert hooks.seen == [("swallowed", "UnknownQueue"), ("swallowed", "PayloadError")]


def test_headers_that_are_not_json_are_refused(hooked: Callable[..., None]) -> None:
    hooked("changing")
    hooks.changes["before"] = lambda event: event.headers.update(at=object())
    with pytest.raises(PayloadError, match=r"headers\.at"):
        noop.enqueue()


def test_a_hook_cannot_change_the_payload(hooked: Callable[..., None]) -> None:
    hooked("changing")
    hooks.changes["before"] = lambda event: event.payload.update(first=2)
    with pytest.raises(AttributeError):
        add.enqueue(1)


def test_a_hook_that_returns_no_context_manager_is_named(hooked: Callable[..., None]) -> None:
    hooked("plain")
    with pytest.raises(
        HookError, match=r"tests\.app\.hooks\.plain returned a NoneType, not a context"
    ):
        noop.enqueue()


def test_a_job_with_gates_and_one_that_replaces_have_the_headers(
    hooked: Callable[..., None],
) -> None:
    hooked("tenants")
    gated = noop.using(concurrency_key="account").enqueue()
    later = noop.using(idempotency_key="k", delay=60, on_duplicate="replace")
    later.enqueue()
    hooks.tenant.set("second")
    replaced = later.enqueue()
    assert gated.headers == {"tenant": "nobody"}
    assert Job.objects.get(pk=replaced.pk).headers == {"tenant": "second"}


def test_a_job_of_a_schedule_has_the_headers(hooked: Callable[..., None]) -> None:
    hooked("inner", "tenants")
    due_schedule(name="a", job_type="app.add", payload={"first": 1})
    due_schedule(name="b")
    look()
    events = [note[2] for note in hooks.seen if note[0] == "inner"]
    assert sorted(events) == ["app.add", "app.noop"]
    assert headers() == [{"tenant": "nobody"}] * 2


def test_a_hook_that_raises_suppresses_the_due_time_and_no_other_schedule(
    hooked: Callable[..., None],
) -> None:
    hooked("changing")

    def break_the_transaction(event: Any) -> None:
        if event.job_type == "app.add":
            connection.cursor().execute("SELECT 1/0")

    hooks.changes["before"] = break_the_transaction
    bad = due_schedule(name="bad", job_type="app.add", payload={"first": 1})
    good = due_schedule(name="good")
    look()
    assert Job.objects.get().schedule_id == good.pk
    tick = Tick.objects.get(schedule=bad)
    assert tick.outcome == "suppressed"
    assert tick.reason.startswith("app.add: a hook raised django.db.utils.DataError: division by")
    assert Schedule.objects.get(pk=bad.pk).error == ""
