"""Wake-ups: after the commit, not too many, and harmless."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from django_jobs import cancel
from django_jobs.lifecycle import notifying
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job
from tests.app.jobs import noop
from tests.factories import listening, run_sql


@pytest.fixture
def manually(transactional_db: None) -> Iterator[None]:
    """Manual transaction management, as in a script that commits now and then."""
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.django_db(transaction=True)
def test_many_wake_ups_of_one_queue_in_a_moment_are_sent_once() -> None:
    with listening() as notes:
        for _ in range(50):
            notifying.notify("default")
            notifying.notify("bulk")
        sent = notes()
    assert set(sent) == {"default", "bulk"}
    assert len(sent) < 20


@pytest.mark.django_db(transaction=True)
def test_a_wake_up_is_sent_outside_the_callers_transaction() -> None:
    with listening() as notes:
        with transaction.atomic():
            notifying.notify_after_commit("default")
            assert notes() == []
        assert notes() == ["default"]


@pytest.mark.django_db(transaction=True)
def test_a_notification_waits_for_no_disk_and_leaves_others_as_durable_as_before() -> None:
    setting = ", current_setting('synchronous_commit')"
    assert run_sql(notifying.NOTIFY_ALONE + setting, ["django_jobs", "default"])[0][-1] == "off"
    notifying.notify("bulk")
    assert run_sql("SHOW synchronous_commit") == [("on",)]
    with transaction.atomic():
        notifying.notify("default")
        assert run_sql("SHOW synchronous_commit") == [("on",)]


@pytest.mark.django_db(transaction=True)
def test_a_notification_that_fails_is_logged_and_affects_no_job(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "django_jobs"), transaction.atomic():
        noop.enqueue()
        transaction.on_commit(lambda: connection.connection.close())
        notifying._last_sent.clear()
        notifying.notify_after_commit("bulk")
    connection.close()
    assert "event=wake_failed hint=bulk" in caplog.text
    assert Job.objects.count() == 1


def test_jobs_in_manual_transactions_notify_workers_at_the_commit(
    manually: None,
) -> None:
    with listening() as notes:
        first = noop.enqueue()
        noop.enqueue_many([{}] * 2)
        noop.using(queue="bulk").enqueue()
        later = noop.using(delay=60).enqueue()
        assert cancel(first.pk)
        with transaction.atomic():
            assert job_operations.run_now([later.pk]).done == [later.pk]
        assert notes() == []
        transaction.commit()
        assert set(notes()) == {"default", "bulk"}
        assert connection.run_on_commit == []
    assert Job.objects.filter(status="ready").count() == 4


def test_a_rolled_back_manual_transaction_leaves_no_job_and_no_notification(
    manually: None,
) -> None:
    with listening() as notes:
        noop.enqueue()
        transaction.rollback()
        assert notes() == []
    assert Job.objects.count() == 0
