"""The handlers and schedules of the demo: an index of sources, webhooks, and three that fail. Those
of the workflows are in ``shop.py``."""

from __future__ import annotations

import io
import json
import os
import signal
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from django.conf import settings
from django.core.management import call_command
from django.db import transaction
from django.db.models import Count, Q, Sum
from django.utils import timezone

from django_jobs import Backoff, job, schedule

from . import shop as shop
from . import sources
from .models import Module, Package, Printer

ANSWER_SECONDS = 1.0
"""How long a receiver of webhooks may take to answer."""

# A webhook goes to this machine; a proxy of the environment would not find it.
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@job(queue="index")
def index_installation() -> int:
    """Fan out one job for each top-level package of the sources."""
    names = sources.package_names(Path(settings.DEMO_SOURCES))
    with transaction.atomic():
        Package.objects.exclude(name__in=names).delete()
        index_package.enqueue_many(
            [{"name": name} for name in names],
            idempotency_keys=[f"index {name}" for name in names],
        )
    return len(names)


@job(queue="index")
def index_package(name: str) -> int:
    """Parse the files of one package, store what is in them, and ask for the totals.

    Rows and next step commit together: there is no index without its totals to come, and no
    totals of an index that was rolled back.
    """
    files = sources.read_package(Path(settings.DEMO_SOURCES), name)
    with transaction.atomic():
        package, _ = Package.objects.select_for_update().get_or_create(name=name)
        package.modules.all().delete()
        Module.objects.bulk_create(
            Module(
                package=package,
                name=file.module,
                path=file.path,
                lines=file.lines,
                functions=file.functions,
                classes=file.classes,
                error=file.error,
            )
            for file in files
        )
        summarise_package.using(idempotency_key=f"summarise {name}").enqueue(name=name)
    return len(files)


@job(queue="index", delivery="exactly_once")
def summarise_package(name: str) -> dict[str, int]:
    """Store the totals of one package, in the transaction that makes this job a success."""
    totals = Module.objects.filter(package__name=name).aggregate(
        files=Count("pk"),
        unreadable=Count("pk", filter=~Q(error="")),
        lines=Sum("lines", default=0),
        functions=Sum("functions", default=0),
        classes=Sum("classes", default=0),
    )
    Package.objects.filter(name=name).update(**totals, summarised_at=timezone.now())
    return totals


@job(queue="webhooks", max_attempts=6, backoff=Backoff.fixed(1, jitter=0.2))
def deliver_webhook(delivery_id: str, url: str, body: dict[str, Any]) -> int:
    """Post ``body`` to ``url``. An error answer raises; its Retry-After decides about the wait.

    A delivery may happen twice, so it carries a key by which the receiver can tell.
    """
    request = urllib.request.Request(  # noqa: S310 — the demo's own receiver
        url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": delivery_id},
        method="POST",
    )
    try:
        with DIRECTLY.open(request, timeout=ANSWER_SECONDS) as response:
            status: int = response.status
            return status
    except HTTPError as error:
        with error:  # closes the connection; the headers stay readable
            raise


@job
def redeliver_webhooks() -> str:
    """Replay webhooks that died within the last hour."""
    said = io.StringIO()
    call_command("jobreplay", type=deliver_webhook.name, since="1h", stdout=said)
    return said.getvalue().strip()


@job(queue="index")
def refresh_totals() -> int:
    """Recount the totals of every package, in case the rows were changed by hand."""
    names = list(Package.objects.values_list("name", flat=True))
    for name in names:
        with transaction.atomic():
            # A concurrent index of the package waits for this lock, and enqueues the totals itself.
            Package.objects.select_for_update().filter(name=name).first()
            summarise_package(name)
    return len(names)


@job(schedulable=True)
def name_largest_packages(count: int = 5, smallest_first: bool = False) -> list[str]:
    """Return the packages with the most lines. The admin can schedule it."""
    largest = Package.objects.order_by("lines" if smallest_first else "-lines")
    return [f"{package.name}: {package.lines:,} lines" for package in largest[:count]]


schedule("redeliver webhooks", redeliver_webhooks, cron="* * * * *", catch_up="skip")
schedule("refresh totals", refresh_totals, cron="30 2 * * *", timezone="Europe/Paris")


@job(max_attempts=3, backoff=Backoff.fixed(1))
def always_fails() -> None:
    """Fail three times and become a dead letter."""
    raise RuntimeError("this job always fails: it is here to end among the dead letters")


@job(max_attempts=1)
def print_label(order: int) -> str:
    """Print a label. Without paper it fails; once the printer is refilled, a replay mends it."""
    if not Printer.objects.filter(has_paper=True).exists():
        raise RuntimeError("the printer has no paper; refill it below Demo, Printers, and replay")
    return f"label of order {order}"


@job
def kills_its_process() -> None:
    """Kill the process, as the out-of-memory killer does. The other jobs of the process become
    suspects, run again alone, and succeed. This one dies."""
    os.kill(os.getpid(), signal.SIGKILL)
