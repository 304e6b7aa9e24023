"""What jobs leave outside of their rows: files, calls to a client, and charges of orders."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any

from django_jobs.domain.callbacks import secrets_for, signed
from tests.receivers import Receiver

from .partitions import Database

SECRET = f"whsec_{b64encode(bytes(32)).decode()}"
TOO_LONG = 2_000
"""Bytes of JSON that go to a file by themselves."""

STORED = re.compile(r'"\$stored": "([^"]+)"')
FILES = """
SELECT id, status, payload::text || coalesce(result::text, '') FROM public.django_jobs_job
WHERE job_type = 'chaos.files'
"""
REGISTERED = "SELECT name, job_id FROM django_jobs_storedfile WHERE job_id <> 0"

CALLS = """
SELECT job.id, job.status, call.status, call.attempt
FROM django_jobs_job AS job LEFT JOIN django_jobs_job AS call
    ON call.job_type = 'django_jobs.callback' AND (call.payload ->> 'job_id')::bigint = job.id
WHERE job.job_type = 'chaos.calls_back'
"""

CHARGES = """
SELECT payload ->> 'order', count(*), count(DISTINCT result) FROM django_jobs_job
WHERE job_type = 'chaos.charges' AND status = 'succeeded' GROUP BY 1
"""


class Client(Receiver):
    """It refuses the first call of one job of three, until there is peace."""

    refuses = True

    def answer(self, message: Any) -> int:
        return 500 if self.refuses and message["data"]["id"] % 3 == 0 and self._is_new() else 200

    def _is_new(self) -> bool:
        *earlier, last = [message["data"]["id"] for message in self.received]
        return last not in earlier


def lost_files(database: Database, files: Path) -> Iterator[tuple[int, str]]:
    """References of jobs that are there to files that are not. Each has a file in its payload that
    was given, one that was too long, and one in its result."""
    registered = set(database.fetch(REGISTERED))
    jobs = database.fetch(FILES)
    for job, status, text in jobs:
        names = STORED.findall(text)
        if len(names) != 2 + (status == "succeeded"):
            yield 27, f"job {job} is {status} and refers to {names}"
        for name in names:
            if (name, job) not in registered or not (files / name).is_file():
                yield 27, f"job {job} refers to {name}, which is not there"
    if not jobs:
        yield 27, "there are no jobs with files, so nothing was tried"


def problems(database: Database, client: Receiver) -> Iterator[tuple[int, str]]:
    """Clients that were called too rarely or too often, and orders that were charged twice."""
    called: Counter[int] = Counter()
    for headers, body in client.requests:
        data = json.loads(body)["data"]
        called[data["id"]] += 1
        if not _is_signed(headers, body) or data["status"] != "succeeded":
            yield 28, f"a call that is wrongly signed, or too early: {body!r}"
    jobs = database.fetch(CALLS)
    for job, status, call, attempts in jobs:
        if status == "succeeded" and not (call == "succeeded" and 1 <= called[job] <= attempts):
            yield 28, f"job {job}: the call is {call}, came {called[job]} times of {attempts}"
    if strangers := called.keys() - {job for job, *_ in jobs}:
        yield 28, f"calls for jobs that are not there: {sorted(strangers)[:3]}"
    if not jobs or called.total() == len(called):
        yield 28, "no call was repeated, so nothing was tried"
    orders = database.fetch(CHARGES)
    if wrong := [order for order in orders if order[2] != 1]:
        yield 29, f"orders whose jobs have several answers: {wrong[:3]}"
    if all(count == 1 for _, count, _ in orders):
        yield 29, "no order has two jobs, so nothing was tried"


def _is_signed(headers: Message, body: bytes) -> bool:
    secrets = secrets_for("https://client", {"client": SECRET})
    sent = signed(headers["webhook-id"], int(headers["webhook-timestamp"]), body, secrets)
    return sent["webhook-signature"] == headers["webhook-signature"]


def counted(database: Database, client: Receiver, files: Path) -> dict[str, int]:
    """How much was tried."""
    registered = {name for name, _ in database.fetch(REGISTERED)}
    there = [path for path in files.rglob("*") if path.is_file()]
    orders = database.fetch(CHARGES)
    return {
        "files of jobs": len(registered),
        "files that rolled-back transactions left": len(there) - len(registered),
        "calls to clients": len(client.requests),
        "charges prevented": sum(count - 1 for _, count, _ in orders),
    }
