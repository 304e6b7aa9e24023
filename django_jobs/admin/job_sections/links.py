"""The links of ``DJANGO_JOBS["LINKS"]``: to logs, to traces, to what a job is about."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any

from django.utils.html import format_html
from django.utils.module_loading import import_string

from ...conf import conf
from ...domain.links import PAYLOAD, filled, is_safe
from ..base.json_display import MASK, coding_of, masked, object_of

logger = logging.getLogger("django_jobs")
TRACE_ID = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-")


def links_of(job: Any, payload: str | None, headers: str | None) -> list[str]:
    """The links of ``job`` that can be filled. ``payload`` and ``headers`` are JSON text; None for
    what the user may not see."""
    return [
        format_html('<li><a href="{}">{}</a></li>', url, label)
        for label, url in _links(job, payload, headers)
    ]


def _links(job: Any, payload: str | None, headers: str | None) -> Iterator[tuple[str, str]]:
    if callable(given := _given()):
        try:
            seen = _as_seen(job, payload, headers)
            pairs = [(str(label), url) for label, url in given(seen)]
        except Exception:
            logger.exception('The function of DJANGO_JOBS["LINKS"] failed')
            return
        yield from ((label, url) for label, url in pairs if is_safe(url))
        return
    values, coding = masked(object_of(payload)), coding_of(job.job_type)
    values = values if coding is None else coding.as_text(values)
    value_of = partial(_value, job, values, object_of(headers))
    for link in given:
        if url := filled(link["url"], value_of):
            yield link["label"], url


def _as_seen(job: Any, payload: str | None, headers: str | None) -> Any:
    """A copy of ``job`` that has of its JSON what the user may see, masked, and which trace it is
    in."""
    seen = copy(job)
    seen.payload, seen.headers = masked(object_of(payload)), masked(object_of(headers))
    if payload is None:
        seen.headers = {name: seen.headers[name] for name in seen.headers.keys() & {"traceparent"}}
        seen.result = seen.signals = None
    return seen


def _given() -> Any:
    links = conf().links
    return import_string(links) if isinstance(links, str) else links


def _value(job: Any, payload: Mapping[str, Any], headers: Mapping[str, Any], field: str) -> Any:
    if field.startswith(PAYLOAD):
        value: Any = payload
        for name in field.removeprefix(PAYLOAD).split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return None if value == MASK else value
    if field == "trace_id":
        found = TRACE_ID.match(str(headers.get("traceparent")))
        return found and found[1]
    return job.pk if field == "job_id" else getattr(job, field)
