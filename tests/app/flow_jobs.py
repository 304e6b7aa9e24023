"""Handlers that the tests make workflows of."""

from __future__ import annotations

from typing import Any

from django_jobs import Concurrency, job


@job
def reserve_stock(order_id: int, warehouse: str = "main") -> dict[str, Any]:
    """A result that others take."""
    return {"order": order_id, "warehouse": warehouse}


@job
def charge_card(order_id: int, stock: Any = None) -> str:
    """What a failure undoes."""
    return f"charge of {order_id}"


@job
def refund_card(order_id: int, result: str) -> None:
    """Undoes ``charge_card``."""


@job
def ship_order(order_id: int, express: bool = False) -> str:
    """The last step."""
    return f"order {order_id}"


@job
def apologise(order_id: int) -> None:
    """What is done after a failure."""


@job(concurrency=Concurrency("account:{account}"))
def book_entry(account: str, amount: int = 1) -> None:
    """A step with a gate."""


@job
def gather(**parts: Any) -> list[str]:
    """What takes anything."""
    return sorted(parts)


@job
def send_parcel(order_id: int, stock: Any) -> None:
    """A step that cannot be called without the result of another."""
