"""What the demo enqueues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from django_jobs.models import Job
from django_jobs.testing import run_jobs
from testproject.demo import checking, jobs, work
from testproject.demo.models import Package
from testproject.demo.receiver import Receiver, Script
from tests.app.jobs import noop

pytestmark = pytest.mark.usefixtures("demo_queues")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def counted() -> Counter[str]:
    return Counter(Job.objects.values_list("job_type", flat=True))


def test_the_demo_enqueues_an_index_webhooks_and_a_failure(
    receiver: Receiver,
) -> None:
    deliveries = work.enqueue_everything(receiver)
    assert set(deliveries.values()) == set(Script)
    assert counted() == {
        "demo.index_installation": 1,
        "demo.deliver_webhook": len(deliveries),
        "demo.always_fails": 1,
        "demo.print_label": 1,
    }


def test_the_trickle_enqueues_webhooks_an_index_and_a_failure(
    receiver: Receiver,
) -> None:
    trickle = work.Trickle(receiver)
    trickle.enqueue_some()
    assert set(counted()) == {"demo.deliver_webhook"}
    for _ in range(39):
        trickle.enqueue_some()
    kinds = counted()
    assert kinds["demo.index_installation"] == 1  # the second found the first still waiting
    assert kinds["demo.always_fails"] == kinds["demo.print_label"] == 2


def test_a_replay_mends_the_label_once_the_printer_has_paper(receiver: Receiver) -> None:
    work.forget_earlier_runs()
    jobs.print_label.enqueue(order=7)
    (failed,) = run_jobs(job_type="demo.print_label")
    assert (failed.outcome, failed.error_type) == ("failed", "RuntimeError")
    assert Job.objects.get().status == "dead"
    work.refill_and_replay()
    (mended,) = run_jobs(job_type="demo.print_label")
    assert mended.outcome == "succeeded"
    assert checking.check_replay().passed


def test_a_new_demo_forgets_the_jobs_of_the_demo_and_no_others(receiver: Receiver) -> None:
    work.enqueue_everything(receiver)
    Package.objects.create(name="old")
    kept = noop.enqueue()
    work.forget_earlier_runs()
    assert list(Job.objects.values_list("pk", flat=True)) == [kept.pk]
    assert not Package.objects.exists()


def test_the_job_that_always_fails_does() -> None:
    with pytest.raises(RuntimeError, match="always fails"):
        jobs.always_fails()
