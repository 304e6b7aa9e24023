"""Reading ahead: the next batch is made while one is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_jobs.lifecycle.read_ahead import ReadAhead


def doubled(value: int) -> int:
    if value == 13:
        raise ValueError("unlucky")
    return 2 * value


def counting(until: int) -> Iterator[int]:
    yield from range(until)
    raise KeyError("the source broke")


def test_batches_are_taken_in_order_with_and_without_reading_ahead() -> None:
    for early in (True, False):
        batches = ReadAhead(range(10), doubled, early=early)
        found = []
        while batch := batches.take(4):
            found.append(batch)
            batches.read(4)
            batches.make(3)
        assert found == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]


def test_only_an_early_source_is_read_before_its_turn() -> None:
    for early, read in ((True, [2, 3]), (False, [])):
        seen: list[int] = []
        batches = ReadAhead((seen.append(n) or n for n in range(6)), doubled, early=early)
        batches.take(2)
        seen.clear()
        batches.read(2)
        assert seen == read


def test_what_cannot_be_made_raises_when_its_batch_is_taken() -> None:
    batches = ReadAhead(range(10, 16), doubled, early=True)
    assert batches.take(2) == [20, 22]
    batches.read(2)
    batches.make(2)
    with pytest.raises(ValueError, match="unlucky"):
        batches.take(2)


def test_a_source_that_breaks_raises_when_its_batch_is_taken() -> None:
    batches = ReadAhead(counting(3), doubled, early=True)
    assert batches.take(2) == [0, 2]
    batches.read(2)
    batches.make(2)
    with pytest.raises(KeyError, match="the source broke"):
        batches.take(2)


def test_items_are_skipped_without_being_kept() -> None:
    batches = ReadAhead(range(5), doubled, early=False)
    assert batches.skip(3) == 3
    assert batches.take(9) == [6, 8]
    assert batches.skip(1) == 0
