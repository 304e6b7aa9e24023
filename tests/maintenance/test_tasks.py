"""The maintenance tasks that every worker has."""

from __future__ import annotations

import pytest

from django_jobs.maintenance.tasks import maintenance_tasks


def test_the_standing_duties_have_names_of_their_own_and_sensible_intervals() -> None:
    tasks = maintenance_tasks()
    assert {"reaping", "retention"} <= {task.name for task in tasks}
    assert len({task.name for task in tasks}) == len(tasks)
    assert all(task.every > 0 and task.batch > 0 for task in tasks)


@pytest.mark.django_db
def test_all_can_be_run_when_there_is_nothing_to_do() -> None:
    assert [task.run_once() for task in maintenance_tasks()] == [0] * len(maintenance_tasks())


def test_each_worker_gets_walks_of_its_own() -> None:
    assert maintenance_tasks()[1].run_once != maintenance_tasks()[1].run_once
