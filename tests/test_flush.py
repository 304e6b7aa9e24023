"""Between two tests, all that was written goes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import call_command

from django_jobs.api.schedules import request_of
from django_jobs.lifecycle.operations.schedules import backfill
from django_jobs.models import Backfill, Job, Tick
from tests.factories import due_schedule, run_sql


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("table", ["schedule", "backfill", "tick", "job_live"])
def test_a_table_that_was_analyzed_goes_with_those_that_refer_to_it(table: str) -> None:
    """As autovacuum does at any time: then it is truncated, and the others are not."""
    schedule = due_schedule(7_200)
    backfill(schedule, schedule.created_at - timedelta(hours=1), schedule.created_at, request_of)
    assert Backfill.objects.exists()
    run_sql(f"ANALYZE django_jobs_{table}")
    call_command("flush", interactive=False, reset_sequences=False, verbosity=0)
    assert not any(model.objects.exists() for model in (Backfill, Tick, Job))
