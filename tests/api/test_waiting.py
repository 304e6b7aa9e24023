"""Waiting for the end of a job, without any worker."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs import JobsError, cancel
from django_jobs.api import waiting as listening
from django_jobs.api.waiting import listener
from django_jobs.models import Job, JobStatus
from tests.app.jobs import noop
from tests.patience import PATIENCE
from tests.worker.processes import until


@pytest.mark.django_db
def test_a_job_that_has_ended_is_not_waited_for(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    job = noop.enqueue()
    cancel(job.pk)
    with django_assert_num_queries(1):
        assert job.wait() == JobStatus.CANCELLED


@pytest.mark.django_db(transaction=True)
def test_an_end_of_which_no_worker_says_anything_is_seen() -> None:
    job = noop.enqueue()

    def end() -> None:
        until(lambda: listener._waiting, what="it waits")
        cancel(job.pk)
        connections.close_all()

    thread = threading.Thread(target=end)
    thread.start()
    assert job.wait(timeout=PATIENCE) == JobStatus.CANCELLED
    thread.join()


def test_what_is_no_id_wakes_nobody() -> None:
    woken: list[str] = []
    with listener.listening(7, lambda: woken.append("7")):
        listener._hear(f"x,,{'9' * 7_000},6,7")
    assert woken == ["7"]


@pytest.mark.django_db(transaction=True)
def test_a_wait_that_takes_too_long_raises_and_the_job_continues() -> None:
    job = noop.enqueue()
    with pytest.raises(
        TimeoutError, match=r"app\.noop #\d+ has not ended after 0.1 s; it is ready"
    ):
        job.wait(timeout=0.1)
    with pytest.raises(TimeoutError):
        job.wait(timeout=0)
    with pytest.raises(TimeoutError):
        async_to_sync(job.await_end)(timeout=0.1)
    assert Job.objects.get(pk=job.pk).status == JobStatus.READY


@pytest.mark.django_db(transaction=True)
def test_a_wait_for_what_is_not_committed_is_refused() -> None:
    with transaction.atomic():
        job = noop.enqueue()
        with pytest.raises(JobsError, match=r"cannot be waited for in transaction\.atomic\(\)"):
            job.wait(timeout=PATIENCE)


@pytest.mark.django_db(transaction=True)
def test_a_wait_for_a_job_that_is_deleted_raises() -> None:
    job = noop.enqueue()
    Job.objects.all().delete()
    with pytest.raises(Job.DoesNotExist):
        job.wait(timeout=PATIENCE)


def test_a_listener_that_ends_with_any_error_can_be_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where the database is refused to a test, or a driver raises what is none of its errors."""
    errors: list[BaseException] = []
    refusing = Mock(**{"cursor.side_effect": RuntimeError("not now")})
    monkeypatch.setattr(listening, "jobs_connection", lambda: refusing)
    monkeypatch.setattr(threading, "excepthook", lambda given: errors.append(given.exc_value))
    for number in range(1, 3):
        listener.ensure()
        until(lambda: len(errors) == number and listener._thread is None)  # noqa: B023
