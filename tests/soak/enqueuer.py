"""``python -m tests.soak.enqueuer RATE SECONDS``: enqueue and cancel as a website would."""

from __future__ import annotations

import os
import sys
import time

import django

TURN = 0.2
"""Seconds between two batches."""


def main(rate: float, seconds: float) -> None:
    """Every turn a batch; a share of them fails, a few are cancelled or run alone."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.soak.settings")
    django.setup()
    from django_jobs import cancel
    from tests.soak import jobs

    rare = [(jobs.stumble, 0.02), (jobs.hopeless, 0.01), (jobs.alone, min(0.01, 1 / rate))]
    shares = [*rare, (jobs.quick, 1 - sum(share for _, share in rare))]
    owed = [0.0] * len(shares)
    later: list[int] = []
    begun = time.monotonic()
    turn = 0
    while time.monotonic() < begun + seconds:
        for place, (job_type, share) in enumerate(shares):
            owed[place] += rate * TURN * share
            number = int(owed[place])
            owed[place] -= number
            job_type.enqueue_many([{}] * number)
        while later:  # one that runs, and one that waits for its time
            cancel(later.pop())
        if turn % 10 == 0:
            later = [jobs.until_told.enqueue().pk, jobs.quick.using(delay=600).enqueue().pk]
        turn += 1
        time.sleep(max(0.0, begun + turn * TURN - time.monotonic()))


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]))
