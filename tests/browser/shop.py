"""The job types of a shop, as an operator might find them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django_jobs import Backoff, Workflow, job, registry


def send_receipt(customer_id: int, order_id: int) -> None:
    """Mail a receipt."""


def send_digest(customer_id: int) -> None:
    """Mail the news of a week."""


def push_contact(customer_id: int, tags: list[str] | None = None) -> None:
    """Write a contact to the CRM."""


def index_page(page: int, language: str = "en") -> None:
    """Put a page into the search index."""


def deliver(customer_id: int, event: str, url: str) -> int:
    """Call a webhook."""
    return 200


def transcode(video: str, height: int = 720) -> str:
    """Make a small video of a large one."""
    return video


def charge_card(customer_id: int, order_id: int, cents: int) -> str:
    """Take money."""
    return "ch_1"


def export_report(month: str) -> str:
    """Write a month's sales to a file."""
    return month


def reserve_stock(order_id: int) -> str:
    """Take goods from the shelf."""
    return "shelf 7"


def ship_order(order_id: int) -> str:
    """Hand a parcel to the carrier."""
    return "parcel"


@contextmanager
def declared() -> Iterator[None]:
    """The job types and the workflow of the shop are known inside the block."""
    patient = Backoff.exponential(base=30, cap=3600)
    names = [
        job(name="mail.send_receipt", queue="emails")(send_receipt).name,
        job(name="mail.send_digest", queue="emails", priority=-10, schedulable=True)(
            send_digest
        ).name,
        job(name="crm.push_contact", backoff=patient)(push_contact).name,
        job(name="search.index_page")(index_page).name,
        job(name="webhooks.deliver", queue="webhooks", backoff=patient)(deliver).name,
        job(name="media.transcode", queue="media", timeout=1800)(transcode).name,
        job(name="billing.charge_card", queue="payments", resources=("stripe",))(charge_card).name,
        job(name="reports.export", queue="default")(export_report).name,
        job(name="orders.reserve_stock", queue="critical")(reserve_stock).name,
        job(name="orders.ship", queue="critical")(ship_order).name,
    ]
    fulfil = Workflow("orders.fulfil")
    reserved = fulfil.step(registry.get("orders.reserve_stock"))
    approval = fulfil.wait("approval", after=reserved, fields={"approved": bool})
    shipped = fulfil.step(registry.get("orders.ship"), after=approval)
    fulfil.step(registry.get("search.index_page"), after=shipped, payload={"page": 7})
    try:
        yield
    finally:
        registry.forget_workflow(fulfil.name)
        for name in names:
            registry.unregister(name)
