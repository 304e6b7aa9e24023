"""``AsyncResult.get``: its timeout, inside a transaction, and for a job that is deleted."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import group
from celery.exceptions import TimeoutError
from django.db import connections, transaction

from django_jobs import JobsError
from django_jobs.api.waiting import listener
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.contrib.celery.project import tasks
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


def in_a_thread(function: Any) -> threading.Thread:
    def run() -> None:
        try:
            function()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_get_waits_no_longer_than_its_timeout() -> None:
    with pytest.raises(TimeoutError, match=r"has not ended after 0.01 s; it is ready"):
        tasks.add.delay(1).get(timeout=0.01)
    with pytest.raises(TimeoutError):
        tasks.add.AsyncResult("sent by nobody").get(timeout=0.01)


def test_a_task_of_before_is_waited_for_in_a_transaction() -> None:
    result = tasks.add.delay(1, 2)
    with transaction.atomic():
        Job.objects.count()
        tasks.add.delay(3, 4)
        seen = result.get(
            timeout=PATIENCE,
            interval=0.01,
            on_interval=lambda: in_a_thread(run_jobs).join(PATIENCE),
        )
    assert seen == 3


def test_in_a_transaction_the_timeout_holds() -> None:
    result = tasks.add.delay(1, 2)
    with transaction.atomic(), pytest.raises(TimeoutError):
        result.get(timeout=0.01, interval=0.01)


@pytest.mark.parametrize("savepoint", [True, False])
def test_a_task_of_the_same_transaction_is_refused(savepoint: bool) -> None:
    with transaction.atomic():
        with transaction.atomic(savepoint=savepoint):
            result = tasks.add.delay(1, 2)
        with pytest.raises(JobsError, match="until the commit, no worker sees"):
            result.get(timeout=PATIENCE)


def test_a_job_that_is_deleted_meanwhile_is_an_unknown_id() -> None:
    result, raised = tasks.add.delay(1), []

    def get() -> None:
        try:
            result.get(timeout=1)
        except Exception as error:
            raised.append(type(error))

    waiting = in_a_thread(get)
    until(lambda: listener._waiting or raised)
    Job.objects.all().delete()
    waiting.join(PATIENCE)
    assert raised == [TimeoutError]


def test_a_group_is_not_saved_and_says_what_to_use() -> None:
    result = group(tasks.add.s(1, 2), tasks.add.s(3, 4)).delay()
    for call in (
        result.save,
        result.delete,
        lambda: type(result).restore(result.id, app=result.app),
    ):
        with pytest.raises(NotImplementedError, match=r"Keep the ids .+ AsyncResult\(id\)"):
            call()
    for results in (result.iter_native, result.join_native):
        with pytest.raises(NotImplementedError, match=r"Use join\(\) or get\(\)"):
            list(results())
    run_jobs()
    assert [tasks.add.AsyncResult(one.id).get(timeout=PATIENCE) for one in result] == [3, 7]
