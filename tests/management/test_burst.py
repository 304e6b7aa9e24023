"""A burst in the process of a test, as the quick start tells people to test with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_jobs import logs
from django_jobs.models import Job
from tests.app.jobs import fail, write_effect
from tests.app.models import Effect

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in CAUGHT}
    yield
    logs.disconnect()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_burst_runs_what_a_test_enqueued() -> None:
    asked = write_effect.enqueue("from a test")
    call_command("jobworker", burst=True, verbosity=0)
    asked.refresh_from_db()
    assert asked.status == "succeeded"
    assert Effect.objects.get().note == "from a test"


def test_a_burst_gives_the_signals_back() -> None:
    """Or Ctrl-C would not end the tests any more."""
    before = {number: signal.getsignal(number) for number in CAUGHT}
    call_command("jobworker", burst=True, verbosity=0)
    assert before == {number: signal.getsignal(number) for number in CAUGHT}


def test_a_burst_leaves_scheduled_jobs_and_retries() -> None:
    later = write_effect.using(delay=3600).enqueue("later")
    retried = fail.using(max_attempts=2).enqueue()
    Job.objects.filter(pk=retried.pk).update(backoff={"curve": "fixed", "base": 3600})
    call_command("jobworker", burst=True, verbosity=0)
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert statuses == {later.pk: "scheduled", retried.pk: "scheduled"}


def test_a_burst_inside_a_transaction_is_refused_and_leaves_the_connection() -> None:
    """Its workers could not see what the test wrote, and closing the connection loses it."""
    with transaction.atomic():
        asked = write_effect.enqueue("from a TestCase")
        with pytest.raises(CommandError, match="use TransactionTestCase"):
            call_command("jobworker", burst=True, verbosity=0)
        assert Job.objects.filter(pk=asked.pk, status="ready").exists()
    assert Job.objects.filter(pk=asked.pk).exists()
    assert connection.is_usable()
