"""What packages that watch Celery's workers see, in real processes of ``jobworker``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

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
    watched.worker.signal(15)
    watched.worker.wait()
    seen = [
        event["exception"]["values"][-1]["type"]
        if "exception" in event
        else event["logentry"]["message"]
        for event in events_in(path)
        if "process_died" not in json.dumps(event)  # of the worker, and not of the task
    ]
    assert seen == kinds
