"""Job types of this package: waiting steps of workflows."""

from __future__ import annotations

import pytest

from django_jobs import registry
from django_jobs.domain.outcomes import Failed, Snoozed, Succeeded
from django_jobs.models import Job
from tests.factories import enqueue_and_claim, run_sql
from tests.worker.attempts import Desk, next_attempt

wait, sleep, end = (registry.get(f"django_jobs.{name}") for name in ("wait", "sleep", "end"))


def test_workers_know_them_and_lists_of_job_types_do_not() -> None:
    built_in = {wait.name, sleep.name, end.name}
    assert built_in <= registry.versions().keys()
    assert not built_in & set(registry.names())


def test_the_result_of_a_wait_is_the_data_of_its_signal(desk: Desk) -> None:
    held = enqueue_and_claim(wait, "approval")
    outcome = desk.make(held)
    assert isinstance(outcome, Snoozed)
    assert outcome.awaits == "approval"
    assert Job.objects.get(pk=held.id).signal("approval", {"ok": True})
    assert desk.make(next_attempt(held)) == Succeeded(result='{"ok":true}')


@pytest.mark.parametrize("on_timeout", ["fail", "continue"])
def test_a_wait_fails_for_good_at_its_time_out_or_continues(desk: Desk, on_timeout: str) -> None:
    outcome = desk.make(enqueue_and_claim(wait, "approval", 0, on_timeout))
    if on_timeout == "continue":
        assert outcome == Succeeded()
    else:
        assert isinstance(outcome, Failed)
        assert outcome.final


def test_a_sleep_succeeds_when_its_time_is_over(desk: Desk) -> None:
    held = enqueue_and_claim(sleep, 3600)
    assert isinstance(desk.make(held), Snoozed)
    run_sql("UPDATE django_jobs_receipt SET answer = jsonb_build_object('until', now())")
    assert desk.make(next_attempt(held)) == Succeeded()
