"""What a process holds is counted by attempts, from all of its threads."""

from __future__ import annotations

import threading

import pytest

from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.worker.pools.claimed_jobs import ClaimedJobs
from tests.factories import enqueue_and_claim


@pytest.fixture
def held(db: None) -> ClaimedJob:
    return enqueue_and_claim()


def test_the_end_of_an_attempt_does_not_drop_a_later_one(held: ClaimedJob) -> None:
    """The job was lost, and came back to the process that still runs its old attempt."""
    claimed_jobs = ClaimedJobs()
    later = held._replace(attempt=2, worker=held.worker + 1)
    claimed_jobs.add([held, later])
    claimed_jobs.end([held])
    assert later in claimed_jobs
    assert held not in claimed_jobs
    assert (len(claimed_jobs), claimed_jobs.count_in([held.queue]), claimed_jobs.ended) == (1, 1, 1)
    claimed_jobs.remove_all([later])
    assert (len(claimed_jobs), claimed_jobs.ended) == (0, 1)


def test_a_claimed_attempt_is_found_among_others(held: ClaimedJob) -> None:
    claimed_jobs = ClaimedJobs()
    other = held._replace(id=held.id + 1)
    assert not claimed_jobs.has_any([held, other])
    claimed_jobs.add([held])
    assert claimed_jobs.has_any([other, held])
    assert not claimed_jobs.has_any([other])


def test_endings_of_many_threads_are_all_counted(held: ClaimedJob) -> None:
    claimed_jobs = ClaimedJobs()

    def end_many() -> None:
        for _ in range(5_000):
            claimed_jobs.end([held])

    threads = [threading.Thread(target=end_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claimed_jobs.ended == 20_000


def test_the_claimer_is_woken_once_when_only_as_many_jobs_wait_as_count_as_few(
    held: ClaimedJob,
) -> None:
    claimed_jobs = ClaimedJobs()
    line, woken = claimed_jobs.new_line(), claimed_jobs.wake_event
    line.put_back([held] * 4)
    line.wants_more, line.refill_below = True, 2
    line.next()
    assert not woken.wait(0)
    line.next()
    assert woken.wait(0)
    line.next()
    assert not woken.wait(0)
