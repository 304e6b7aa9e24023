"""Uses each task of the project, canvas and beat. Run by itself, it does so on Celery's own
in-memory broker, with Celery's worker and beat in threads."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from celery import chain, chord, chunks, group

from tests.contrib.celery.project import tasks
from tests.patience import PATIENCE

NO_RESULT_TELLS = Counter(decide=2, failure=1, retry=1, success=1, tick=1)
"""How many effects come without a result or after it, by their first words: Celery calls
``on_success`` and its like once the result is stored."""
OF_BEAT = "tick of beat"


def send() -> dict[str, Any]:
    """The results of tasks that were sent, by what each shows."""
    for how in ("ignore", "reject"):  # in memory, Celery does not mark what it delivers again
        tasks.decide.delay(how)
    day, key = datetime(2026, 5, 1, tzinfo=UTC), UUID("00000000-0000-4000-8000-000000000000")
    add, collect = tasks.add, tasks.collect
    return {
        "a sum": add.delay(1, y=2),
        "a countdown": add.apply_async((1, 1), countdown=0.1),
        "any number of arguments": tasks.total.delay(1, 2, 3, discount=1),
        "a message": tasks.describe.apply_async((1,), {"a": 2}, headers={"trace": "x"}),
        "a retry": tasks.fetch.delay("http://x", failures=1),
        "too many failures": tasks.fetch.delay("http://x", failures=9),
        "an autoretry": tasks.download.delay("http://x", failures=1),
        "no autoretry": tasks.download.delay("http://x", missing=True),
        "other arguments": tasks.count_down.delay(2),
        "dates and numbers": tasks.typed.delay(day, key, 1),
        "a failure": tasks.fail.delay("no"),
        "a task in time": tasks.work.delay(0),
        "a chain": chain(add.s(1, 1), add.s(10), add.s(y=100)).delay(),
        "a failed chain": chain(add.s(1, 1), tasks.fail.si("no")).delay(),
        "a group": group(add.s(n, n) for n in range(4)).delay(),
        "a chord": chord([add.s(n, n) for n in range(4)], collect.s()).delay(),
        "a chord of chains": chord(
            [add.s(1, 1) | add.s(1), add.s(5, 5)], collect.s() | collect.s("end")
        ).delay(),
        "a starmap": add.starmap([(1, 2), (3, 4)]).delay(),
        "chunks": chunks(add.s(), [(n, n) for n in range(5)], 2).delay(),
    }


def outcomes(sent: dict[str, Any], effects: Path) -> dict[str, Any]:
    """The state and the result or the error of each, and the ``effects`` of all."""
    found: dict[str, Any] = {name: list(_outcome(result)) for name, result in sent.items()}
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = Counter(effects.read_text().splitlines())
        if Counter(effect.split()[0] for effect in seen.elements()) >= NO_RESULT_TELLS:
            break
        assert time.monotonic() < deadline, seen
        time.sleep(0.01)
    # How often beat has sent its own depends on how long all this took.
    found["effects"] = sorted((seen - Counter({OF_BEAT: seen[OF_BEAT] - 1})).elements())
    return found


def _outcome(result: Any) -> Iterator[Any]:
    value = result.get(timeout=PATIENCE, interval=0.01, propagate=False)
    yield getattr(result, "state", "a group")
    if isinstance(value, dict):
        yield {**value, "id": value["id"] == result.id}
    else:
        yield repr(value) if isinstance(value, Exception) else value


if __name__ == "__main__":
    from celery.beat import EmbeddedService, Scheduler
    from celery.contrib.testing.worker import start_worker

    from tests.contrib.celery.project import celery_app

    with start_worker(celery_app, perform_ping_check=False):
        EmbeddedService(celery_app, thread=True, scheduler_cls=Scheduler).start()
        print(json.dumps(outcomes(send(), Path(os.environ["PROJECT_EFFECTS"]))), flush=True)
        os._exit(0)  # Celery's worker takes five seconds to stop
