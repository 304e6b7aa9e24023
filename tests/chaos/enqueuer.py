"""``python -m tests.chaos.enqueuer JOBS SEED SECONDS FILE``: enqueue, through all outages.

Writes the keys that it knows to be committed, and those that it knows to be rolled back.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import django

KINDS = {"outside": 60, "inside": 25, "stumble": 13, "hold_the_gil": 1.0, "poison": 0.2}


def main(jobs: int, seed: int, seconds: float, file: Path) -> None:
    """Spread ``jobs`` enqueues over about ``seconds``."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
    django.setup()
    from django.db import DatabaseError, InterfaceError, connection, transaction

    from django_jobs import enqueue, enqueue_many
    from django_jobs.models import Job

    choice = random.Random(seed)
    kept: list[str] = []
    dropped: list[str] = []
    begun = time.monotonic()

    class Dropped(Exception):
        """The caller's own transaction failed."""

    def persistently(keys: list[str], work: Callable[[], object]) -> None:
        """Until it is known to have happened: the answer to a commit may be lost."""
        while True:
            try:
                known = set(
                    Job.objects.filter(idempotency_key__in=keys).values_list(
                        "idempotency_key", flat=True
                    )
                )
                if len(known) < len(keys):
                    assert not known, "part of a batch"
                    work()
                return
            except (DatabaseError, InterfaceError):
                connection.close()
                time.sleep(0.1)

    number = 0
    while number < jobs:
        (kind,) = choice.choices(list(KINDS), list(KINDS.values()))
        duration = choice.uniform(0.005, 0.02)
        if choice.random() < 0.25:
            duration = choice.uniform(0.04, 4.0 if choice.random() < 0.15 else 0.3)
        queue = choice.choice(("default", "default", "second"))
        name, payload = f"chaos.{kind}", {"seconds": round(duration, 4)}
        if choice.random() < 0.05:
            keys = [f"key-{number}-{place}" for place in range(choice.randint(2, 20))]

            def batch(
                name: str = name, payload: dict = payload, queue: str = queue, keys: list = keys
            ) -> None:
                with transaction.atomic():
                    enqueue_many(name, [payload] * len(keys), idempotency_keys=keys, queue=queue)

            if kind == "poison" or kind == "hold_the_gil":
                continue
            persistently(keys, batch)
            kept += keys
            number += len(keys)
        elif choice.random() < 0.03:
            key = f"dropped-{number}"
            try:
                with transaction.atomic():
                    enqueue(name, payload, queue=queue, idempotency_key=key)
                    raise Dropped
            except Dropped:
                dropped.append(key)
            except (DatabaseError, InterfaceError):
                connection.close()
            number += 1
        else:
            key = f"key-{number}"
            persistently(
                [key],
                lambda name=name, payload=payload, queue=queue, key=key: enqueue(
                    name, payload, queue=queue, idempotency_key=key
                ),
            )
            kept.append(key)
            number += 1
        ahead = begun + seconds * number / jobs - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    file.write_text(json.dumps({"kept": kept, "dropped": dropped}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4]))
