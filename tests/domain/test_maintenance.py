"""A maintenance task: what is done again and again."""

from __future__ import annotations

from django_jobs.domain.maintenance import MaintenanceTask


def test_a_task_that_changed_a_full_batch_has_more_to_do() -> None:
    task = MaintenanceTask(name="sweeping", every=5, batch=100, run_once=lambda: 100)
    assert task.has_more(task.run_once())
    assert task.has_more(101)
    assert not task.has_more(99)
