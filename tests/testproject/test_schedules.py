"""What the demo does again and again."""

from __future__ import annotations

import pytest

from django_jobs.models import Job
from testproject.demo import jobs
from testproject.demo.models import Module, Package
from tests.factories import make_dead

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("demo_queues")]


def test_only_dead_webhooks_are_replayed() -> None:
    webhook = make_dead(jobs.deliver_webhook, "one", "http://127.0.0.1/", {}, queue="default")
    other = make_dead(jobs.always_fails)
    assert jobs.redeliver_webhooks() == "Replayed 1 job."
    assert jobs.redeliver_webhooks() == "Replayed 0 jobs."
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert statuses == {webhook.pk: "ready", other.pk: "dead"}


def test_totals_changed_by_hand_are_recounted() -> None:
    package = Package.objects.create(name="pack", lines=7)
    Module.objects.create(
        package=package, name="pack", path="pack/__init__.py", lines=3, functions=1, classes=0
    )
    assert jobs.refresh_totals() == 1
    package.refresh_from_db()
    assert (package.files, package.lines, package.functions) == (1, 3, 1)


def test_the_largest_packages_are_named_in_order() -> None:
    for name, lines in {"small": 1, "large": 3_000}.items():
        Package.objects.create(name=name, lines=lines)
    assert jobs.name_largest_packages(count=1) == ["large: 3,000 lines"]
    assert jobs.name_largest_packages(count=1, smallest_first=True) == ["small: 1 lines"]
    assert jobs.name_largest_packages.schedulable
