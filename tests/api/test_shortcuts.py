"""Declaring a job type and asking for a job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.http import QueryDict
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from django_jobs import (
    EnqueueError,
    PayloadError,
    UnknownJobType,
    UnknownQueue,
    enqueue,
    enqueue_many,
)
from django_jobs.models import Job
from tests.app.jobs import add, noop
from tests.factories import declared


def ask(job_type: Any, *args: Any, **kwargs: Any) -> Job:
    """An enqueue that a type checker would not let through."""
    enqueued: Job = job_type.enqueue(*args, **kwargs)
    return enqueued


# Arguments


def test_calling_a_job_type_calls_its_handler() -> None:
    assert add(1, second=2) == 3
    assert add.handler(1) == 2


@pytest.mark.django_db
def test_arguments_are_bound_by_name() -> None:
    assert add.enqueue(1).payload == {"first": 1}
    assert add.enqueue(1, 2).payload == add.enqueue(second=2, first=1).payload
    assert Job.objects.latest("pk").payload == {"first": 1, "second": 2}


@pytest.mark.django_db
def test_arguments_of_any_name_are_accepted_if_the_handler_takes_them() -> None:
    def open_handler(first: int, **others: int) -> None: ...

    with declared(open_handler, name="app.open") as job_type:
        payload = {"first": 1, "self": 2, "args": 3, "queue": 4}
        assert enqueue("app.open", payload).payload == payload
        assert job_type.enqueue_many([payload])


@pytest.mark.parametrize(
    "args, kwargs", [((), {}), ((1, 2, 3), {}), ((1,), {"third": 3}), ((1,), {"first": 1})]
)
def test_arguments_that_do_not_fit_are_refused_at_the_enqueue(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    with pytest.raises(PayloadError, match=r"^app.add\(first: [^)]*\).*: .*; got "):
        ask(add, *args, **kwargs)


@pytest.mark.parametrize(
    "args, kwargs, given",
    [
        ((), {}, "no arguments"),
        ((), {"frist": 1, "second": 2}, "frist, second"),
        ((1, 2, 3), {"first": 1}, "3 positional arguments, first"),
    ],
)
def test_a_refused_call_names_its_arguments_but_no_values(
    args: tuple[Any, ...], kwargs: dict[str, Any], given: str
) -> None:
    with pytest.raises(PayloadError, match=f"^app.add.*; got {given}$"):
        ask(add, *args, **kwargs)


@pytest.mark.django_db
def test_a_handler_declared_in_main_is_not_enqueued(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    def handler() -> None: ...

    handler.__module__ = "__main__"
    with declared(handler) as job_type, django_assert_num_queries(0):
        for request in (job_type.enqueue, lambda: job_type.enqueue_many([{}])):
            with pytest.raises(EnqueueError, match=r"^__main__\.handler: .* no worker imports"):
                request()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "value, path",
    [
        (float("nan"), "payload.first: nan is not JSON"),
        ({"a": [1, {"b": "\x00"}]}, r"payload.first.a\[1\].b: text with a NUL"),
        (timezone.now(), "payload.first: a datetime is not JSON; pass value.isoformat"),
        ("x" * 2_000_000, "payload: larger than 1,048,576 bytes"),
        ({1: 2}, "payload.first: key 1 is an int"),
        (add, "payload.first: a JobType is not JSON; pass its name"),
        ((n for n in (1, 2)), r"payload.first: a generator is not JSON; pass list\(value\)"),
    ],
)
def test_an_unstorable_value_is_refused_with_its_path_before_any_sql(
    value: Any, path: str, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(0), pytest.raises(PayloadError, match=f"^app.add: {path}"):
        ask(add, value)


def plain(first: int) -> None: ...


@pytest.mark.parametrize("given", [plain, len, User])
def test_what_is_no_job_type_is_refused_with_what_to_do(given: Any) -> None:
    for request in (enqueue, enqueue_many):
        with pytest.raises(TypeError, match=r"is no job type: put @job before it, or pass the n"):
            request(given, {"first": 1})  # type: ignore[operator]


@pytest.mark.django_db
def test_a_call_in_a_coroutine_names_the_other_one() -> None:
    async def enqueue_here() -> None:
        for request in (partial(add.enqueue, 1), partial(enqueue, "app.add", {"first": 1})):
            with pytest.raises(SynchronousOnlyOperation, match=r"such as aenqueue\(\)"):
                request()

    asyncio.run(enqueue_here())


@pytest.mark.django_db
def test_headers_are_checked_as_the_payload_is(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    traced = noop.using(headers={"trace": b"x"})
    with (
        django_assert_num_queries(0),
        pytest.raises(PayloadError, match=r"headers\.trace: a by"),
    ):
        traced.enqueue()


@pytest.mark.django_db(transaction=True)
def test_the_callers_transaction_is_unharmed_by_a_refusal() -> None:
    with transaction.atomic():
        kept = noop.enqueue()
        for refused in (
            lambda: ask(add, float("inf")),
            lambda: ask(add),
            lambda: ask(noop.using(queue="nowhere")),
            lambda: enqueue("app.nope"),
            lambda: enqueue_many("app.add", [{"first": 1}, {"first": "\ud800"}]),
        ):
            with pytest.raises(EnqueueError):
                refused()
        assert not connection.needs_rollback
    assert list(Job.objects.values_list("pk", flat=True)) == [kept.pk]


@pytest.mark.django_db
@pytest.mark.parametrize("payload", [[1], "first", 7, {1: 2}])
def test_a_payload_that_is_not_a_dict_of_names_is_refused(payload: Any) -> None:
    with pytest.raises(PayloadError, match="payload"):
        enqueue("app.add", payload)


# By name, and many


@pytest.mark.django_db
def test_a_job_is_enqueued_by_name_with_the_options_of_using() -> None:
    enqueued = enqueue("app.add", {"first": 1}, queue="bulk", priority=3, idempotency_key="k")
    assert (enqueued.job_type, enqueued.payload) == ("app.add", {"first": 1})
    assert (enqueued.queue, enqueued.priority, enqueued.idempotency_key) == ("bulk", 3, "k")
    assert enqueue(noop).job_type == "app.noop"


@pytest.mark.parametrize(
    "request_, meant",
    [
        (lambda: enqueue("app.add", first=1, queue="bulk"), "enqueue('app.add', {'first': ...})"),
        (
            lambda: enqueue_many("app.add", [], first=1, second=2),
            "enqueue_many('app.add', [{'first': ..., 'second': ...}, ...])",
        ),
    ],
)
def test_arguments_among_the_options_are_refused_with_the_right_call(
    request_: Callable[[], Any], meant: str
) -> None:
    with pytest.raises(TypeError) as refused:
        request_()
    assert str(refused.value) == f"app.add: the arguments go into a dict: {meant}"


@pytest.mark.django_db
def test_an_unknown_job_type_or_queue_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownJobType, match=r"'nope'; known are: .*app.add"):
        enqueue("nope")
    with pytest.raises(UnknownQueue, match=r"'nowhere'; known are: .*default, emails"):
        noop.using(queue="nowhere").enqueue()


@pytest.mark.django_db
def test_values_that_json_changes_are_those_on_the_page() -> None:
    """docs/reference/api.md, "What a payload may be"."""

    def open_handler(**arguments: Any) -> None: ...

    with declared(open_handler) as job_type:
        form = QueryDict("a=1&a=2")
        job_type.enqueue(large=1e16, small=1e15, zero=-0.0, pair=(1, 2), form=form)
    back = Job.objects.get().payload
    expected = {"large": 10**16, "small": 1e15, "zero": 0.0, "pair": [1, 2], "form": {"a": "2"}}
    assert back == expected
    assert [type(back[name]) for name in ("large", "small")] == [int, float]
    assert str(back["zero"]) == "0.0"


@pytest.mark.django_db
def test_async_code_enqueues_with_aenqueue() -> None:
    async def ask_for_a_job() -> Job:
        return await add.using(priority=2).aenqueue(1, second=3)

    enqueued = async_to_sync(ask_for_a_job)()
    assert (enqueued.payload, enqueued.priority) == ({"first": 1, "second": 3}, 2)
    assert Job.objects.get() == enqueued


@pytest.mark.django_db
def test_a_generator_of_twelve_thousand_is_enqueued_in_batches_in_order(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    noop.enqueue()
    with django_assert_num_queries(6):
        ids = enqueue_many("app.add", ({"first": number} for number in range(12_000)))
    assert len(ids) == 12_000
    assert ids == sorted(ids)
    assert Job.objects.get(pk=ids[-1]).payload == {"first": 11_999}


@pytest.mark.django_db
def test_enqueue_many_takes_a_key_for_each_payload() -> None:
    first = add.enqueue_many([{"first": 1}, {"first": 2}], idempotency_keys=iter(["a", None]))
    again = add.enqueue_many([{"first": 3}, {"first": 4}], idempotency_keys=["a", "b"])
    assert again[0] == first[0]
    assert len({*first, *again}) == 3
    assert add.enqueue_many([]) == []


@pytest.mark.django_db
def test_the_keys_of_a_dict_are_in_its_order() -> None:
    by_key = {"z": {"first": 1}, "a": {"first": 2}}
    add.enqueue_many(by_key.values(), idempotency_keys=by_key.keys())
    made = Job.objects.order_by("pk").values_list("idempotency_key", "payload")
    assert dict(made) == by_key


@pytest.mark.django_db
@pytest.mark.parametrize(
    "keys, problem",
    [
        (["a"], "as many as the payloads"),
        (["a", "b", "c"], "as many as the payloads"),
        (["a", ""], "1 to 200 characters"),
        (["a", 7], "1 to 200 characters"),
        ("ab", "a list with a key or None for each payload, not a str"),
        (b"ab", "not a bytes"),
        ({"a", "b"}, "not a set"),
        (frozenset("ab"), "not a frozenset"),
        (7, "not an int"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: Any, problem: str) -> None:
    with pytest.raises(EnqueueError, match=problem):
        add.enqueue_many([{"first": 1}, {"first": 2}], idempotency_keys=keys)
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_one_key_for_many_is_refused() -> None:
    with pytest.raises(EnqueueError, match="a key for each payload"):
        add.using(idempotency_key="k").enqueue_many([{"first": 1}])


@pytest.mark.django_db
@pytest.mark.parametrize(
    "payload, problem",
    [
        ({"first": float("nan")}, r"payload\[1\].first: nan"),
        ({}, r"payload\[1\]: app.add"),
        ([1], r"payload\[1\] is a list"),
        ({7: 1}, r"payload\[1\]"),
    ],
)
def test_of_many_the_refused_one_is_named_by_its_index(payload: Any, problem: str) -> None:
    with pytest.raises(PayloadError, match=problem):
        add.enqueue_many([{"first": 1}, payload])
    assert not Job.objects.exists()
