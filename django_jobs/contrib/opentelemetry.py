"""Hooks for ``DJANGO_JOBS["HOOKS"]`` that trace with OpenTelemetry, by its conventions for
messaging: one trace from the enqueue to the run. Needs the extra ``opentelemetry``."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.db.models import OuterRef, Subquery
from opentelemetry import context
from opentelemetry import trace as api
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .. import __version__
from ..api.hooks import HookEvent
from ..conf import conf
from ..domain.errors import ErrorReport
from ..domain.states import FAILURES, RunState
from ..exceptions import Cancel, Cancelled, LeaseLost, Snooze, TimeLimitExceeded
from ..models import Dependency, Run
from ..models.database import DATABASE_ERRORS
from ..worker.context.attempt import StopHandler, Suspended
from ..worker.context.run_context import current_run
from ..worker.execution.failures import deciding
from ..worker.handlers.cursors import not_counted
from ..worker.ipc.pipes import before_exit

SYSTEM = "django_jobs"
LONGEST_HEADER = {"traceparent": 512, "tracestate": 512, "baggage": 8192}
"""Characters of each header that is written or read. Longer ones are left out."""

TRACE = TraceContextTextMapPropagator()
BAGGAGE = W3CBaggagePropagator()
MOST_PARENTS = 100
"""Links to what a step waited for. The SDK keeps 128 of a span."""

FLUSH_SECONDS = 2.0

tracer = api.get_tracer("django_jobs", __version__)


@contextmanager
def trace(event: HookEvent) -> Iterator[None]:
    """A span ``send {queue}`` around each enqueue, whose context goes into the headers of the job,
    and its child ``process {queue}`` around each run."""
    around = _sending(event) if event.kind == "enqueue" else _processing(event)
    with around:
        yield


@contextmanager
def baggage(event: HookEvent) -> Iterator[None]:
    """OpenTelemetry's baggage at the enqueue is that of the run."""
    if event.kind == "enqueue":
        _write(BAGGAGE, event.headers)
        yield
        return
    token = context.attach(BAGGAGE.extract(_bounded(event.headers), context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


@contextmanager
def _sending(event: HookEvent) -> Iterator[None]:
    with _span("send", SpanKind.PRODUCER, event) as span:
        if (chosen := _span_in(event.headers)).is_valid:
            span.add_link(chosen)
        else:
            _write(TRACE, event.headers)
        try:
            yield
        except Exception as error:
            _record(span, error)
            raise
        if event.job_id is not None:
            span.set_attribute("messaging.message.id", str(event.job_id))
        if event.count is not None:
            span.set_attribute("messaging.batch.message_count", event.count)


@contextmanager
def _processing(event: HookEvent) -> Iterator[None]:
    options: dict[str, Any] = {}
    if (sent := _span_in(event.headers)).is_valid:
        parent = api.set_span_in_context(api.NonRecordingSpan(sent))
        options = {"context": parent, "links": [Link(sent)]}
    with _span("process", SpanKind.CONSUMER, event, **options) as span:
        _keep(span)
        span.set_attribute("messaging.message.id", str(event.job_id))
        span.set_attribute("messaging.django_jobs.attempt", event.attempt or 0)
        try:
            yield
        except BaseException as error:
            outcome = _outcome_of(error)
            if outcome in FAILURES:
                _record(span, error)
            span.set_attribute("messaging.django_jobs.outcome", outcome)
            raise
        span.set_attribute("messaging.django_jobs.outcome", RunState.SUCCEEDED)


def _keep(span: Span) -> None:
    """Keep the context of the span with the attempt: log lines have its ids, and its run shows them
    to the spans that follow. Link it to those before it."""
    if (run := current_run()) is None or not span.get_span_context().is_valid:
        return
    carrier: dict[str, str] = {}
    TRACE.inject(carrier)
    run._attempt.traceparent = carrier["traceparent"]
    workflow_run = run._attempt.job.workflow_run_id
    is_step = workflow_run is not None
    if is_step:
        span.set_attribute("messaging.message.conversation_id", str(workflow_run))
    if span.is_recording() and (run.attempt > 1 or is_step):
        with not_counted(run._attempt):
            earlier = _before(run.job_id, run.attempt, is_step)
        for traceparent in earlier:
            span.add_link(_span_in({"traceparent": traceparent}))


def _before(job: int, attempt: int, is_step: bool) -> list[str]:
    """The spans of the previous attempt, and of the steps that a step has waited for. An error of
    the database fails no attempt: there are no links then."""
    runs = Run.objects.using(conf().database)
    found: list[str | None] = []
    last = runs.filter(job_id=OuterRef("parent_id")).order_by("-attempt").values("traceparent")
    try:
        if is_step:
            edges = Dependency.objects.using(conf().database).filter(child_id=job)
            spans = edges.order_by("parent_id").values_list(Subquery(last[:1]), flat=True)
            found += spans[:MOST_PARENTS]
        if attempt > 1:
            previous = runs.filter(job_id=job, attempt=attempt - 1)
            found += previous.values_list("traceparent", flat=True)
    except DATABASE_ERRORS:
        return []
    return [traceparent for traceparent in found if traceparent]


@contextmanager
def _span(operation: str, kind: SpanKind, event: HookEvent, **options: Any) -> Iterator[Span]:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.django_jobs.job_type": event.job_type,
    }
    if event.queue:
        attributes["messaging.destination.name"] = event.queue
    with tracer.start_as_current_span(
        f"{operation} {event.queue}" if event.queue else operation,
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
        **options,
    ) as span:
        yield span


def _record(span: Span, error: BaseException) -> None:
    """The error as it is stored with the run: bounded, and without the values of a row."""
    if span.is_recording():
        report = ErrorReport.of(error)
        attributes = {
            "exception.type": report.type,
            "exception.message": report.message,
            "exception.stacktrace": report.traceback,
        }
        span.add_event("exception", attributes)
        span.set_attribute("error.type", report.type)
        span.set_status(Status(StatusCode.ERROR, report.summary))


def _outcome_of(error: BaseException) -> RunState:
    match deciding(error) or error:
        case Snooze() | Suspended():
            return RunState.SNOOZED
        case Cancel() | Cancelled():
            return RunState.CANCELLED
        case StopHandler():
            return RunState.RELEASED
        case TimeLimitExceeded():
            return RunState.TIMED_OUT
        case LeaseLost():
            return RunState.LOST
    return RunState.FAILED


def _write(propagator: TextMapPropagator, headers: dict[str, Any]) -> None:
    """Inject the current context. What a caller has put into the headers stays if there is none."""
    carrier: dict[str, str] = {}
    propagator.inject(carrier)
    if carrier:
        for name in propagator.fields:
            headers.pop(name, None)
        headers |= _bounded(carrier)


def _span_in(headers: Mapping[str, Any]) -> SpanContext:
    """The span that the headers name; an invalid one if they name none."""
    read = TRACE.extract(_bounded(headers), context.Context())
    return api.get_current_span(read).get_span_context()


def _bounded(headers: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value
        for name, most in LONGEST_HEADER.items()
        if isinstance(value := headers.get(name), str) and len(value) <= most
    }


@before_exit
def flush() -> None:
    """Export the spans that are left, before a process of the worker exits. A collector that does
    not answer holds it up no longer than this: the SDK would wait longer."""
    if (force_flush := getattr(api.get_tracer_provider(), "force_flush", None)) is not None:
        thread = threading.Thread(target=force_flush, daemon=True)
        thread.start()
        thread.join(FLUSH_SECONDS)
