"""Spans of the tests, kept in this process or written to a file by worker processes."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SimpleSpanProcessor,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

HOOK = "django_jobs.contrib.opentelemetry.trace"
BAGGAGE = "django_jobs.contrib.opentelemetry.baggage"

tracer = trace.get_tracer("tests")
kept = InMemorySpanExporter()


class FileExporter(SpanExporter):
    """Appends a line of JSON for each span, so that several processes may share the file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        text = "".join(json.dumps(json.loads(span.to_json())) + "\n" for span in spans)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, text.encode())
        os.close(descriptor)
        return SpanExportResult.SUCCESS


def keep() -> InMemorySpanExporter:
    """Keep the spans of this process; the same for all tests, because a provider is set once."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(kept))
        trace.set_tracer_provider(provider)
    kept.clear()
    return kept


def write_to(path: str) -> None:
    """Write the spans of this process and its forks to a file, in batches, as projects do."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(FileExporter(path), schedule_delay_millis=3e5))
    trace.set_tracer_provider(provider)


def read(path: Path) -> list[dict[str, Any]]:
    """The spans in a file, with the ids as they stand in ``traceparent``."""
    spans = []
    for line in path.read_text().splitlines():
        span = json.loads(line)
        context = span["context"]
        span |= {"trace": context["trace_id"][2:], "id": context["span_id"][2:]}
        span["parent"] = span["parent_id"] and span["parent_id"][2:]
        spans.append(span)
    return spans
