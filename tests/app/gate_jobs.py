"""Handlers with gates: concurrency keys, resources and tenants."""

from __future__ import annotations

from typing import Any

from django_jobs import Concurrency, job


@job(concurrency=Concurrency("account:{account_id}"))
def charge_account(account_id: int, amount: int = 1) -> None:
    """One at a time for each account."""


@job(resources=("stripe",))
def refund_payment(payment_id: int) -> None:
    """What uses a resource."""


@job(tenant="{tenant_id}")
def bill_tenant(tenant_id: str | int) -> None:
    """What shares a queue with other tenants."""


@job(
    resources=("stripe", "ledger", "stripe"),
    concurrency=Concurrency("account:{account_id}:{currency}", limit=3, on_conflict="discard"),
    tenant=lambda payload: payload["tenant"],
)
def transfer_funds(
    account_id: int, tenant: str | None = None, currency: str = "EUR", **more: Any
) -> None:
    """All gates at once."""
