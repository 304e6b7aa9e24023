"""From an exception to an outcome, whatever the exception is."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any, NoReturn

import psycopg
import pytest
from django.db import InterfaceError, OperationalError

from django_jobs import Cancel, Discard, Retry, Skip, Snooze
from django_jobs.domain.outcomes import Cancelled, Failed, Outcome, Released, Snoozed
from django_jobs.domain.workflows import Skipped
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from django_jobs.worker.context.attempt import StopHandler, Suspended
from django_jobs.worker.execution.failures import CANCELLED_HERE, deciding, outcome_of_exception
from tests.app import once_jobs
from tests.factories import declared


def plain() -> None: ...


def fate_of(error: BaseException, **options: Any) -> Outcome:
    with declared(plain, name="app.failing", **options) as job_type:
        return outcome_of_exception(error, job_type)


def failed(error: BaseException, **options: Any) -> Failed:
    outcome = fate_of(error, **options)
    assert isinstance(outcome, Failed)
    return outcome


class Explosive(Exception):
    """Raises at every look."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise SystemExit(name)

    def __str__(self) -> str:
        raise KeyboardInterrupt


class ExplosiveDelay(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("not read yet")


class ExplosiveHeaders:
    def get(self, name: str) -> str:
        raise RuntimeError(name)


class Undecided(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError


class Strange(Exception, metaclass=Undecided): ...


def answered(headers: Any) -> Exception:
    error = ConnectionError("503")
    error.response = SimpleNamespace(headers=headers)  # type: ignore[attr-defined]
    return error


def test_a_handler_chooses_its_fate() -> None:
    assert fate_of(Snooze(timedelta(minutes=1), "later")) == Snoozed(seconds=60, reason="later")
    assert fate_of(Cancel("gone")) == Cancelled(reason="gone")
    assert fate_of(Skip("no rows")) == Cancelled(
        reason="skipped: no rows", skipped=Skipped.UNNEEDED
    )
    assert fate_of(Skip()) == Cancelled(reason="skipped: not needed", skipped=Skipped.UNNEEDED)
    assert failed(Discard("hopeless")).final
    assert failed(Retry(Decimal(5))).retry_after == 5
    retry = failed(Retry(queue="slow", priority=-5))
    assert (retry.queue, retry.priority, retry.max_attempts) == ("slow", -5, None)
    assert failed(Retry(max_attempts=3)).max_attempts == 3
    assert isinstance(fate_of(StopHandler()), Released)


def grouped(*errors: BaseException) -> BaseException:
    """As two nested task groups raise them, the first one outside of the inner group."""
    inner = BaseExceptionGroup("unhandled errors in a TaskGroup", errors[1:] or errors)
    return BaseExceptionGroup("unhandled errors in a TaskGroup", [*errors[:1], inner])


def test_a_fate_in_a_group_is_a_fate() -> None:
    assert fate_of(grouped(Snooze(60, "later"))) == Snoozed(seconds=60, reason="later")
    assert fate_of(grouped(Cancel("gone"))) == Cancelled(reason="gone")
    retry = failed(grouped(Retry(5, "busy", queue="slow")), retry_on=(OSError,))
    assert (retry.retry_after, retry.queue, retry.final) == (5, "slow", False)
    assert retry.error.message == "busy"
    assert failed(grouped(Discard("hopeless"))).final
    assert isinstance(fate_of(grouped(StopHandler())), Released)
    assert fate_of(grouped(Suspended(Snoozed(seconds=9)))) == Snoozed(seconds=9)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, Explosive])
def test_a_fate_beside_a_failure_is_the_fate(kind: type[BaseException]) -> None:
    beside = kind()
    assert fate_of(grouped(beside, Snooze(60, "later"))) == Snoozed(seconds=60, reason="later")
    assert fate_of(grouped(Cancel("gone"), beside)) == Cancelled(reason="gone")
    retry = failed(grouped(beside, Retry(5, "busy")))
    assert (retry.retry_after, retry.error.message) == (5, "busy")
    if kind is not Explosive:  # of which nothing can be shown
        assert kind.__name__ in retry.error.traceback


def test_of_several_fates_the_one_decides_that_ends_more() -> None:
    order = [Cancel("c"), Discard("d"), StopHandler(), Retry(5), Suspended(Snoozed(seconds=9))]
    for place, error in enumerate(order):
        assert deciding(grouped(Snooze(1), *reversed(order[place:]))) is error
    assert deciding(grouped(first := Retry(1), Retry(2))) is first
    sleeps = [Suspended(Snoozed(seconds=seconds)) for seconds in (9.0, 3.0)]
    assert deciding(grouped(*sleeps)) is sleeps[1]
    assert deciding(grouped(ValueError(), KeyError())) is None


def test_a_group_of_failures_is_a_failure() -> None:
    outcome = failed(grouped(ValueError("one"), KeyError("two")))
    assert (outcome.error.type, outcome.final) == ("ExceptionGroup", False)


def test_a_fate_that_was_changed_afterwards_is_still_usable() -> None:
    snooze, retry = Snooze(1), Retry(1)
    snooze.seconds = retry.after = "soon"  # type: ignore[assignment]
    assert fate_of(snooze) == Snoozed(seconds=60)
    retry.queue, retry.priority = object(), 101  # type: ignore[assignment]
    retry.max_attempts = "3"  # type: ignore[assignment]
    assert failed(retry).retry_after is None
    assert (failed(retry).queue, failed(retry).priority) == (None, None)
    assert failed(retry).max_attempts is None


UNREADABLE: dict[str, Callable[[], Exception]] = {
    "retry_after": ExplosiveDelay,
    "headers": lambda: answered(ExplosiveHeaders()),
    "a year": lambda: answered({"Retry-After": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}),
    "a number": lambda: answered({"Retry-After": "9" * 5000}),
    "an object": lambda: answered({"Retry-After": object()}),
    "no method": lambda: answered(SimpleNamespace(get=None)),
    "no headers": lambda: answered(7),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_exception_that_cannot_be_read_is_an_ordinary_failure(what: str) -> None:
    error = UNREADABLE[what]()
    outcome = failed(error)
    assert (outcome.retry_after, outcome.final) == (None, False)
    assert outcome.error.type.endswith(type(error).__name__)
    assert failed(error, discard_on=(Exception,)).final


def test_an_exception_that_raises_when_inspected_is_an_ordinary_failure() -> None:
    outcome = failed(Explosive())
    assert (outcome.retry_after, outcome.final) == (None, False)
    assert outcome.error.type.endswith("Explosive")


def test_an_exception_class_that_breaks_issubclass_forbids_no_retry() -> None:
    assert not failed(ValueError(), retry_on=(Strange,)).final
    assert not failed(ValueError(), discard_on=(Strange,)).final


def test_a_moment_is_counted_from_the_clock_that_named_it() -> None:
    theirs = datetime(2099, 1, 1, tzinfo=UTC)
    headers = {
        "Retry-After": format_datetime(theirs + timedelta(seconds=90), usegmt=True),
        "Date": format_datetime(theirs, usegmt=True),
    }
    assert failed(answered(headers)).retry_after == 90
    headers["Date"] = "yesterday"
    late = theirs + timedelta(seconds=90)
    most = late - datetime.now(UTC)
    after = failed(answered(headers)).retry_after
    assert after is not None
    assert late - datetime.now(UTC) <= timedelta(seconds=after) <= most


NOW = format_datetime(datetime(2099, 1, 1, tzinfo=UTC), usegmt=True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "0"},
        {"Retry-After": "-5"},
        {"Retry-After": 0},
        {"Retry-After": "Mon, 01 Jan 2001 00:00:00 GMT"},
        {"Retry-After": NOW, "Date": NOW},
    ],
)
def test_a_retry_after_header_of_zero_leaves_the_backoff(headers: dict[str, Any]) -> None:
    assert failed(answered(headers)).retry_after is None
    error = ConnectionError()
    error.headers = headers  # type: ignore[attr-defined]
    assert failed(error).retry_after is None


def test_a_retry_after_of_zero_does_not_hide_that_of_the_response() -> None:
    error = answered({"Retry-After": "7"})
    error.retry_after = 0  # type: ignore[attr-defined]
    assert failed(error).retry_after == 7


def test_retry_after_zero_is_retried_at_once() -> None:
    assert failed(Retry(after=0)).retry_after == 0


@pytest.mark.parametrize(
    "asked, seconds",
    [
        *((5, 5.0), (0.5, 0.5), (timedelta(minutes=1), 60.0), ("7", 7.0), (float("inf"), None)),
        *((0, None), (-1, None), ("0", None), (timedelta(0), None), (timedelta(-1), None)),
        (datetime(2001, 1, 1, tzinfo=UTC), None),
    ],
)
def test_an_exception_may_name_its_delay(asked: Any, seconds: float | None) -> None:
    error = ConnectionError()
    error.retry_after = asked  # type: ignore[attr-defined]
    assert failed(error).retry_after == seconds


def test_a_job_type_says_what_is_retried() -> None:
    assert failed(ValueError(), retry_on=(OSError,)).final
    assert not failed(ConnectionError(), retry_on=(OSError,)).final


def test_an_async_handler_that_another_one_cancelled_is_retried_in_spite_of_retry_on() -> None:
    async def handler() -> None: ...

    with declared(handler, name="app.handler", retry_on=(OSError,)) as job_type:
        outcome = outcome_of_exception(asyncio.CancelledError(), job_type)
    assert isinstance(outcome, Failed)
    assert not outcome.final
    assert outcome.error.message == CANCELLED_HERE


class OfTheServer(psycopg.OperationalError):
    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.sqlstate = state


def by_django(cause: Exception | None) -> Exception:
    """As Django raises what the driver raised."""
    error = OperationalError("of the database")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("state", ["40001", "40P01", "57P01", "57P02", "57P03", "08006", "08P01"])
def test_deadlocks_and_lost_connections_are_retried_in_spite_of_retry_on(state: str) -> None:
    for error in (OfTheServer(state), by_django(OfTheServer(state))):
        assert not failed(error, retry_on=(ConnectionError,)).final
        assert failed(error, discard_on=(type(error),), retry_on=(ConnectionError,)).final


def test_an_unreachable_database_is_retried_in_spite_of_retry_on() -> None:
    raw = psycopg.OperationalError("no route to host")
    for error in (raw, by_django(raw), by_django(None), InterfaceError("closed")):
        assert not failed(error, retry_on=(ConnectionError,)).final
    assert failed(by_django(sqlite3.OperationalError("no such table")), retry_on=(OSError,)).final


@pytest.mark.parametrize("state", ["57014", "53100", "23505"])
def test_errors_of_the_server_obey_retry_on(state: str) -> None:
    assert failed(by_django(OfTheServer(state)), retry_on=(ConnectionError,)).final
    assert not failed(by_django(OfTheServer(state)), retry_on=(OperationalError,)).final


@pytest.mark.django_db
@pytest.mark.parametrize(
    "kinds, failures, because",
    [
        (
            ["ConnectionError"] * 6,
            2,
            "failed 2 times, and the error budget of ConnectionError is 2",
        ),
        (["OSError"] * 6, 4, "failed 4 times, and the error budget of OSError is 4"),
        (["KeyError"] * 6, 6, "failed 6 of 6 times"),
        (
            ["KeyError", "KeyError", "ConnectionError"],
            3,
            "failed 3 times, and the error budget of Conn",
        ),
    ],
)
def test_an_error_has_the_smallest_budget_of_its_classes(
    kinds: list[str], failures: int, because: str
) -> None:
    once_jobs.call_out.enqueue(kinds)
    run_jobs()
    dead = Job.objects.get()
    assert (dead.status, dead.failures) == ("dead", failures)
    assert dead.reason.startswith(because)
