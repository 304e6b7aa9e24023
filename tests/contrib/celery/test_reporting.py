"""What packages that watch Celery's workers see, in real processes of ``jobworker``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from django_jobs import registry
from django_jobs.models import Job

from .test_around import CONNECT, Watched, has_ended, told, until, watch

__all__ = ["told", "watch"]
pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("project", "transactional_db")]

SENTRY = """
import json, sentry_sdk
from sentry_sdk.transport import Transport

class Written(Transport):
    def capture_envelope(self, envelope):
        event = envelope.get_event()
        if event is not None:
            with open({path!r}, "a") as file:
                file.write(json.dumps(event, default=str) + "\\n")

sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Written)
"""


def events_in(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("name", "argument", "kinds"),
    [
        ("fail", "bug", ["ValueError"]),
        ("fail", "expected", []),
        ("reject", "k", []),
        ("ignore", "k", []),
        ("loop", "k", ["Hard time limit (%ss) exceeded for %s[%s]"]),
        ("die", "k", ["WorkerLostError"]),
    ],
)
def test_sentry_has_one_event_for_a_failure(
    watch: Callable[..., Watched],
    told: Any,
    tmp_path: Path,
    name: str,
    argument: str,
    kinds: list[str],
) -> None:
    """With the integrations that it installs by itself, as with Celery's worker."""
    pytest.importorskip("sentry_sdk")
    path = tmp_path / "events"
    sent = getattr(told, name).delay(argument)
    last = told.ignore.delay("last")
    watched = watch("--prefork", "1", before=CONNECT + "\n" + SENTRY.format(path=str(path)))
    until(lambda: has_ended(sent) and has_ended(last))
    until(lambda: "event=job_" in watched.worker.text())
    until(lambda: len(events_in(path)) >= len(kinds))
    watched.worker.signal(signal.SIGTERM)
    watched.worker.wait()
    seen = [
        event["exception"]["values"][-1]["type"]
        if "exception" in event
        else event["logentry"]["message"]
        for event in events_in(path)
        if "process_died" not in json.dumps(event)  # of the worker, and not of the task
    ]
    assert seen == kinds, (path.read_text(), watched.worker.text())


TRACE = """
import json
from celery.signals import worker_process_init
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

class Written(SpanExporter):
    def export(self, spans):
        with open({path!r}, "a") as file:
            for span in spans:
                told = [span.name, span.context.trace_id, span.status.status_code.name]
                file.write(json.dumps(told) + "\\n")
        return SpanExportResult.SUCCESS

@worker_process_init.connect(weak=False)
def trace(**_):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Written()))
    CeleryInstrumentor().instrument(tracer_provider=provider)
"""


@pytest.mark.parametrize("options", [("--prefork", "1"), ("--threads", "2")])
def test_opentelemetry_traces_the_tasks_of_a_worker(
    watch: Callable[..., Watched], told: Any, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """Set up as its guide says. A task belongs to the trace of the code that sent it."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.celery")
    from opentelemetry.sdk.trace import TracerProvider

    path, provider = tmp_path / "spans", TracerProvider()
    instrumentor = instrumentation.CeleryInstrumentor()
    instrumentor.instrument(tracer_provider=provider)
    try:
        with provider.get_tracer("test").start_as_current_span("request") as span:
            told.fail.delay("bug")
            told.noop.delay("k")
    finally:
        instrumentor.uninstrument()
    watch(*options, before=CONNECT + "\n" + TRACE.format(path=str(path)))
    until(lambda: len(events_in(path)) == 2)
    trace_id = span.get_span_context().trace_id
    assert sorted(events_in(path)) == [
        ["run/told.fail", trace_id, "ERROR"],
        ["run/told.noop", trace_id, "UNSET"],
    ]


@pytest.mark.parametrize("name", ["hang", "fail"])
def test_celery_once_releases_its_lock(
    watch: Callable[..., Watched], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also after a time limit, when the process of the task is gone."""
    pytest.importorskip("celery_once")
    from django_jobs.contrib.celery.running.job_types import register
    from tests.contrib.celery.project import celery_app, locked

    locks = tmp_path / "locks"
    monkeypatch.setitem(celery_app.conf.ONCE["settings"], "location", str(locks))
    task = getattr(locked, name)
    register(celery_app, task.name)
    try:
        sent = task.delay("k")
        assert task.delay("k").state == "REJECTED"
        before = "from tests.contrib.celery.project import locked; " + CONNECT
        watched = watch("--prefork", "1", before=before, LOCKS=str(locks))
        until(lambda: has_ended(sent))
        until(lambda: not list(locks.iterdir()))
        watched.worker.signal(signal.SIGTERM)
        watched.worker.wait()
        again = task.delay("k")
        assert (again.state, Job.objects.count()) == ("PENDING", 2)
    finally:
        registry.unregister(task.name)
