"""How the claims of a process are divided among its queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.worker.options import QueueShare
from django_jobs.worker.pools.pool import MOST_QUEUES, QueueSelector, mixed
from tests.worker.execution.test_handler_call import HELD

WEIGHTS = st.lists(st.integers(1, 20), min_size=1, max_size=6)
ROOMS = st.lists(st.integers(1, 300), min_size=1, max_size=20)


def selector(*weights: int, strict: bool = False) -> QueueSelector:
    """Of queues named by their index."""
    return QueueSelector(
        [QueueShare(name=str(number), weight=weight) for number, weight in enumerate(weights)],
        strict,
    )


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def claim(
    queues: QueueSelector, among: Collection[str], room: int, into: Counter[str] | None = None
) -> list[tuple[str, int]]:
    """Claim what a plan says, of queues that have more."""
    plan = queues.plan(among, room)
    assert sum(jobs for _, jobs in plan) == room
    for name, jobs in plan:
        assert jobs > 0
        queues.claimed(name, jobs)
        if into is not None:
            into[name] += jobs
    return plan


@given(weights=WEIGHTS, rooms=ROOMS)
def test_the_shares_hold_for_any_weights_and_any_sizes_of_claims(
    weights: list[int], rooms: list[int]
) -> None:
    """A queue is at most a few plans away from its share, however many jobs were claimed."""
    queues, all_queues = selector(*weights), names(len(weights))
    claimed: Counter[str] = Counter()
    for number in range(200):
        claim(queues, all_queues, rooms[number % len(rooms)], claimed)
        for name, weight in zip(all_queues, weights, strict=True):
            ideal = claimed.total() * weight / sum(weights)
            assert abs(claimed[name] - ideal) <= 2 * max(rooms) + 2 * len(weights)


@given(weights=WEIGHTS.filter(lambda weights: len(weights) > 1), rooms=ROOMS, idle=st.booleans())
def test_an_idle_queue_saves_nothing(weights: list[int], rooms: list[int], idle: bool) -> None:
    """The others get its share, and afterwards it gets its share and no more."""
    queues, all_queues = selector(*weights), names(len(weights))
    for number in range(100):
        claim(queues, all_queues[1:] if idle else all_queues, rooms[number % len(rooms)])
    claimed: Counter[str] = Counter()
    for number in range(100):
        claim(queues, all_queues, rooms[number % len(rooms)], claimed)
    ideal = claimed.total() * weights[0] / sum(weights)
    assert abs(claimed["0"] - ideal) <= 4 * max(rooms) + 2 * len(weights)


def test_a_large_claim_is_divided_by_weight() -> None:
    queues = selector(5, 1)
    assert claim(queues, names(2), 300) == [("1", 50), ("0", 250)]
    assert claim(queues, names(2), 12) == [("1", 2), ("0", 10)]


def test_single_claims_are_mixed() -> None:
    queues = selector(5, 1)
    order = "".join(claim(queues, names(2), 1)[0][0] for _ in range(18))
    assert order.count("1") == 3
    assert "0" * 8 not in order
    assert "11" not in order


def test_many_queues_cost_few_claims() -> None:
    queues = selector(*[1] * 10)
    claimed: Counter[str] = Counter()
    for _ in range(10):
        assert len(claim(queues, names(10), 300, claimed)) <= MOST_QUEUES
    assert max(claimed.values()) - min(claimed.values()) <= 150


def test_a_queue_of_a_small_weight_is_served_between_large_ones() -> None:
    queues = selector(1000, 1)
    claimed: Counter[str] = Counter()
    for _ in range(10):
        claim(queues, names(2), 300, claimed)
    assert claimed["1"] == 3


def test_a_queue_alone_gets_everything() -> None:
    queues = selector(5, 1)
    assert claim(queues, ["1"], 300) == [("1", 300)]
    assert queues.plan([], 300) == []


def test_jobs_that_are_given_back_do_not_count() -> None:
    queues = selector(1, 1)
    queues.claimed("0", 10)
    queues.claimed("1", 10)
    for _ in range(6):
        queues.returned("1")
    assert queues.plan(names(2), 6) == [("1", 6)]
    queues.returned("deleted meanwhile")


def test_strict_order_serves_the_first_queue_only() -> None:
    queues = selector(1, 5, strict=True)
    assert claim(queues, names(2), 300) == [("0", 300)]
    assert claim(queues, names(2), 300) == [("0", 300)]


def test_new_queues_share_from_now_on() -> None:
    queues = selector(1)
    for _ in range(10):
        claim(queues, ["0"], 300)
    queues.serve(["0", "later"])
    claimed: Counter[str] = Counter()
    for _ in range(10):
        claim(queues, ["0", "later"], 300, claimed)
    assert claimed["0"] == pytest.approx(claimed["later"], abs=300)


def test_the_jobs_of_several_claims_are_evenly_mixed_in_their_order() -> None:
    large = [HELD._replace(id=number, queue="a") for number in range(10)]
    small = [HELD._replace(id=number, queue="b") for number in range(2)]
    line = mixed([small, large])
    assert "".join(job.queue for job in line) == "aabaaaaabaaa"
    assert [job.id for job in line if job.queue == "a"] == list(range(10))
    assert [job.id for job in line if job.queue == "b"] == [0, 1]
