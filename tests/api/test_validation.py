"""The options of a request, and those of its job type and queue behind them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from django_jobs import (
    Backoff,
    EnqueueError,
    JobType,
    QueueFull,
    cancel,
    chain,
    enqueue,
)
from django_jobs.api import sql_defaults
from django_jobs.models import Job, Queue
from django_jobs.signals import job_enqueued
from django_jobs.testing import run_jobs
from tests.app.jobs import noop
from tests.factories import declared, enqueue_and_claim, heard


@pytest.mark.django_db
def test_run_at_and_delay_postpone_the_job() -> None:
    later = timezone.now() + timedelta(hours=2)
    assert noop.using(run_at=later).enqueue().available_at == later
    delayed = noop.using(delay=timedelta(minutes=3)).enqueue()
    assert (delayed.available_at - delayed.created_at).total_seconds() == pytest.approx(180)
    assert delayed.status == "scheduled"
    both = noop.using(run_at=later).using(delay=180).enqueue()  # the later of the two holds
    assert (both.available_at - both.created_at).total_seconds() == pytest.approx(180)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"delay": 1, "run_at": timezone.now()}, "not both"),
        ({"delay": -1}, "0 or more seconds"),
        ({"delay": float("nan")}, "0 or more seconds"),
        ({"delay": timedelta(seconds=-1)}, "0 or more seconds"),
        ({"run_at": dt.datetime(2030, 1, 1)}, "needs a time zone"),
        ({"priority": 101}, "from -100 to 100"),
        ({"priority": 1.5}, "whole number"),
        ({"priority": True}, "whole number"),
        ({"max_attempts": 0}, "from 1 to 2,147,483,647"),
        ({"max_attempts": 1.5}, "max_attempts is a whole number"),
        ({"max_attempts": "3"}, "max_attempts is a whole number"),
        ({"max_attempts": True}, "max_attempts is a whole number"),
        ({"run_at": dt.datetime.max.replace(tzinfo=dt.UTC)}, "within 36,600 days of now"),
        ({"run_at": dt.datetime.max.replace(tzinfo=dt.timezone(-timedelta(hours=12)))}, "within"),
        ({"run_at": dt.datetime.min.replace(tzinfo=dt.timezone(timedelta(hours=12)))}, "within"),
        ({"run_at": timezone.now() + timedelta(days=36_601)}, "within 36,600 days of now"),
        ({"run_at": timezone.now() - timedelta(days=36_601)}, "within 36,600 days of now"),
        ({"run_at": dt.date(2030, 1, 1)}, "run_at is a datetime"),
        ({"run_at": "tomorrow"}, "run_at is a datetime"),
        ({"delay": "1"}, "0 or more seconds"),
        ({"idempotency_key": ""}, "1 to 200 characters, not one of 0"),
        ({"idempotency_key": "k" * 201}, "1 to 200 characters, not one of 201"),
        ({"idempotency_key": 5}, "1 to 200 characters, not 5"),
        ({"idempotency_key": "a\x00"}, "NUL"),
        ({"idempotency_key": "acme\x1fk"}, r"has no '\\x1f', which key_scope='tenant' writes"),
        ({"key_scope": "all"}, "key_scope is 'queue' or 'tenant', not 'all'"),
        ({"unique_for": 0}, "unique_for is a positive number of seconds"),
        ({"unique_for": -1}, "unique_for is a positive number of seconds"),
        ({"unique_for": timedelta(0)}, "unique_for is a positive number of seconds"),
        ({"unique_for": float("nan")}, "unique_for is a positive number of seconds"),
        ({"unique_for": float("inf")}, "unique_for is a positive number of seconds"),
        ({"unique_for": 1e10}, r"at most 3,162,240,000 \(36,600 days\)"),
        ({"unique_for": "1h"}, "or a timedelta, not '1h'"),
        ({"unique_for": True}, "or a timedelta, not True"),
        ({"on_duplicate": "replce"}, "not 'replce'; did you mean 'replace'?"),
        ({"on_duplicate": "rase"}, "on_duplicate is .*, not 'rase'; did you mean 'raise'?"),
        ({"on_duplicate": "x"}, "on_duplicate is 'return', 'replace' or 'raise', not 'x'$"),
        ({"on_duplicate": ["raise"]}, "on_duplicate is .*, not \\['raise'\\]"),
        ({"on_duplicate": True}, "on_duplicate is .*, not True"),
        ({"max_attempts": "3"}, "max_attempts is a whole number from 1 to .*, not '3'"),
        ({"delay": "5m"}, "0 or more seconds, .* or a timedelta, not '5m'"),
        ({"delay": 1e10}, r"at most 3,162,240,000 \(36,600 days\)"),
        ({"run_at": "tomorrow"}, "run_at is a datetime, not 'tomorrow'"),
        ({"queue": "no spaces"}, "queue is 1 to 100 letters"),
        ({"queue": 5}, "queue is 1 to 100 letters"),
        ({"headers": 5}, "headers are a dict, not 5"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(EnqueueError, match=f"^app.noop: .*{problem}"):
        noop.using(**options)


def test_more_attempts_of_a_job_that_is_never_retried_are_refused() -> None:
    def handler() -> None: ...

    with declared(handler, name="app.once", delivery="at_most_once") as once:
        with pytest.raises(EnqueueError, match=r"^app.once: .* so max_attempts is 1, not 7"):
            once.using(max_attempts=7)
        assert once.using(max_attempts=1).using(priority=3).max_attempts == 1


@pytest.mark.parametrize(
    "option, hint",
    [
        ("timeout", "it is an option of @job"),
        ("time_limit", "'timeout' is an option of @job"),
        ("eta", "did you mean 'run_at'? known are: queue, priority, run_at, delay, "),
        ("countdown", "did you mean 'delay'? known are: "),
        ("job_key", "did you mean 'idempotency_key'? known are: "),
        ("job_key_mode", "did you mean 'on_duplicate'? known are: "),
        ("unique", "an idempotency_key is unique while its job is live, with unique_for for "),
        ("debounce", "using(on_duplicate='replace') replaces a job that has not started"),
        ("ttl", "unique_for keeps a key unique; max_age of @job limits how long"),
        ("prioritty", "did you mean 'priority'? known are: "),
        ("colour", "known are: queue, priority, "),
    ],
)
def test_an_unknown_option_of_using_is_refused_with_the_known_ones(option: str, hint: str) -> None:
    options: dict[str, Any] = {option: 5}
    for request in (noop.using, lambda **options: enqueue("app.noop", **options)):
        with pytest.raises(TypeError) as refused:
            request(**options)
        assert str(refused.value).startswith(f"app.noop: there is no option {option!r}; {hint}")


def test_using_changes_a_copy() -> None:
    chosen = noop.using(priority=9, queue="bulk")
    assert (chosen.priority, chosen.queue) == (9, "bulk")
    assert (noop.priority, noop.queue) == (0, "default")
    assert noop.using() == noop


@pytest.mark.django_db
def test_options_of_the_job_type_precede_the_queue_and_the_defaults() -> None:
    def handler() -> None: ...

    rule = Backoff.fixed(3)
    Queue.objects.filter(name="bulk").update(backoff=Backoff.fixed(9).as_json())
    with declared(handler, name="app.plain", queue="bulk") as plain:
        queued = plain.enqueue()
    with declared(handler, name="app.own", queue="bulk", max_attempts=7, backoff=rule) as own:
        chosen = own.enqueue()
    assert (queued.max_attempts, queued.timeout) == (2, 60)
    assert queued.backoff_rule == Backoff.fixed(9)
    assert (chosen.max_attempts, chosen.backoff_rule) == (7, rule)
    default = noop.enqueue()
    assert (default.max_attempts, default.timeout, default.backoff) == (5, None, None)


@pytest.mark.django_db
def test_a_maximum_age_counts_from_the_enqueue() -> None:
    def handler() -> None: ...

    with declared(handler, name="app.brief", max_age=timedelta(minutes=1)) as brief:
        enqueued = brief.enqueue()
    assert enqueued.expires_at is not None
    assert enqueued.expires_at - enqueued.created_at == timedelta(minutes=1)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "use",
    [
        lambda exact: exact.enqueue(),
        lambda exact: exact.using(delay=Decimal(0)).enqueue(),
        lambda exact: chain(exact.step()).start(),
        lambda exact: chain(exact.using(delay=Decimal(0)).step()).start(),
        lambda exact: chain(exact.step()).using(delay=Decimal(0)).start(),
        lambda exact: chain(replace(exact.step(), compensate=exact)).start(),
        lambda exact: (sql_defaults.synchronise("default"), exact.enqueue()),
    ],
)
def test_seconds_may_be_decimals(use: Callable[[JobType[..., Any]], object]) -> None:
    def handler() -> None: ...

    options = {"timeout": Decimal(9), "silence_timeout": Decimal("2.5"), "max_age": Decimal(60)}
    with declared(handler, name="app.exact", **options) as exact:
        use(exact)
        run_jobs(check=True)


@pytest.mark.django_db
def test_a_full_queue_refuses_until_there_is_room() -> None:
    Queue.objects.filter(name="default").update(max_backlog=2)
    first = noop.enqueue()
    noop.enqueue()
    with pytest.raises(QueueFull, match="reached its max_backlog of 2"):
        noop.enqueue()
    assert cancel(first.pk)
    noop.enqueue()


@pytest.mark.django_db
def test_cancel_says_whether_there_was_something_to_stop() -> None:
    assert cancel(noop.enqueue().pk)
    assert cancel(enqueue_and_claim().id)
    assert not cancel(10**12)
    assert not cancel(10**30)
    assert not cancel(-1)


@pytest.mark.parametrize("given", ["x", "7", None, 7.0, True, Job(pk=7)])
def test_cancel_refuses_anything_but_an_id(given: Any) -> None:
    with pytest.raises(TypeError, match="cancel takes the id of a job"):
        cancel(given)


@pytest.mark.django_db
def test_an_enqueue_is_signalled_unless_it_found_a_live_job() -> None:
    keyed = noop.using(idempotency_key="k")
    with heard(job_enqueued) as sent:
        first = keyed.enqueue()
        keyed.enqueue()
    assert [(one["sender"], one["job"].pk) for one in sent] == [("app.noop", first.pk)]


@pytest.mark.parametrize("key", ["a\x00b", "\ud800", ""])
def test_a_key_that_cannot_be_stored_is_refused(key: str) -> None:
    with pytest.raises(EnqueueError):
        noop.using(idempotency_key=key)


@pytest.mark.django_db
@pytest.mark.parametrize("key", [" ", "🦊" * 200, "a'b\\n%s", "k" * 200])
def test_any_other_key_of_up_to_200_characters_is_taken(key: str) -> None:
    assert noop.using(idempotency_key=key).enqueue().idempotency_key == key
    assert noop.using(idempotency_key=key).enqueue().deduplicated


@pytest.mark.django_db
def test_a_key_within_a_tenant_needs_one_and_both_are_at_most_200_characters() -> None:
    keyed = noop.using(key_scope="tenant", idempotency_key="k" * 195)
    with pytest.raises(EnqueueError, match=r"^app.noop: key_scope='tenant' needs a tenant"):
        keyed.enqueue()
    assert keyed.using(tenant="acme").enqueue().tenant == "acme"
    with pytest.raises(EnqueueError, match="together have at most 199 characters, not 200"):
        keyed.using(tenant="acme!").enqueue()
    with pytest.raises(EnqueueError, match="key_scope needs an idempotency key"):
        noop.using(key_scope="tenant", tenant="acme").enqueue()


def test_job_types_are_values() -> None:
    assert isinstance(noop, JobType)
