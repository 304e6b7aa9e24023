"""The project is told how attempts ended."""

from __future__ import annotations

import logging
import time

import pytest
from django.dispatch import Signal

from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle.signalling import _by_job_type, receive_ends_of, send_job_signals
from django_jobs.signals import attempt_failed, job_dead, job_finished, worker_event
from django_jobs.worker.events import emit
from tests.app.jobs import add, noop
from tests.factories import enqueue_and_claim, failure, heard, settle_one

pytestmark = pytest.mark.django_db


def test_a_success_sends_only_job_finished() -> None:
    held = enqueue_and_claim()
    now = time.monotonic()
    settled = settle_one(held, Succeeded(), started=now - 2, finished=now)
    with heard(job_finished) as finished, heard(attempt_failed) as failed, heard(job_dead) as dead:
        send_job_signals([settled])
    assert finished == [
        {
            "sender": "app.noop",
            "job_id": held.id,
            "queue": "default",
            "attempt": 1,
            "status": "succeeded",
            "outcome": "succeeded",
            "seconds": pytest.approx(2),
            "error": "",
            "error_code": "",
            "reason": "",
            "traceback": "",
            "exception": None,
            "trace_id": "",
            "span_id": "",
        }
    ]
    assert failed == dead == []


def test_attempt_failed_has_the_error_on_one_line() -> None:
    settled = settle_one(enqueue_and_claim(), failure("no\nway"))
    with heard(job_finished) as finished, heard(attempt_failed) as failed, heard(job_dead) as dead:
        send_job_signals([settled])
    assert finished == failed
    assert (failed[0]["outcome"], failed[0]["error"]) == ("failed", "ValueError: no")
    assert failed[0]["seconds"] is None
    assert dead == []


def test_a_dead_letter_is_shown_with_its_reason() -> None:
    settled = settle_one(enqueue_and_claim(), failure(final=True))
    with heard(job_dead) as dead:
        send_job_signals([settled])
    assert dead[0]["reason"].startswith("not retried")


def test_a_lost_lease_is_not_reported() -> None:
    held = enqueue_and_claim()
    settle_one(held, failure(final=True))
    late = settle_one(held, Snoozed(seconds=1))
    with heard(job_finished) as finished:
        send_job_signals([late])
    assert finished == []


def test_a_receiver_that_raises_does_not_affect_others() -> None:
    def broken(**keywords: object) -> None:
        raise RuntimeError("receiver")

    settled = settle_one(enqueue_and_claim(), failure())
    attempt_failed.connect(broken)
    try:
        with heard(attempt_failed) as failed:
            send_job_signals([settled])
    finally:
        attempt_failed.disconnect(broken)
    assert len(failed) == 1


@pytest.mark.parametrize("leave", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("signal", [job_finished, attempt_failed, job_dead, worker_event])
def test_a_receiver_that_exits_does_not_end_the_thread_that_sends(
    signal: Signal, leave: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def exits(**keywords: object) -> None:
        raise leave("a receiver")

    settled = settle_one(enqueue_and_claim(), failure(final=True))
    signal.connect(exits)
    receive_ends_of("app.noop", exits)
    try:
        send_job_signals([settled])
        emit("worker_started", logging.INFO)
    finally:
        signal.disconnect(exits)
        del _by_job_type["app.noop"]
    assert f"{leave.__name__}: a receiver" in caplog.text


def test_a_receiver_of_one_job_type_hears_of_its_ends_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended: list[str] = []

    def receive(sender: str, *, status: str, **kwargs: object) -> None:
        ended.append(f"{sender} {status}")
        raise ValueError("the receiver has a bug")

    receive_ends_of("app.noop", receive)
    try:
        for job_type in (noop, add):
            arguments = (1, 2) if job_type is add else ()
            settled = settle_one(enqueue_and_claim(job_type, *arguments), Succeeded())
            send_job_signals([settled])
    finally:
        del _by_job_type["app.noop"]
    assert ended == ["app.noop succeeded"]
    assert "event=receiver_failed job_type=app.noop" in caplog.text
