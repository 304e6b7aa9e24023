"""What a process holds is counted by attempts, from all of its threads."""

from __future__ import annotations

import threading

import pytest

from django_jobs.lifecycle.claiming import ClaimedJob
from django_jobs.worker.process.claimed_jobs import Holding
from tests.factories import enqueue_and_claim


@pytest.fixture
def held(db: None) -> ClaimedJob:
    return enqueue_and_claim()


def test_the_end_of_an_attempt_lets_go_of_no_later_one(held: ClaimedJob) -> None:
    """The job was lost, and came back to the process that still runs its old attempt."""
    holding = Holding()
    later = held._replace(attempt=2, worker=held.worker + 1)
    holding.add([held, later])
    holding.end([held])
    assert later in holding
    assert held not in holding
    assert (len(holding), holding.count_in([held.queue]), holding.ended) == (1, 1, 1)
    holding.remove_all([later])
    assert (len(holding), holding.ended) == (0, 1)


def test_an_attempt_that_is_held_is_found_among_others(held: ClaimedJob) -> None:
    holding = Holding()
    other = held._replace(id=held.id + 1)
    assert not holding.has_any([held, other])
    holding.add([held])
    assert holding.has_any([other, held])
    assert not holding.has_any([other])


def test_ends_of_many_threads_are_all_counted(held: ClaimedJob) -> None:
    holding = Holding()

    def end_many() -> None:
        for _ in range(5_000):
            holding.end([held])

    threads = [threading.Thread(target=end_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert holding.ended == 20_000
