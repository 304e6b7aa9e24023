"""The duties that every worker has."""

from __future__ import annotations

import pytest

from django_jobs.maintenance.tasks import default_duties


def test_the_standing_duties_have_names_of_their_own_and_sensible_intervals() -> None:
    duties = default_duties()
    assert {"reaping", "retention"} <= {duty.name for duty in duties}
    assert len({duty.name for duty in duties}) == len(duties)
    assert all(duty.every > 0 and duty.batch > 0 for duty in duties)


@pytest.mark.django_db
def test_all_can_be_run_when_there_is_nothing_to_do() -> None:
    assert [duty.run_once() for duty in default_duties()] == [0] * len(default_duties())


def test_each_worker_gets_walks_of_its_own() -> None:
    assert default_duties()[1].run_once != default_duties()[1].run_once
