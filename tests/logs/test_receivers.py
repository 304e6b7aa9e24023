"""The signals of the worker become log lines: one per event, with stable keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
from django.contrib.auth.models import User

from django_jobs import logs
from django_jobs.domain.outcomes import Cancelled, Snoozed, Succeeded
from django_jobs.lifecycle.operations.jobs import cancel
from django_jobs.lifecycle.signalling import send_job_signals
from django_jobs.models import Job
from django_jobs.signals import job_finished, worker_event
from tests.factories import enqueue_and_claim, failure, settle_one

Lines = Callable[[], list[tuple[int, str]]]


@pytest.fixture(autouse=True)
def _disconnected() -> Iterator[None]:
    yield
    logs.disconnect()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Lines]:
    """What was logged so far at INFO or above: level and text."""
    logs.connect(logging.INFO)
    with caplog.at_level(logging.INFO, "django_jobs"):
        yield lambda: [(record.levelno, record.getMessage()) for record in caplog.records]


@pytest.mark.django_db
def test_a_failure_is_a_warning_with_all_that_identifies_it(
    lines: Lines,
) -> None:
    held = enqueue_and_claim()
    outcome = failure("no such\norder", code="503")
    send_job_signals([settle_one(held, outcome, started=10.0, finished=11.25)])
    assert lines() == [
        (
            logging.WARNING,
            f"event=job_failed job_id={held.id} job_type=app.noop queue=default attempt=1 "
            "status=scheduled outcome=failed seconds=1.250 error_code=503 "
            'error="ValueError: no such"',
        )
    ]


@pytest.mark.django_db
def test_a_dead_letter_is_an_error_with_its_reason(lines: Lines) -> None:
    held = enqueue_and_claim()
    send_job_signals([settle_one(held, failure(final=True))])
    (_, (level, line)) = lines()
    assert level == logging.ERROR
    assert line.startswith(f"event=job_dead job_id={held.id} ")
    assert line.endswith('reason="not retried: ValueError: boom"')


@pytest.mark.django_db
def test_endings_without_a_failure_are_logged_as_info(lines: Lines) -> None:
    send_job_signals([settle_one(enqueue_and_claim(), Snoozed(seconds=5))])
    ((level, line),) = lines()
    assert level == logging.INFO
    assert line.startswith("event=job_snoozed ")


@pytest.mark.django_db
def test_a_cancelled_job_is_logged_with_its_reason(lines: Lines) -> None:
    send_job_signals([settle_one(enqueue_and_claim(), Cancelled(reason="the order was deleted"))])
    ((level, line),) = lines()
    assert level == logging.INFO
    assert line.startswith("event=job_cancelled ")
    assert line.endswith('reason="the order was deleted"')


@pytest.mark.parametrize("is_known", [True, False])
def test_a_job_that_was_asked_to_stop_is_logged_with_who_asked(
    lines: Lines, admin_user: User, is_known: bool
) -> None:
    held = enqueue_and_claim()
    cancel([held.id], actor=admin_user)
    settled = settle_one(held, failure("stopped"), cancel_requested=is_known)
    send_job_signals([settled])
    ((_level, line),) = lines()
    assert line.endswith('reason="cancelled by admin"')
    assert Job.objects.get(pk=held.id).reason == "cancelled by admin"


@pytest.mark.django_db
def test_successes_have_a_receiver_only_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    logs.connect(logging.INFO)
    assert not job_finished.has_listeners("app.noop")
    logs.connect(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, "django_jobs"):
        send_job_signals([settle_one(enqueue_and_claim(), Succeeded())])
        send_job_signals([settle_one(enqueue_and_claim(), failure())])
    events = [record.getMessage().split()[0] for record in caplog.records]
    assert events == ["event=job_succeeded", "event=job_failed"]


def test_the_level_defaults_to_that_of_the_logger(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "django_jobs"):
        logs.connect()
    assert job_finished.has_listeners("app.noop")


def test_a_worker_event_is_logged_at_its_level_with_its_fields(
    lines: Lines,
) -> None:
    fields = {"worker": 7, "asked": "by an operator", "signal": "", "timeout": 30.0}
    worker_event.send_robust("draining", level=logging.INFO, fields=fields)
    worker_event.send_robust("job_succeeded", level=logging.DEBUG, fields={})
    text = 'event=draining worker=7 asked="by an operator" timeout=30.000'
    assert lines() == [(logging.INFO, text)]


def test_connecting_twice_logs_once(lines: Lines) -> None:
    logs.connect(logging.INFO)
    worker_event.send_robust("worker_started", level=logging.INFO, fields={})
    assert len(lines()) == 1
