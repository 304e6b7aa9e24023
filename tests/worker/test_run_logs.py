"""The log lines of a run are kept with it, from real processes."""

from __future__ import annotations

import json

import pytest

from django_jobs.models import Job, Run
from tests.app import log_jobs

from .processes import Start, until_status

pytestmark = pytest.mark.processes

KEPT = json.dumps({"RUN_LOGS": "INFO"})
FEW = json.dumps({"RUN_LOGS": {"lines": 4, "bytes": 10_000}})


def log_of(job: Job, status: str = "succeeded") -> str | None:
    until_status(job, status)
    return Run.objects.get(job=job).log


def test_each_run_has_its_own_lines_from_wherever_they_were_logged(start_worker: Start) -> None:
    jobs = {
        word: [handler.enqueue(word) for handler in handlers]
        for word, handlers in {
            "ham": (log_jobs.log_on_loop, log_jobs.log_alone, log_jobs.log_once),
            "egg": (log_jobs.log_on_loop, log_jobs.log_alone, log_jobs.log_once),
        }.items()
    }
    silent = log_jobs.log_nothing.enqueue()
    start_worker(TEST_DJANGO_JOBS=KEPT)
    for word, (loop, alone, once) in jobs.items():
        first, second = (log_of(loop) or "").splitlines()
        assert first.endswith(f"Z INFO shop.orders: loop {word}")
        assert second.endswith(f"Z INFO shop.orders: thread {word}")
        assert (log_of(alone) or "").endswith(f": alone {word}")
        assert (log_of(once) or "").endswith(f": once {word}")
    assert log_of(silent) is None


def test_what_is_secret_or_cannot_be_stored_is_masked_and_escaped(start_worker: Start) -> None:
    job = log_jobs.log_lines.enqueue(password="open sesame", fail=True)
    start_worker(TEST_DJANGO_JOBS=KEPT)
    lines = (log_of(job, "dead") or "").splitlines()
    assert lines[0].endswith("INFO shop.orders: line 0 of 1")
    assert lines[1].endswith("WARNING shop.orders: logged in with ••••••, api_key=••••••")
    assert lines[2].endswith(r"ERROR shop.orders: broken \x00 \udcff")
    assert lines[3] == "    next line"
    assert lines[4] == "    Traceback (most recent call last):"
    assert lines[-1].strip() == "ValueError: as asked"
    assert "sesame" not in "\n".join(lines)


def test_of_many_lines_the_first_and_the_last_are_kept(start_worker: Start) -> None:
    job = log_jobs.log_lines.enqueue(count=50)
    start_worker(TEST_DJANGO_JOBS=FEW)
    lines = (log_of(job) or "").splitlines()
    assert [line.rpartition("orders: ")[2] for line in lines[:2]] == [
        "line 0 of 50",
        "line 1 of 50",
    ]
    assert lines[2] == "(47 lines are left out)"
    assert lines[3].endswith("line 49 of 50")
    assert len(lines) == 5


def test_without_the_setting_nothing_is_kept(start_worker: Start) -> None:
    job = log_jobs.log_lines.enqueue()
    start_worker()
    assert log_of(job) is None
