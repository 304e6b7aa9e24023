"""Handlers with gates: concurrency keys, resources and tenants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django_jobs import Backoff, Concurrency, current_run, job


@job(concurrency=Concurrency("account:{account_id}"))
def charge_account(account_id: int, amount: int = 1) -> None:
    """One at a time for each account."""


@job(resources=("stripe",))
def refund_payment(payment_id: int) -> None:
    """What uses a resource."""


@job(resources=("ledger",), max_attempts=2, backoff=Backoff.fixed(0.1, jitter=0.0))
def post_to_ledger(path: str) -> None:
    """What fails while ``path`` is missing."""
    if not Path(path).exists():
        raise ConnectionRefusedError("the ledger is down")


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


@job(concurrency=Concurrency("pair", limit=2), backoff=Backoff.fixed(0.05), max_crashes=9)
def run_in_pairs(path: str, seconds: float) -> None:
    """Two at a time. Logs when it began and ended, in one write each, so that lines never mix."""
    run = current_run()
    assert run is not None
    for what in ("begin", "end"):
        with Path(path).open("a") as file:
            file.write(f"{what} {run.job_id} {os.getpid()} {time.monotonic()}\n")
        if what == "begin":
            time.sleep(seconds)
