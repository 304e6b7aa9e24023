"""What ``@job`` takes, and what it refuses at import."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError

from django_jobs import Backoff, Discard, JobsError, Retry, TimeLimitExceeded, job, registry
from tests.app.jobs import noop
from tests.factories import declared


def plain() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def positional(first: int, /) -> None: ...


def starred(*args: int) -> None: ...


async def coroutine() -> None: ...


class Callable_:  # noqa: N801
    def method(self) -> None: ...

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "handler, problem",
    [
        (generator, "is a generator; a job would never run its body"),
        (async_generator, "is a generator"),
        (lambda: None, "takes a function with a name"),
        (positional, "takes first: .* by position"),
        (starred, "by position"),
        (Callable_(), "takes a function with a name"),
        (Callable_().method, "takes a function with a name"),
        (Callable_.method, "Callable_.method is a method; a worker .*put @job on a function"),
        (Callable_, "takes a function with a name"),
        (partial(plain), "takes a function with a name"),
        (len, "takes a function with a name"),
        ("plain", "takes a function with a name"),
    ],
)
def test_a_handler_that_could_not_run_is_refused(handler: Any, problem: str) -> None:
    before = registry.names()
    with pytest.raises(TypeError, match=problem):
        job(handler)
    assert registry.names() == before


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"name": "n" * 201}, "1 to 200 characters"),
        ({"timeout": 0}, "timeout is a positive number"),
        ({"timeout": float("nan")}, "timeout is a positive number"),
        ({"timeout": "30"}, "timeout is a positive number"),
        ({"timeout": True}, "timeout is a positive number"),
        ({"timeout": 366 * 86_400 + 1}, "at most 31,622,400 .366 days."),
        ({"max_age": -1}, "max_age is a positive number"),
        ({"retry_for": 0}, "retry_for is a positive number"),
        ({"max_age": 101 * 366 * 86_400}, "max_age is a positive number .* at most"),
        ({"max_attempts": 2.5}, "max_attempts is a whole number"),
        ({"max_crashes": "3"}, "max_crashes is a whole number"),
        ({"retry_on": ["ValueError"]}, "retry_on takes exception classes"),
        ({"discard_on": [int]}, "discard_on takes exception classes"),
        ({"on_cancel": "kill"}, "on_cancel is 'raise' or 'ask', not 'kill'"),
        ({"delivery": "twice"}, "delivery is 'at_least_once', 'at_most_once' or 'exactly_once'"),
        ({"priority": 1000}, "from -100 to 100"),
        ({"max_attempts": 0}, "whole number from 1 to 2,147,483,647, not 0"),
        ({"max_crashes": 2**15}, "whole number from 1 to 32,767, not 32768"),
        ({"max_crashes": 0}, "whole number from 1 to 32,767, not 0"),
        ({"colour": "red"}, "there is no option 'colour'; known are: name, queue"),
        ({"max_retries": 3}, "there is no option 'max_retries'; did you mean 'max_attempts'"),
        ({"retry": 3}, "there is no option 'retry'; did you mean 'max_attempts'"),
        ({"soft_time_limit": 3}, "did you mean 'timeout'"),
        ({"acks_late": True}, "did you mean 'delivery'"),
        (
            {"bind": True},
            r"there is no option 'bind'; call current_run\(\) in the handler",
        ),
        ({"rate_limit": "10/m"}, "there is no option 'rate_limit'; name a resource, resources="),
        ({"max_concurrency": 3}, "give concurrency=Concurrency.'account:{account_id}', limit=2"),
        ({"sequence": "a"}, "concurrency=Concurrency.'account:{account_id}'. of @job lets one job"),
        ({"concurrency_key": "a"}, "lets one job of a key run at a time"),
        ({"fairness_key": "a"}, "tenant='{account_id}' of @job shares a queue among tenants"),
        ({"circuit_breaker": 5}, "it is an option of a resource: resources="),
        ({"queueing_lock": "a"}, "'idempotency_key' is an option of using"),
        ({"resource": "stripe"}, "did you mean 'resources'"),
        ({"countdown": 3}, r"there is no option 'countdown'; 'delay' is an option of using\(\)"),
        ({"eta": 3}, r"there is no option 'eta'; 'run_at' is an option of using\(\)"),
        ({"timout": 3}, "there is no option 'timout'; did you mean 'timeout'"),
        ({"delay": 5}, "there is no option 'delay'; it is an option of using"),
        ({"backoff": 5}, r"backoff is a Backoff, such as Backoff.fixed\(5\), not 5"),
        ({"backoff": {"curve": "fixed", "base": 5}}, "backoff is a Backoff"),
        ({"timeout": "3"}, "timeout is a positive number of seconds, .* not '3'"),
        ({"max_age": "1d"}, "max_age is a positive number of seconds, .* not '1d'"),
        ({"retry_on": 5}, "retry_on takes exception classes, not 5"),
        ({"retry_on": "OSError"}, "retry_on takes exception classes, not 'OSError'"),
        ({"retry_on": int}, "retry_on takes exception classes, not <class 'int'>"),
        ({"isolated": "yes"}, "isolated is True or False, not 'yes'"),
        ({"silence_timeout": 0}, "silence_timeout is a positive number of seconds"),
        ({"max_rss": 0.5}, "max_rss is a whole number of megabytes, not 0.5"),
        ({"error_budgets": {5: 1}}, "error_budgets takes exception classes, not 5"),
        ({"error_budgets": {OSError: 0}}, "of at least 1 for OSError, not 0"),
        ({"error_budgets": [OSError]}, r"error_budgets is a dict .* not \[<class 'OSError'>\]"),
        ({"retention": "1d"}, r"retention is a dict, such as .* not '1d'"),
        ({"retention": {"dead": {"number": 0}}}, 'retention: "number" must be a whole number'),
        ({"retention": {"deed": "1d"}}, "retention: its keys may be cancelled, dead, succeeded"),
        ({"retention": {"succeeded": "1d"}}, "retention limits dead jobs only; its queue says"),
        ({"version": 0}, "version is a whole number from 1 to 32,767, not 0"),
        ({"version": 32768}, "version is a whole number from 1 to 32,767, not 32768"),
        ({"upgrades": [dict]}, r"upgrades is a dict of functions by .* not \[<class 'dict'>\]"),
        ({"version": 2, "upgrades": {"1": dict}}, "a whole number from 1, not '1'"),
        ({"version": 2, "upgrades": {0: dict, 1: dict}}, "a whole number from 1, not 0"),
        ({"upgrades": {1: dict}}, r"upgrades\[1\] makes version 2, but version=1"),
        ({"version": 3, "upgrades": {1: dict}}, r"upgrades\[2\] is missing"),
        ({"version": 2, "upgrades": {1: 5}}, r"upgrades\[1\] is a function, not 5"),
        ({"version": 2, "upgrades": {1: asyncio.sleep}}, r"upgrades\[1\] is async; write a plain"),
        *(
            ({"aliases": given}, "aliases are former names, such as .*, not ")
            for given in (5, True, None, noop, {"old.name": 1}, {})
        ),
        ({"aliases": [""]}, "an alias is text of 1 to 200 characters, not one of 0"),
        ({"queue": "no spaces"}, "queue is 1 to 100 letters, .* not 'no spaces'"),
        ({"queue": ""}, "queue is 1 to 100 letters"),
        ({"queue": None}, "queue is 1 to 100 letters"),
        ({"name": ""}, "name is text of 1 to 200 characters, not one of 0"),
        ({"name": 5}, "name is text, not 5"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], problem: str) -> None:
    before = registry.names()
    with pytest.raises((TypeError, ValueError), match=f"^@job .*: .*{problem}"):
        job(**options)(plain)
    assert registry.names() == before


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"timeout": 60, "silence_timeout": 60}, "silence_timeout=60 never acts"),
        ({"timeout": 5, "silence_timeout": 60.5}, "silence_timeout=60.5 never acts"),
        ({"max_rss": 1}, "max_rss=1 megabytes is less than Django alone needs"),
        ({"max_age": 60, "backoff": Backoff.fixed(60)}, "so there is no second attempt"),
        ({"retry_for": 60, "backoff": Backoff.fixed(60)}, "retry_for=60 ends before the backoff"),
        ({"retry_for": 60, "delivery": "at_most_once"}, "so retry_for never acts"),
        ({"max_age": 60, "backoff": Backoff.linear(200, jitter=0.5)}, "so there is no second"),
        ({"delivery": "at_most_once", "backoff": Backoff.fixed(1)}, "so backoff never acts"),
        ({"delivery": "at_most_once", "retry_on": OSError}, "so retry_on never acts"),
        ({"delivery": "at_most_once", "discard_on": OSError}, "so discard_on never acts"),
        ({"delivery": "at_most_once", "error_budgets": {OSError: 2}}, "error_budgets never acts"),
        ({"delivery": "at_most_once", "max_attempts": 3}, "so max_attempts is 1, not 3"),
        ({"retry_on": OSError, "discard_on": OSError}, "OSError in retry_on never acts"),
        ({"retry_on": FileNotFoundError, "discard_on": OSError}, "FileNotFoundError in retry_on"),
        ({"discard_on": OSError, "error_budgets": {OSError: 2}}, "OSError in error_budgets never"),
        ({"retry_on": OSError, "error_budgets": {KeyError: 2}}, "it is not in retry_on"),
        ({"retry_on": Retry}, "Retry has a fixed meaning that retry_on cannot change"),
        ({"discard_on": (OSError, Discard)}, "Discard has a fixed meaning"),
        ({"error_budgets": {TimeLimitExceeded: 1}}, "TimeLimitExceeded has a fixed meaning"),
    ],
)
def test_an_option_that_can_never_take_effect_is_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"^@job .*: .*{problem}"):
        job(**options)(plain)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 60, "silence_timeout": 59.5},
        {"max_rss": 40},
        {"max_age": 60, "backoff": Backoff.fixed(100, jitter=0.5)},  # from 50 s
        {"max_age": 1, "timeout": 600},
        {"delivery": "at_most_once", "max_attempts": 1, "max_crashes": 1, "isolated": True},
        {"retry_on": OSError, "discard_on": FileNotFoundError},
        {"retry_on": OSError, "discard_on": KeyError},
        {"retry_on": OSError, "error_budgets": {ConnectionError: 2, Exception: 3}},
        {"retry_on": OSError, "error_budgets": {OperationalError: 2}},  # a lost race
        {"retry_on": Exception, "discard_on": JobsError},
        {"retention": {"dead": {"age": "180d", "number": 100}}},
        {"max_attempts": 1, "retry_on": OSError},  # using(max_attempts=3) may follow
        {"delivery": "exactly_once", "isolated": True, "silence_timeout": 5, "max_rss": 512},
    ],
)
def test_compatible_options_are_accepted(options: dict[str, Any]) -> None:
    with declared(plain, name="app.together", **options) as job_type:
        assert job_type.name == "app.together"


def test_a_single_exception_class_is_accepted() -> None:
    with declared(plain, name="app.once", retry_on=OSError, discard_on=[KeyError]) as job_type:
        assert job_type.retry_on == (OSError,)
        assert job_type.discard_on == (KeyError,)


def test_a_job_type_is_shown_by_its_name() -> None:
    assert repr(noop) == "<JobType app.noop>"


def test_exactly_once_needs_a_plain_function() -> None:
    with pytest.raises(ValueError, match="transactions are not async"):
        job(delivery="exactly_once")(coroutine)


def test_async_functions_are_handlers_too() -> None:
    with declared(coroutine, name="app.coroutine") as job_type:
        assert job_type.is_async
    assert not noop.is_async


def test_a_handler_is_named_for_its_app_and_itself_unless_it_has_a_name() -> None:
    assert noop.name == "app.noop"
    with declared(plain, name="billing.plain") as job_type:
        assert job_type.name == "billing.plain"
        assert job_type.handler_path == "tests.api.test_shortcuts_declaration.plain"


def test_a_decorated_function_keeps_its_signature() -> None:
    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        from functools import wraps

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * 2

        return wrapper

    @twice
    def double(number: int) -> int:
        return number

    with declared(double, name="app.double") as job_type:
        assert job_type.bind(4) == {"number": 4}
        assert job_type(4) == 8


def test_a_job_type_can_be_the_key_of_a_dict() -> None:
    assert {noop: "nothing"}[noop] == "nothing"


@pytest.mark.parametrize("habit", ["delay", "apply_async"])
def test_a_call_in_the_style_of_another_queue_raises_with_a_hint(habit: str) -> None:
    with pytest.raises(AttributeError, match=habit) as refused:
        getattr(noop, habit)
    assert str(refused.value).endswith(
        "; write noop.enqueue(...); for a delay, noop.using(delay=5).enqueue(...)"
    )
    for other, hint in {
        "defer": "write noop.enqueue(...); for a delay, noop.using(delay=5).enqueue(...)",
        "send_with_options": "write noop.enqueue(...)",
        "defer_async": "write await noop.aenqueue(...)",
        "batch_defer": "write noop.enqueue_many([{...}, {...}])",
        "s": "write noop.step(...), for a chain() or a group()",
        "si": "write noop.step(...), for a chain() or a group()",
        "retry": "raise Retry(after=5) in the handler",
        "update_state": "current_run().progress(0.5)",
        "AsyncResult": "Job.objects.get(pk=...)",
    }.items():
        with pytest.raises(AttributeError) as refused:
            getattr(noop, other)
        assert hint in str(refused.value)
    with pytest.raises(AttributeError, match=r"^'JobType' object has no attribute 'colour'$"):
        _ = noop.colour  # type: ignore[attr-defined]
    assert copy(noop) == noop
