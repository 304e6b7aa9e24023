"""What type checkers find in calls of job types. ``# E`` is at the lines with an error."""

from typing import assert_type

from django_jobs import JobType, current_run, enqueue, job
from django_jobs.models import Job


@job
def send_receipt(order_id: int, note: str = "") -> str:
    return note


@job(queue="emails", retry_on=OSError)
async def fetch(url: str, *, times: int) -> int:
    return times


assert_type(send_receipt.enqueue(7), Job)
assert_type(send_receipt(7, "x"), str)
send_receipt.enqueue(order_id=7, note="x")
send_receipt.enqueue(order_id="x")  # E
send_receipt.enqueue("x")  # E
send_receipt.enqueue()  # E
send_receipt.enqueue(7, "x", 8)  # E
send_receipt.enqueue(order_id=7, nte="x")  # E
send_receipt.enqueue_on_commit(order_id="x")  # E
send_receipt(order_id="x")  # E

send_receipt.using(queue="emails").enqueue(7)
send_receipt.using(queue="emails").enqueue("x")  # E
send_receipt.using(queue=7)  # E
send_receipt.using(priorty=7)  # E
enqueue("app.send_receipt", {"order_id": 7}, queue="emails")
enqueue("app.send_receipt", {"order_id": 7}, queue=7)  # E
assert_type(send_receipt.enqueue_many([{"order_id": 7}]), list[int])

fetch.enqueue("https://example.com", times=1)
fetch.enqueue("https://example.com", 1)  # E
fetch.enqueue("https://example.com")  # E
send_receipt.delay(7)  # E


async def view() -> None:
    assert_type(await send_receipt.aenqueue(7), Job)
    await send_receipt.aenqueue(order_id="x")  # E
    assert_type(await fetch("https://example.com", times=1), int)


def takes_any(job_type: JobType[[int], None]) -> None:
    job_type.enqueue(7)
    job_type.enqueue("x")  # E


if (run := current_run()) is not None:
    run.spawn(send_receipt, [{"order_id": 7}], then=send_receipt)
    run.spawn(print, [{}])  # E


@job(max_attempts="5")  # E
def wrong_option() -> None: ...


@job(max_attemps=5)  # E
def wrong_name() -> None: ...
