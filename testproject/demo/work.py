"""Enqueues the jobs of the demo, and starts its workflows."""

from __future__ import annotations

import io
import random
import uuid

from django.core.management import call_command
from django.db import connection, transaction

from django_jobs.models import Dependency, Job, WorkflowRun

from . import jobs, shop
from .models import Package, Printer, StockMovement
from .receiver import Receiver, Script

WEBHOOKS = 24
DEMO_LOCK = 0x6A6F6273
"""Key of the advisory lock that a demo holds on its database; says "jobs" in ASCII."""


def take_database() -> bool:
    """Make this process the only demo on the database while it lives. False if there is one."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [DEMO_LOCK])
        return bool(cursor.fetchone()[0])


def forget_earlier_runs() -> None:
    """Remove the demo's own jobs and index; everything else in the database stays."""
    with transaction.atomic():
        Job.objects.filter(job_type__startswith="demo.").delete()
        runs = WorkflowRun.objects.filter(name__startswith="shop.")
        Dependency.objects.filter(workflow_run__in=runs).delete()
        Job.objects.filter(workflow_run__in=runs).delete()
        runs.delete()
        Package.objects.all().delete()
        StockMovement.objects.all().delete()
        Printer.objects.update_or_create(name="labels", defaults={"has_paper": False})


def enqueue_everything(receiver: Receiver) -> dict[str, Script]:
    """The index, the webhooks, the one that always fails and the label, in one transaction.

    Returns the script of each delivery.
    """
    scripts = list(Script)
    with transaction.atomic():
        enqueue_index()
        deliveries = dict(
            enqueue_webhook(receiver, scripts[number % len(scripts)]) for number in range(WEBHOOKS)
        )
        jobs.always_fails.enqueue()
        jobs.print_label.enqueue(order=shop.GOOD_ORDER)
    return deliveries


def refill_and_replay() -> None:
    """Mend what kept the label from being printed, and replay it."""
    Printer.objects.update(has_paper=True)
    call_command("jobreplay", type=jobs.print_label.name, stdout=io.StringIO())


def start_shop() -> None:
    """An import, an order that is delivered, one that fails, and a refund, in one transaction."""
    with transaction.atomic():
        shop.import_file.start(parts=shop.PARTS)
        shop.order_goods.start(order=shop.GOOD_ORDER)
        shop.order_goods.start(order=shop.NO_PAPER)
        shop.refund.using(idempotency_key="refund").start(order=shop.GOOD_ORDER, cents=1_250)


def is_under_way() -> bool:
    """Whether the worker is building the index."""
    return Package.objects.exists()


def enqueue_killer() -> None:
    """The one that kills its process. Under way, so that it has neighbours when it does."""
    jobs.kills_its_process.enqueue()


def enqueue_index() -> None:
    """Index the sources, unless that is already enqueued."""
    jobs.index_installation.using(idempotency_key="index").enqueue()


def enqueue_webhook(receiver: Receiver, script: Script) -> tuple[str, Script]:
    """A delivery to ``receiver``. Returns its id and how it will be answered."""
    delivery_id = uuid.uuid4().hex
    jobs.deliver_webhook.enqueue(
        delivery_id=delivery_id,
        url=receiver.url(script, delivery_id),
        body={"event": "order.paid", "delivery": delivery_id},
    )
    return delivery_id, script


class Trickle:
    """Enqueues jobs continuously, so that the admin shows activity."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._rounds = 0

    def enqueue_some(self) -> None:
        """One round: a few webhooks always, an index and a failure now and then."""
        self._rounds += 1
        for _ in range(random.randint(1, 4)):  # noqa: S311 — no secret
            enqueue_webhook(self._receiver, random.choice(list(Script)))  # noqa: S311
        if self._rounds % 20 == 0:
            enqueue_index()
            jobs.always_fails.enqueue()
            jobs.print_label.enqueue(order=self._rounds)
