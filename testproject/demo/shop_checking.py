"""Checks how the runs of the shop's workflows ended."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import QuerySet, Sum

from django_jobs.models import Job, WorkflowRun

from . import shop
from .checking import Check
from .models import StockMovement


def is_over() -> bool:
    """Whether all runs have ended. A refund that waits for its approval gets it."""
    running = shop_runs().filter(status="running")
    for run in running.filter(name=shop.refund.name):
        run.signal("approval", {"approved": True, "by": "ada"})
    return not running.exists()


def check_shop() -> Iterator[Check]:
    """The checks of all runs."""
    imported = _run(shop.import_file.name)
    parts = imported.steps.filter(job_type=shop.import_part.name)
    count = shop.PARTS * shop.ORDERS
    report = f"{count:,} orders, {sum(range(count)):,.2f} EUR"
    found = _result(imported, "report_import")
    yield Check(
        f"an import in {shop.PARTS} parts is merged once",
        found == report and parts.filter(status="succeeded").count() == shop.PARTS,
        str(found),
    )
    undone = _run(shop.order_goods.name, shop.NO_PAPER)
    movements = StockMovement.objects.filter(order=shop.NO_PAPER)
    left = movements.aggregate(pieces=Sum("pieces"))["pieces"]
    order = list(undone.steps.order_by("finished_at", "id").values_list("step", flat=True))
    yield Check(
        "an order that failed is undone in reverse order",
        (undone.status, left, movements.count()) == ("failed", 0, 2)
        and order[-2:] == ["undo charge_card", "undo reserve_stock"]
        and _result(undone, "undo charge_card") == f"refund of charge-{shop.NO_PAPER}",
        f"{undone.status}: {undone.reason}; {', '.join(order)}",
    )
    delivered = _run(shop.order_goods.name, shop.GOOD_ORDER)
    apology = delivered.steps.get(step="apologise")
    yield Check(
        "an order that was delivered needs no apology",
        (delivered.status, apology.status) == ("succeeded", "cancelled"),
        f"{delivered.status}; apology {apology.reason}",
    )
    refunded = _result(_run(shop.refund.name), "pay_refund")
    yield Check("a refund waited for its approval", "approved by ada" in str(refunded), refunded)


def shop_runs() -> QuerySet[WorkflowRun]:
    """The runs of all workflows of the shop."""
    return WorkflowRun.objects.filter(name__startswith="shop.")


def _run(name: str, order: int | None = None) -> WorkflowRun:
    runs = shop_runs().filter(name=name)
    return (runs if order is None else runs.filter(payload__order=order)).latest("id")


def _result(run: WorkflowRun, step: str) -> str:
    return str(Job.objects.get(workflow_run=run, step=step).result)
