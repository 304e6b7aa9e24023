"""Traces: one from the request through the enqueue to the run and to what the handler calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from pytest_django import Settings

from django_jobs import Cancel, Discard, Retry, Snooze, current_run, group
from django_jobs.contrib import opentelemetry
from django_jobs.domain.outcomes import Succeeded
from django_jobs.exceptions import UnknownQueue
from django_jobs.models import Job, WorkflowRun
from django_jobs.testing import run_jobs
from django_jobs.worker.context.attempt import StopHandler
from django_jobs.worker.execution import handler_call
from django_jobs.worker.handlers.cursors import count_query
from django_jobs.worker.meters import QueryMeter
from tests.app import spans
from tests.app.jobs import add, noop
from tests.app.span_jobs import acall_service, call_service, call_service_alone, call_service_later
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    enqueue_and_claim,
    explain,
    failure,
    look,
    register_worker,
    rows_read,
    run_sql,
    settle_one,
)
from tests.worker.attempts import Desk
from tests.worker.conftest import desk as desk
from tests.worker.conftest import start_worker as start_worker
from tests.worker.processes import JobWorker

pytestmark = pytest.mark.django_db

Spans = Callable[[], dict[str, ReadableSpan]]
OF_SPANS = re.compile(r'SELECT "?\w+"?\."traceparent"')
"""Matches to what reads the spans before a run, and nothing else."""


@pytest.fixture
def hook(settings: Settings) -> Iterator[Callable[..., None]]:
    """Lists hooks in the setting."""

    def hook(*paths: str) -> None:
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HOOKS": paths}

    return hook


@pytest.fixture
def traced(hook: Callable[..., None], caplog: pytest.LogCaptureFixture) -> Iterator[Spans]:
    """The finished spans by their names. OpenTelemetry has logged no mistake."""
    hook(spans.HOOK)
    kept = spans.keep()
    yield lambda: {span.name: span for span in kept.get_finished_spans()}
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]
    assert not context.get_current()


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether it is in the trace of this parent, directly below it."""
    return (
        span.parent is not None
        and span.parent.span_id == parent.context.span_id
        and span.context.trace_id == parent.context.trace_id
    )


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it links to."""
    return [link.context.span_id for link in span.links]


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once", "exactly_once"])
@pytest.mark.django_db(transaction=True)
def test_a_run_is_in_the_trace_of_the_request_that_enqueued_it(
    traced: Spans, desk: Desk, delivery: Any
) -> None:
    def handler() -> None:
        with spans.tracer.start_as_current_span("called"):
            pass

    with declared(handler, name="app.traced", delivery=delivery) as job_type:
        with spans.tracer.start_as_current_span("GET /buy"):
            held = enqueue_and_claim(job_type)
        desk.make(held)
    found = traced()
    request, send = found["GET /buy"], found["send default"]
    process, called = found["process default"], found["called"]
    assert is_child(send, request)
    assert is_child(process, send)
    assert is_child(called, process)
    assert linked(process) == [send.context.span_id]
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "messaging.system": "django_jobs",
        "messaging.destination.name": "default",
        "messaging.message.id": str(held.id),
        "messaging.django_jobs.job_type": "app.traced",
    }
    assert send.attributes == common | {
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
    }
    assert process.attributes == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.django_jobs.attempt": 1,
        "messaging.django_jobs.outcome": "succeeded",
    }
    parent = send.context
    assert Job.objects.get(pk=held.id).headers == {
        "traceparent": (f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{parent.trace_flags:02x}")
    }


@pytest.mark.django_db(transaction=True)
def test_an_async_handler_has_its_span_on_the_loop_and_in_threads(
    traced: Spans, desk: Desk
) -> None:
    desk.make(enqueue_and_claim(acall_service))
    found = traced()
    process = found["process default"]
    assert is_child(process, found["send default"])
    assert is_child(found["called on the loop"], process)
    assert is_child(found["called in a thread"], process)


def ask_once() -> None:
    run_sql("SELECT 1")


async def ask_nothing() -> None:
    """Of a retry its checkpoint is read before it begins."""


@pytest.mark.parametrize("handler, queries", [(ask_once, 1), (ask_nothing, 0)])
@pytest.mark.django_db(transaction=True)
def test_what_the_package_reads_before_a_retry_is_no_query_of_its_run(
    traced: Spans, desk: Desk, settings: Settings, handler: Any, queries: int
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "COUNT_QUERIES": True}
    with declared(handler) as job_type, connection.execute_wrapper(count_query):
        settle_one(enqueue_and_claim(job_type), failure(), traceparent=f"00-{1:032x}-{2:016x}-01")
        run_sql("UPDATE django_jobs_job SET status = 'ready'")
        (again,) = claim_ready(register_worker(), job_types={job_type.name: 1})
        attempt = desk.begin(again)
        attempt.meter = QueryMeter()
        assert isinstance(handler_call.call(attempt), Succeeded)
    assert linked(traced()["process default"])[-1] == 2
    assert attempt.meter.read(0).queries == queries


def test_what_a_handler_enqueues_is_in_its_trace(traced: Spans) -> None:
    call_service_later.enqueue()
    run_jobs()
    run_jobs()
    found = spans.kept.get_finished_spans()
    assert [span.name for span in found] == [
        "send default",
        "send default",
        "process default",
        "called",
        "process default",
    ]
    first, second, outer, _, last = found
    assert is_child(second, outer)
    assert is_child(outer, first)
    assert is_child(last, second)


def test_a_run_of_a_job_without_a_trace_begins_one(
    traced: Spans, hook: Callable[..., None]
) -> None:
    hook()
    noop.enqueue()
    hook(spans.HOOK)
    run_jobs()
    (process,) = traced().values()
    assert process.parent is None
    assert not process.links


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-nonsense"},
        {"traceparent": f"00-{'0' * 32}-{'0' * 16}-01"},
        {"traceparent": f"ff-{'a' * 32}-{'b' * 16}-01"},
        {"traceparent": "00-" + "a" * 5_000},
        {"traceparent": 7},
        {"traceparent": ["00"]},
        {"traceparent": None},
        {"traceparent": {"a": 1}},
    ],
)
def test_a_bad_traceparent_is_ignored(
    traced: Spans, hook: Callable[..., None], headers: dict[str, Any]
) -> None:
    hook()
    noop.using(headers=headers).enqueue()
    hook(spans.HOOK)
    (run,) = run_jobs()
    assert run.outcome == "succeeded"
    assert traced()["process default"].parent is None


def test_a_tracestate_is_passed_on_up_to_512_characters(traced: Spans) -> None:
    def send(state: str) -> dict[str, Any]:
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": state}
        token = context.attach(TraceContextTextMapPropagator().extract(headers))
        try:
            return noop.enqueue().headers
        finally:
            context.detach(token)

    assert send("vendor=1")["tracestate"] == "vendor=1"
    long = ",".join(f"vendor{n}={'x' * 100}" for n in range(4))
    assert send(long)["tracestate"] == long
    assert "tracestate" not in send(f"{long},vendor9={'x' * 100}")


def test_the_headers_of_the_caller_stay(traced: Spans) -> None:
    job = noop.using(headers={"tenant": 7}).enqueue()
    assert set(job.headers) == {"tenant", "traceparent"}


def test_a_trace_that_the_caller_chooses_stays(traced: Spans) -> None:
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    assert noop.using(headers=headers).enqueue().headers == headers
    run_jobs()
    found = traced()
    assert linked(found["send default"]) == [int("b" * 16, 16)]
    assert f"{found['process default'].context.trace_id:032x}" == "a" * 32


def test_an_enqueue_that_is_refused_is_an_error(traced: Spans) -> None:
    with pytest.raises(UnknownQueue):
        noop.using(queue="nowhere").enqueue()
    span = traced()["send nowhere"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"].endswith("UnknownQueue")


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


@pytest.mark.parametrize(
    "error, outcome",
    [
        (Snooze(60), "snoozed"),
        (Cancel("not needed"), "cancelled"),
        (StopHandler(), "released"),
    ],
)
@pytest.mark.django_db(transaction=True)
def test_an_attempt_that_did_not_fail_is_no_error(
    traced: Spans, desk: Desk, error: BaseException, outcome: str
) -> None:
    desk.run(raising(error))
    span = traced()["process default"]
    assert span.attributes["messaging.django_jobs.outcome"] == outcome
    assert span.status.status_code is StatusCode.UNSET
    assert not span.events


@pytest.mark.parametrize(
    "error", [ConnectionError("no route\nto host"), Retry(after=1), Discard("gone")]
)
@pytest.mark.django_db(transaction=True)
def test_a_failure_is_an_error_with_its_exception(
    traced: Spans, desk: Desk, error: Exception
) -> None:
    desk.run(raising(error))
    span = traced()["process default"]
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["messaging.django_jobs.outcome"] == "failed"
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == span.attributes["error.type"]
    assert "raise error" in event.attributes["exception.stacktrace"]


@pytest.mark.django_db(transaction=True)
def test_an_exception_is_bounded_and_without_the_values_of_a_row(traced: Spans, desk: Desk) -> None:
    text = (
        "duplicate key\nDETAIL:  Key (email)=(ada@example.com) already exists.\n\n" + "x" * 99_999
    )
    desk.run(raising(ValueError(text)))
    (event,) = traced()["process default"].events
    written = json.dumps(dict(event.attributes))
    assert len(written) < 80_000
    assert "duplicate key" in written
    assert "ada@" not in written


def test_many_jobs_are_one_span_with_their_number(traced: Spans) -> None:
    add.enqueue_many([{"first": n} for n in range(3)])
    runs = run_jobs()
    assert len(runs) == 3
    send, *processed = spans.kept.get_finished_spans()
    assert send.attributes["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in send.attributes
    assert all(is_child(one, send) and linked(one) == [send.context.span_id] for one in processed)


def test_spawned_children_are_one_span_with_their_number(traced: Spans) -> None:
    def spawns() -> None:
        current_run().spawn(add, [{"first": n} for n in range(4)], then=noop)

    with declared(spawns, name="app.spawns") as job_type:
        job_type.enqueue()
        run_jobs()
    counts = [
        span.attributes.get("messaging.batch.message_count")
        for span in spans.kept.get_finished_spans()
        if span.kind is SpanKind.PRODUCER
    ]
    assert sorted(counts, key=str) == [4, None, None]
    assert len({span.context.trace_id for span in spans.kept.get_finished_spans()}) == 1


@pytest.mark.django_db(transaction=True)
def test_each_fire_of_a_schedule_begins_a_trace(traced: Spans) -> None:
    due_schedule(job_type="app.noop")
    look()
    run_jobs()
    found = traced()
    assert is_child(found["process default"], found["send default"])
    assert found["send default"].parent is None


# Baggage


def test_baggage_is_passed_on_by_its_own_hook(traced: Spans, hook: Callable[..., None]) -> None:
    token = context.attach(baggage.set_baggage("customer", "7"))
    plain = call_service.enqueue()
    hook(spans.BAGGAGE, spans.HOOK)
    carrying = call_service.enqueue()
    context.detach(token)
    run_jobs()
    results = [Job.objects.get(pk=job.pk).result for job in (plain, carrying)]
    assert results == ["None", "7"]
    assert carrying.headers["baggage"] == "customer=7"
    assert "baggage" not in plain.headers


@pytest.mark.parametrize("value", ["=", "a", "x" * 9_000, 7, ["a=1"], "a=1," * 500])
def test_bad_baggage_is_ignored(
    traced: Spans, hook: Callable[..., None], value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    hook()
    call_service.using(headers={"baggage": value}).enqueue()
    hook(spans.BAGGAGE, spans.HOOK)
    (run,) = run_jobs()
    assert run.outcome == "succeeded"
    caplog.clear()  # it warns of the members that it leaves out


# A worker


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_worker_exports_the_spans_of_its_threads_its_loop_and_its_children(
    start_worker: Callable[..., JobWorker], traced: Spans, tmp_path: Path
) -> None:
    with spans.tracer.start_as_current_span("GET /buy") as request:
        for job_type in (call_service, acall_service, call_service_alone):
            job_type.enqueue()
    path = tmp_path / "spans"
    worker = start_worker(
        "--burst",
        before=f"from tests.app import spans; spans.write_to({str(path)!r})",
        TEST_DJANGO_JOBS=json.dumps({"HOOKS": [spans.HOOK]}),
        PYTHONWARNINGS="default",  # from 3.12 on: its thread for the export is there at a fork
    )
    assert worker.wait() == 0, worker.text()
    written = spans.read(path)
    trace = f"{request.get_span_context().trace_id:032x}"
    assert {span["trace"] for span in written} == {trace}
    sent = {f"{span.context.span_id:016x}" for span in spans.kept.get_finished_spans()}
    processed = {span["id"]: span for span in written if span["name"] == "process default"}
    assert {span["parent"] for span in processed.values()} < sent
    called = {
        span["name"]: processed[span["parent"]]["attributes"]["messaging.django_jobs.job_type"]
        for span in written
        if span["id"] not in processed
    }
    assert called == {
        "called": "app.call_service",
        "called on the loop": "app.acall_service",
        "called in a thread": "app.acall_service",
        "called alone": "app.call_service_alone",
    }


# Links


@pytest.mark.django_db(transaction=True)
def test_a_retry_links_to_the_attempt_before_it(traced: Spans) -> None:
    def fails() -> None:
        raise ConnectionError("no route")

    with declared(fails, name="app.fails", max_attempts=3) as job_type:
        job_type.enqueue()
        for _ in range(3):
            run_jobs()
            Job.objects.filter(status="scheduled").update(status="ready")
    send, first, second, third = spans.kept.get_finished_spans()
    sent = send.context.span_id
    assert linked(first) == [sent]
    assert linked(second) == [sent, first.context.span_id]
    assert linked(third) == [sent, second.context.span_id]
    assert all(is_child(one, send) for one in (first, second, third))


@pytest.mark.django_db(transaction=True)
def test_a_step_links_to_the_steps_that_it_waited_for(traced: Spans) -> None:
    group([add.step(first=1), add.step(first=2)], then=noop.step()).start()
    run_jobs()
    send, *children, last = spans.kept.get_finished_spans()
    assert send.name == "send"
    assert send.attributes["messaging.batch.message_count"] == 3
    sent = send.context.span_id
    assert [linked(child) for child in children] == [[sent], [sent]]
    assert linked(last) == [sent, *(child.context.span_id for child in children)]
    assert len({span.context.trace_id for span in (send, *children, last)}) == 1
    (run,) = WorkflowRun.objects.all()
    ids = {one.attributes["messaging.message.conversation_id"] for one in (*children, last)}
    assert ids == {str(run.pk)}


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_not_sampled_reads_no_spans_before_it(
    traced: Spans, hook: Callable[..., None]
) -> None:
    headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00"}
    hook()
    noop.using(headers=headers).enqueue()
    hook(spans.HOOK)
    with CaptureQueriesContext(connection) as queries:
        run_jobs()
    assert not [one for one in queries if OF_SPANS.search(one["sql"])]
    assert not traced()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("fresh_tables")
def test_the_spans_before_a_run_are_found_by_indexes(traced: Spans) -> None:
    group([add.step(first=1), add.step(first=2)], then=noop.step()).start()
    run_jobs()
    (step,) = Job.objects.filter(job_type="app.noop")
    run_sql(
        "INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at,"
        " finished_at, error_type, error_message, traceback, fingerprint, traceparent)"
        " SELECT job_id, 1 + n, 'snoozed', now(), now(), now(), '', '', '', '', traceparent"
        " FROM django_jobs_run, generate_series(1, 500) AS n WHERE job_id <> %s",
        [step.pk],
    )
    with CaptureQueriesContext(connection) as queries:
        assert len(opentelemetry._before(step.pk, 2, True)) == 3
    run_sql("SET enable_seqscan = off")  # the tables are small
    assert len([one for one in queries if OF_SPANS.search(one["sql"])]) == 2
    for query in queries:
        nodes = explain(query["sql"].replace("%", "%%"), ())
        assert not [node for node in nodes if node["Node Type"] == "Seq Scan"]
        assert max(map(rows_read, nodes)) < 10
    run_sql("RESET enable_seqscan")
