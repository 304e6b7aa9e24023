"""Three workflows of a shop: an import in 500 parts, an order that is undone if it fails, and a
refund that a person approves. ``jobs.py`` imports them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_jobs import Backoff, Discard, Workflow, current_run, job

from .models import StockMovement

PARTS = 500
ORDERS = 20
"""Orders in each part of the import."""

GOOD_ORDER = 12
NO_PAPER = 13
"""The order that cannot be packed."""


@job(name="shop.split_file", queue="shop")
def split_file(parts: int) -> int:
    """Ask for a job for each part of the file. The step after this one waits for all of them."""
    current_run().spawn(import_part, ({"part": part} for part in range(parts)))
    return parts


@job(name="shop.import_part", queue="shop")
def import_part(part: int) -> dict[str, int]:
    """Read one part."""
    numbers = range(part * ORDERS, (part + 1) * ORDERS)
    return {"orders": len(numbers), "cents": sum(number * 100 for number in numbers)}


@job(name="shop.merge_parts", queue="shop")
def merge_parts() -> dict[str, int]:
    """Add up what the parts returned."""
    totals = {"orders": 0, "cents": 0}
    for part in current_run().children():
        for name in totals:
            totals[name] += part.result[name]
    return totals


@job(name="shop.report_import", queue="shop")
def report_import(totals: dict[str, int]) -> str:
    """Say what was imported."""
    return f"{totals['orders']:,} orders, {totals['cents'] / 100:,.2f} EUR"


import_file = Workflow("shop.import_file")
split = import_file.step(split_file)
merged = import_file.step(merge_parts, after=split)
import_file.step(report_import, after=merged, takes={"totals": merged})


@job(name="shop.reserve_stock", queue="shop", delivery="exactly_once")
def reserve_stock(order: int) -> int:
    """Take one piece from the shelf."""
    return StockMovement.objects.create(order=order, pieces=-1).pk


@job(name="shop.release_stock", queue="shop", delivery="exactly_once")
def release_stock(order: int) -> None:
    """Put it back."""
    StockMovement.objects.create(order=order, pieces=1)


@job(name="shop.charge_card", queue="shop")
def charge_card(order: int) -> str:
    """Charge the card, once in all attempts."""
    return current_run().once("charge", lambda: f"charge-{order}")


@job(name="shop.refund_card", queue="shop")
def refund_card(order: int, result: str) -> str:
    """Refund the charge that ``result`` names."""
    return current_run().once("refund", lambda: f"refund of {result}")


@job(name="shop.pack_order", queue="shop", max_attempts=2, backoff=Backoff.fixed(0.2))
def pack_order(order: int) -> str:
    """Pack the goods."""
    if order == NO_PAPER:
        raise RuntimeError("there is no wrapping paper left")
    return f"parcel of order {order}"


@job(name="shop.apologise", queue="shop")
def apologise(order: int) -> str:
    """Write to the customer."""
    return f"sorry about order {order}"


order_goods = Workflow("shop.order", version=2)
reserved = order_goods.step(reserve_stock, compensate=release_stock)
charged = order_goods.step(charge_card, after=reserved, compensate=refund_card)
packed = order_goods.step(pack_order, after=charged)
order_goods.step(apologise, after=packed, when="failed")


@job(name="shop.propose_refund", queue="shop")
def propose_refund(order: int, cents: int) -> dict[str, int]:
    """Check the sum."""
    return {"order": order, "cents": cents}


@job(name="shop.pay_refund", queue="shop")
def pay_refund(order: int, cents: int, decision: dict[str, Any]) -> str:
    """Pay, if the answer is yes."""
    if not decision["approved"]:
        raise Discard(f"{decision['by']} refused it")
    return f"{cents / 100:.2f} EUR for order {order}, approved by {decision['by']}"


refund = Workflow("shop.refund")
proposed = refund.step(propose_refund)
approval = refund.wait(
    "approval", after=proposed, timeout=timedelta(days=3), fields={"approved": bool}
)
refund.step(pay_refund, after=approval, takes={"decision": approval})
