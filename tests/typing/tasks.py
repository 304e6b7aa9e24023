"""What type checkers find in calls of Django's Tasks. ``# E`` is at the lines with an error."""

from typing import assert_type

from django_jobs.backend import task


@task(max_attempts=3, timeout=30)
def send_invoice(order_id: int, *, note: str = "") -> str:
    return note


assert_type(send_invoice.enqueue(7, note="x").return_value, str)
send_invoice.enqueue("x")  # E
send_invoice.enqueue(7, nte="x")  # E
send_invoice.using(max_attempts=2, priority=5).enqueue(7)
send_invoice.using(max_attemps=2)  # E


@task(max_attempts="3")  # E
def wrong_value() -> None: ...


@task(max_attemps=3)  # E
def wrong_name() -> None: ...
