"""A pool of the loop and one of threads look for their jobs in the same queue."""

from __future__ import annotations

import pytest

from django_jobs.worker.options import PoolOptions, QueueShare
from django_jobs.worker.pools import pool as pools
from django_jobs.worker.pools.claimed_jobs import ClaimedJobs
from django_jobs.worker.pools.pool import Claimable, Pool


def made(claimed: ClaimedJobs, *, on_loop: bool) -> Pool:
    options = PoolOptions(queues=(QueueShare(name="default"), QueueShare(name="mail")), threads=2)
    return Pool(
        options,
        claimed,
        Claimable(job_types={}),
        slots=2,
        on_loop=on_loop,
        strict=False,
        prefetch_limit=10,
    )


@pytest.fixture
def both() -> list[Pool]:
    claimed = ClaimedJobs()
    found = [made(claimed, on_loop=on_loop) for on_loop in (False, True)]
    for each in found:
        each.promising.clear()
    return found


def test_a_long_look_behind_the_backlog_of_others_is_followed_by_a_rest(both: list[Pool]) -> None:
    threads, loop = both
    threads.note_look("default", 0.001, both, few=False)
    loop.note_look("default", 1.0, both, few=True)
    loop.expect(["default", "mail"])
    assert loop.promising == {"mail"}
    threads.expect(["default"])
    assert threads.promising == {"default"}


def test_the_rest_ends_with_the_backlog(both: list[Pool]) -> None:
    threads, loop = both
    threads.note_look("default", 0.001, both, few=False)
    loop.note_look("default", 1.0, both, few=True)
    threads.note_look("default", 0.001, both, few=True)
    loop.expect(["default"])
    assert loop.promising == {"default"}


def test_the_rest_is_over_after_a_multiple_of_the_look(
    both: list[Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "REST", 0)
    threads, loop = both
    threads.note_look("default", 0.001, both, few=False)
    loop.note_look("default", 1.0, both, few=True)
    loop.expect(["default"])
    assert loop.promising == {"default"}


@pytest.mark.parametrize("seconds", [1.0, 0.001])
def test_a_look_of_a_slow_server_or_a_short_one_needs_no_rest(
    both: list[Pool], seconds: float
) -> None:
    """A round trip takes as long as it takes if there is no backlog to read past."""
    threads, loop = both
    if seconds < 1:
        threads.note_look("default", 0.001, both, few=False)
    loop.note_look("default", seconds, both, few=True)
    loop.expect(["default"])
    assert loop.promising == {"default"}
