"""Lines of a handler have its job, of the worker's events their trace."""

from __future__ import annotations

import contextvars
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_django import Settings

from django_jobs import current_run, logs
from django_jobs.models import Job, Run
from django_jobs.testing import run_jobs
from tests.app import spans
from tests.app.jobs import noop
from tests.factories import declared, enqueue_and_claim
from tests.worker.attempts import Desk
from tests.worker.conftest import desk as desk
from tests.worker.conftest import start_worker as start_worker
from tests.worker.processes import JobWorker

pytestmark = pytest.mark.django_db(transaction=True)

shop = logging.getLogger("shop")


class Kept(logging.Handler):
    """Keeps records, with the job in whose handler each was logged, and JSON lines."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.lines: list[dict[str, Any]] = []
        self.addFilter(logs.JobContextFilter())
        self.setFormatter(logs.JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.lines.append(json.loads(self.format(record)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    loggers = shop, logs.logger
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    logs.connect(logging.INFO)
    yield handler
    logs.disconnect()
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def traced(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HOOKS": [spans.HOOK]}
    spans.keep()


def test_a_line_of_a_handler_has_its_job(kept: Kept, desk: Desk) -> None:
    def handler() -> None:
        shop.info("hello")

    with declared(handler, name="app.greets") as job_type:
        held = enqueue_and_claim(job_type)
        desk.make(held)
    shop.info("outside")
    inside, outside = kept.records
    assert (inside.job_id, inside.job_type, inside.attempt) == (held.id, "app.greets", 1)
    assert (inside.queue, inside.trace_id) == ("default", "")
    assert (outside.job_id, outside.attempt) == ("", "")
    first, second = kept.lines
    assert (first["job_id"], first["message"]) == (held.id, "hello")
    assert "job_id" not in second
    assert "trace_id" not in first


def test_a_line_of_an_async_handler_and_of_its_threads_has_its_job(kept: Kept, desk: Desk) -> None:
    async def handler() -> None:
        shop.info("on the loop")
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(shop.info, "in a thread"))
        thread.start()
        thread.join()

    with declared(handler, name="app.agreets") as job_type:
        held = enqueue_and_claim(job_type)
        desk.make(held)
    assert [record.job_id for record in kept.records] == [held.id] * 2


def test_the_attributes_that_a_record_has_already_stay(kept: Kept) -> None:
    shop.info("of another job", extra={"job_id": 7})
    assert kept.records[0].job_id == 7


def test_lines_have_the_trace_of_the_run(kept: Kept, traced: None) -> None:
    def fails() -> None:
        shop.info("about to fail")
        raise ConnectionError("no route")

    with declared(fails, name="app.fails", max_attempts=1) as job_type:
        job_type.enqueue()
        run_jobs()
    process = next(
        span for span in spans.kept.get_finished_spans() if span.name == "process default"
    )
    ids = (f"{process.context.trace_id:032x}", f"{process.context.span_id:016x}")
    said, failed, dead = kept.lines
    assert [line["event"] for line in (failed, dead)] == ["job_failed", "job_dead"]
    assert {(line["trace_id"], line["span_id"]) for line in (said, failed, dead)} == {ids}
    assert f"{ids[0]}-{ids[1]}" in Run.objects.get().traceparent


def test_an_event_inside_a_handler_has_its_trace(kept: Kept, traced: None) -> None:
    def once() -> None:
        current_run().once("key", lambda: 1)  # type: ignore[union-attr]
        if current_run().attempt == 1:  # type: ignore[union-attr]
            raise ConnectionError

    with declared(once, name="app.once", max_attempts=3) as job_type:
        job_type.enqueue()
        run_jobs()
        Job.objects.update(status="ready")
        run_jobs()
    prevented = [line for line in kept.lines if line.get("event") == "duplicate_prevented"]
    assert [line["attempt"] for line in prevented] == [2]
    assert prevented[0]["trace_id"]


def test_without_traces_the_run_and_its_lines_have_none(kept: Kept) -> None:
    def fails() -> None:
        raise ConnectionError("no route")

    with declared(fails, name="app.fails") as job_type:
        job_type.enqueue()
        run_jobs()
    (failed,) = kept.lines
    assert "trace_id" not in failed
    assert Run.objects.get().traceparent == ""


@pytest.mark.processes
def test_a_worker_writes_json_on_request(
    start_worker: Callable[..., JobWorker],
) -> None:
    job = noop.enqueue()
    worker = start_worker("--burst", "-v", "2", "--log-format", "json")
    assert worker.wait() == 0
    lines = [json.loads(line) for line in worker.text().splitlines()]
    assert [line["event"] for line in lines if line.get("job_id") == job.pk] == ["job_succeeded"]
    assert {"supervisor_started", "worker_started", "worker_stopped", "supervisor_stopped"} < {
        line["event"] for line in lines
    }
