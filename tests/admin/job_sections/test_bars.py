"""Where the attempts of a job are on a line of time."""

from __future__ import annotations

from itertools import chain

import pytest

from django_jobs.admin.job_sections.timeline import LEAST, Bar, Stretch, bars_of


def test_each_attempt_has_its_pause_its_wait_and_its_run() -> None:
    failed = Stretch(due=110, claimed=120, ended=150)
    waiting = Stretch(due=180)
    assert bars_of([failed, waiting], begin=100, end=200) == [
        [Bar("pause", 0, 10, 10), Bar("wait", 10, 10, 10), Bar("run", 20, 30, 30)],
        [Bar("pause", 50, 30, 30), Bar("wait", 80, 20, 20)],
    ]


def test_a_running_attempt_reaches_to_the_end() -> None:
    running = Stretch(due=100, claimed=150)
    assert bars_of([running], 100, 200) == [[Bar("wait", 0, 50, 50), Bar("run", 50, 50, 50)]]


def test_a_job_that_is_due_after_the_end_is_all_pause() -> None:
    assert bars_of([Stretch(due=900)], 100, 200) == [[Bar("pause", 0, 100, 100)]]


def test_a_due_time_before_the_previous_end_is_no_wait_during_it() -> None:
    released = Stretch(due=100, claimed=100, ended=160)
    again = Stretch(due=100, claimed=180, ended=200)
    rows = bars_of([released, again], 100, 200)
    assert rows[1] == [Bar("wait", 60, 20, 20), Bar("run", 80, 20, 20)]


@pytest.mark.parametrize("end", [100.0, 100.000_001, 1e9])
def test_every_bar_is_seen_and_none_leaves_the_picture(end: float) -> None:
    quick = Stretch(due=99, claimed=100, ended=100)
    late = Stretch(due=end, claimed=end, ended=end)
    for bar in chain(*bars_of([quick, late], 100, end)):
        assert bar.width >= LEAST
        assert bar.start >= 0
        assert bar.start + bar.width <= 100 + 1e-9
