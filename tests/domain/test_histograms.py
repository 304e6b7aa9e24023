"""Buckets of seconds, and the percentiles that they give."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from django_jobs.domain.histograms import BOUNDS, BUCKETS, Histogram


def of(*seconds: float) -> Histogram:
    counts = [0] * BUCKETS
    for one in seconds:
        counts[bisect_left(BOUNDS, one)] += 1
    return Histogram(tuple(counts), sum(seconds))


def test_each_bound_is_above_the_one_before() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))


def test_the_mean_is_of_all_times() -> None:
    histogram = of(0.001, 0.005, 0.007, 2, 5_000)
    assert histogram.count == 5
    assert histogram.mean == pytest.approx(5_002.013 / 5)


def test_a_percentile_lies_on_a_line_within_its_bucket() -> None:
    histogram = of(*[0.7] * 10)
    assert histogram.percentile(0.5) == pytest.approx(0.75)
    assert histogram.percentile(0.95) == pytest.approx(0.975)
    assert histogram.percentile(1) == 1.0
    assert histogram.percentile(0) == pytest.approx(0.5)


def test_a_percentile_skips_buckets_that_are_empty() -> None:
    histogram = of(*[0.001] * 50, *[45] * 50)
    assert histogram.percentile(0.5) == pytest.approx(0.005)
    assert histogram.percentile(0.51) == pytest.approx(30 + 30 / 50)


def test_what_takes_longer_than_the_last_bound_has_the_last_bound_as_percentile() -> None:
    assert of(9_999).percentile(0.5) == BOUNDS[-1]


@pytest.mark.parametrize(("share", "fewest"), [(0.5, 2), (0.95, 20), (0.99, 100)])
def test_a_percentile_is_meant_if_one_time_lies_above_it(share: float, fewest: int) -> None:
    enough = of(*[0.7] * fewest)
    assert enough.meant_percentile(share) == enough.percentile(share)
    assert of(*[0.7] * (fewest - 1)).meant_percentile(share) in (None, 0.7)


def test_the_median_of_one_time_is_exact_and_the_others_are_not_known() -> None:
    one = of(0.7)
    assert [one.meant_percentile(share) for share in (0.5, 0.95, 0.99)] == [0.7, None, None]
    assert of(7_200).meant_percentile(0.5) == 7_200
    assert Histogram().meant_percentile(0.5) is None


def test_an_empty_histogram_has_neither_percentile_nor_mean() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().mean is None


def test_histograms_add_up() -> None:
    assert of(1, 2) + of(3) == of(1, 2, 3)
