"""``retry(throw=False)``: the retry is another job, because the task continues."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import VERSION

from django_jobs.api.generations import GENERATION, PARENT
from django_jobs.models import Job
from tests.contrib.celery.running import run_all

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


@pytest.mark.parametrize("broker, priority", [("amqp://", 9), ("redis://", -9)])
def test_the_other_job_has_the_options_of_the_first(
    configure: Callable[..., None], declare: Callable[..., Any], broker: str, priority: int
) -> None:
    seen = []

    def ask(self: Any) -> str:
        seen.append(self.request.delivery_info["priority"])
        if not self.request.retries:
            self.retry(throw=False, countdown=0)
        return "not stored"

    configure(broker_url=broker)
    result = declare(ask, bind=True).apply_async(
        queue="bulk",
        priority=9,
        expires=600,
        time_limit=90,
        soft_time_limit=80,
        shadow="other",
        ignore_result=True,
        headers={"trace": "x"},
    )
    run_all()
    first, second = Job.objects.order_by("pk")
    assert seen == [9, 9]
    for job in (first, second):
        assert (job.queue, job.priority, job.timeout) == ("bulk", priority, 90)
        assert job.status == "succeeded"
    own = {**first.headers["celery"], "retries": 1, "root_id": result.id}
    assert own["ignore_result"]
    if VERSION < (5, 7):  # whose retries do not pass it on
        del own["ignore_result"]
    assert (first.result, second.result) == (None, None if "ignore_result" in own else "not stored")
    assert second.headers == {"trace": "x", "celery": own, GENERATION: 1, PARENT: first.pk}
    assert {"shadow", "expires", "timelimit"} <= own.keys()
    assert second.expires_at is not None
    assert second.expires_at - first.expires_at < timedelta(seconds=60)


def test_what_it_changes_is_that_of_the_other_job(declare: Callable[..., Any]) -> None:
    def ask(self: Any) -> None:
        if not self.request.retries:
            self.retry(throw=False, countdown=0, queue="emails", priority=7, headers={"a": 2})

    declare(ask, bind=True).apply_async(queue="bulk", priority=2, headers={"a": 1})
    run_all()
    jobs = Job.objects.order_by("pk")
    assert [(job.queue, job.priority, job.headers["a"]) for job in jobs] == [
        ("bulk", 2, 1),
        ("emails", 7, 2),
    ]


@pytest.mark.parametrize("option, value", [("priority", "high"), ("queue", ["bulk"])])
def test_a_retry_with_a_value_that_means_nothing_says_so(
    declare: Callable[..., Any], option: str, value: Any
) -> None:
    def ask(self: Any) -> None:
        self.retry(countdown=0, **{option: value})

    result = declare(ask, bind=True).delay()
    run_all()
    assert f"project.ask: {option} is " in str(result.result)
    assert Job.objects.get().status == "dead"
