"""A duty: what is done again and again."""

from __future__ import annotations

from django_jobs.maintenance.task import Duty


def test_a_duty_that_changed_a_full_batch_has_more_to_do() -> None:
    duty = Duty(name="sweeping", every=5, batch=100, run_once=lambda: 100)
    assert duty.has_more(duty.run_once())
    assert duty.has_more(101)
    assert not duty.has_more(99)
