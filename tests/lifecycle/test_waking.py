"""Wake-ups: after the commit, not too many, and harmless."""

from __future__ import annotations

import logging

import pytest
from django.db import connection, transaction

from django_jobs.lifecycle import waking
from django_jobs.models import Job
from tests.app.jobs import noop
from tests.factories import listening


@pytest.mark.django_db(transaction=True)
def test_many_wake_ups_of_one_queue_in_a_moment_are_sent_once() -> None:
    with listening() as notes:
        for _ in range(50):
            waking.wake("default")
            waking.wake("bulk")
        sent = notes()
    assert set(sent) == {"default", "bulk"}
    assert len(sent) < 20


@pytest.mark.django_db(transaction=True)
def test_a_wake_up_is_sent_outside_the_callers_transaction() -> None:
    with listening() as notes:
        with transaction.atomic():
            waking.wake_after_commit("default")
            assert notes() == []
        assert notes() == ["default"]


@pytest.mark.django_db(transaction=True)
def test_a_wake_up_that_fails_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "django_jobs"), transaction.atomic():
        noop.enqueue()
        transaction.on_commit(lambda: connection.connection.close())
        waking._last_sent.clear()
        waking.wake_after_commit("bulk")
    connection.close()
    assert "event=wake_failed queue=bulk" in caplog.text
    assert Job.objects.count() == 1
