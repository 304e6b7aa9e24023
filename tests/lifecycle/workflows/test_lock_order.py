"""A cascade of skipped steps locks one level of the graph after the other, so it may meet another
session that has locked a later level and waits for an earlier one. PostgreSQL ends one of the two,
and its transaction is repeated."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import opening
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.workflows.stuck import stuck
from tests.factories import claim_ready, failure, in_threads, register_worker, run_sql, settle_one
from tests.patience import PATIENCE
from tests.worker.processes import until
from tests.workflow_account import contradictions
from tests.workflows import start_graph, states

GRAPH = {"p": "", "q": "", "first": "p", "second": "first q", "last": "p q"}
WAITS = """
SELECT count(*) FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database()
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("cancelled", [False, True], ids=["a failure", "a cancel"])
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in a transaction"])
def test_a_cascade_that_deadlocks_is_repeated(
    monkeypatch: pytest.MonkeyPatch, cancelled: bool, nested: bool
) -> None:
    """The cascade has locked ``first`` and ``last`` and comes to ``second``, which the other has
    locked that waits for ``last``."""
    run = start_graph(GRAPH)
    p, q = claim_ready(register_worker())
    if cancelled:
        job_operations.cancel([p.id])
    skip, locked = opening._skip, threading.Event()

    def skip_when_the_other_waits(steps: Any) -> Any:
        if not locked.is_set():
            locked.set()
            until(lambda: run_sql(WAITS) == [(1,)])
        return skip(steps)

    monkeypatch.setattr(opening, "_skip", skip_when_the_other_waits)

    def act(number: int) -> None:
        run_sql("SET deadlock_timeout = '50ms'")
        if number == 0:
            settle_one(p, failure(final=True), cancel_requested=cancelled)
            return
        assert locked.wait(PATIENCE)
        if nested:
            with transaction.atomic():
                run_sql("SELECT 1")
                settle_one(q, Succeeded())
        else:
            settle_one(q, Succeeded())

    in_threads(2, act)
    skipped = "cancelled (failed)"
    assert states(run) == {
        "p": "cancelled" if cancelled else "dead",
        "q": "succeeded",
        "first": skipped,
        "second": skipped,
        "last": skipped,
    }
    assert contradictions(run_sql) == []
    assert stuck() == []
