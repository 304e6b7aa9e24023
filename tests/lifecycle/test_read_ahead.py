"""Reading ahead: the next batch is made while one is written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_jobs.lifecycle import bulk_insert
from django_jobs.lifecycle.bulk_insert import ReadAhead


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


def text_of(size: int) -> str:
    return "x" * size


def sizes(batches: ReadAhead[int, str], *, ahead: bool) -> Iterator[list[int]]:
    while batch := batches.take(100):
        yield [len(text) for text in batch]
        if ahead:
            batches.read(100)
            batches.make(30)
            batches.make(100)


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    "source",
    [
        [1_000] * 250,
        [1] * 90 + [1_000] * 90 + [1] * 250,
        [20_000, 1, 1, 20_000, 20_000, 1],
        [*range(0, 2_000, 7)],
    ],
)
def test_a_batch_ends_when_its_items_are_large(
    monkeypatch: pytest.MonkeyPatch, source: list[int], ahead: bool
) -> None:
    monkeypatch.setattr(bulk_insert, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(bulk_insert, "FIRST", 2)
    monkeypatch.setattr(bulk_insert, "PART", 8)
    batches = ReadAhead(source, text_of, early=ahead, size=lambda items: sum(map(len, items)))
    found = list(sizes(batches, ahead=ahead))
    assert [size for batch in found for size in batch] == source
    assert batches.is_over
    for batch in found:
        assert len(batch) <= 100
        assert sum(batch[:-8]) < 10_000


def test_a_broken_source_raises_after_the_large_items_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bulk_insert, "BATCH_BYTES", 2)
    monkeypatch.setattr(bulk_insert, "FIRST", 2)
    batches = ReadAhead(counting(5), doubled, early=True, size=len)
    assert batches.take(9) == [0, 2]
    batches.read(9)
    assert batches.take(9) == [4, 6]
    batches.read(9)
    with pytest.raises(KeyError, match="the source broke"):
        batches.take(9)
