"""The accounts of the chaos test about files, calls and charges find what is lost or done twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest
from django.db.models.functions import Now

from django_jobs.domain.callbacks import secrets_for, signed
from django_jobs.models import Job, StoredFile
from tests.chaos import outside
from tests.chaos.outside import SECRET
from tests.factories import run_sql
from tests.receivers import Receiver
from tests.test_chaos_partitions import Here


def done(job_type: str, payload: object, result: object = None) -> Job:
    return Job.objects.create(
        queue="default", job_type=job_type, payload=payload, result=result, status="succeeded",
        rank=0, available_at=Now(), created_at=Now(), finished_at=Now(), attempt=1,
    )  # fmt: skip


@pytest.fixture
def folder(db: None, tmp_path: Path) -> Path:
    """Of one job with files."""
    names = "given", "long", "copy"
    refers = [{"$stored": name, "size": 1} for name in names]
    job = done("chaos.files", {"file": refers[0], "text": refers[1]}, {"copy": refers[2]})
    for name in names:
        (tmp_path / name).touch()
        StoredFile.objects.create(name=name, job_id=job.pk, created_at=Now())
    return tmp_path


def lost(folder: Path) -> set[int]:
    return {number for number, _ in outside.lost_files(Here(), folder)}


def test_files_that_are_there_balance(folder: Path) -> None:
    assert lost(folder) == set()


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "copy").unlink(),
        lambda folder: StoredFile.objects.filter(name="given").update(job_id=7),
        lambda folder: Job.objects.update(result=None),
        lambda folder: Job.objects.all().delete(),
    ],
)
def test_a_file_that_is_lost_fails_the_account(
    folder: Path, change: Callable[[Path], object]
) -> None:
    change(folder)
    assert lost(folder) == {27}


@pytest.fixture
def receiver(db: None) -> Receiver:
    """Called twice for one job, whose call has failed once; two jobs are of one order."""
    job = done("chaos.calls_back", {})
    call = done("django_jobs.callback", {"job_id": job.pk})
    Job.objects.filter(pk=call.pk).update(attempt=2)
    receiver = Receiver()
    for _ in range(2):
        receiver.requests.append(called(job.pk))
        done("chaos.charges", {"order": 1}, "answer")
    return receiver


def called(job: int, status: str = "succeeded", secret: str = SECRET) -> tuple[Message, bytes]:
    body = json.dumps({"data": {"id": job, "status": status}}).encode()
    headers = Message()
    secrets = secrets_for("https://client", {"client": secret})
    for name, value in signed(f"job-{job}", 1, body, secrets).items():
        headers[name] = value
    return headers, body


def found(receiver: Receiver) -> set[int]:
    return {number for number, _ in outside.problems(Here(), receiver)}


def test_calls_and_charges_that_were_made_once_balance(receiver: Receiver) -> None:
    assert found(receiver) == set()


OTHER = SECRET.replace("AAAA", "BBBB")


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (lambda receiver, job: receiver.requests.append(called(job)), 28),
        (lambda receiver, job: receiver.requests.pop(), 28),
        (lambda receiver, job: receiver.requests.clear(), 28),
        (lambda receiver, job: receiver.requests.append(called(job + 1)), 28),
        (lambda receiver, job: receiver.requests.__setitem__(0, called(job, "running")), 28),
        (
            lambda receiver, job: receiver.requests.__setitem__(
                0, called(job, secret=OTHER)
            ),
            28,
        ),
        (lambda receiver, job: done("chaos.charges", {"order": 1}, "another"), 29),
        (lambda receiver, job: run_sql("DELETE FROM django_jobs_job WHERE result IS NOT NULL"), 29),
    ],
)  # fmt: skip
def test_a_call_or_a_charge_too_many_or_too_few_fails_the_account(
    receiver: Receiver, change: Callable[[Receiver, int], object], number: int
) -> None:
    change(receiver, Job.objects.get(job_type="chaos.calls_back").pk)
    assert found(receiver) == {number}
