"""``python -m tests.chaos.flusher``: flush the database, ask for jobs, again and again."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.settings")
django.setup()

from django.core.management import CommandError, call_command  # noqa: E402 — after setup
from django.db import connection, transaction  # noqa: E402 — after setup

from django_jobs import enqueue_many  # noqa: E402 — after setup
from django_jobs.models import Job  # noqa: E402 — after setup

from .enqueuer import AWAY, until_it_works  # noqa: E402 — after setup

JOBS = 20
PAUSE = 6.0
"""Seconds between two flushes, on the average: two heartbeats, so that some come before the workers
have noticed the one before."""


def flush() -> bool:
    """Whether it was done: workers hold locks, and the database may be away."""
    try:
        call_command("flush", interactive=False, verbosity=0)
    except (CommandError, *AWAY):
        connection.close()
        return False
    return True


def ask(number: int, choice: random.Random) -> list[str]:
    """Jobs of up to a second. Their keys; none if they could not be written."""
    keys = [f"{number}-{place}" for place in range(JOBS)]
    payloads = [{"key": key, "seconds": round(choice.uniform(0.05, 1.0), 3)} for key in keys]
    try:
        with transaction.atomic():
            enqueue_many("chaos.guest", payloads)
    except AWAY:
        connection.close()
        return []
    return keys


def main() -> None:
    """The last jobs are asked for after the storm, and waited for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    asked = parser.parse_args()
    choice = random.Random(f"{asked.seed}-flusher")
    end, flushes = time.monotonic() + asked.seconds, 0
    while (left := end - time.monotonic()) > 0:
        flushes += flush()
        ask(flushes, choice)
        time.sleep(min(choice.uniform(0.2, 2 * PAUSE - 0.2), left))
    while not flush():
        time.sleep(0.1)
    while not (keys := ask(flushes + 1, choice)):
        # The answer to a commit may have been lost.
        until_it_works(Job.objects.all().delete)
    asked.file.write_text(json.dumps({"flushes": flushes + 1, "last": keys}))
    live = Job.objects.exclude(status__in=("succeeded", "dead", "cancelled"))
    until = time.monotonic() + 60
    while until_it_works(live.exists) and time.monotonic() < until:
        time.sleep(0.1)


if __name__ == "__main__":
    main()
