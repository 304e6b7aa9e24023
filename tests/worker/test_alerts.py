"""Running workers send alerts."""

from __future__ import annotations

import json

import pytest

from tests.app.jobs import noop
from tests.factories import make_dead, run_sql
from tests.receivers import webhook

from .processes import Start, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.processes]


def test_two_workers_send_a_dead_job_once(start_worker: Start) -> None:
    make_dead(noop)
    with webhook() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/secret"
        alerts = json.dumps({"ALERTS": {"ops": {"to": url, "on": ["dead_jobs"]}}})
        workers = [start_worker(TEST_DJANGO_JOBS=alerts) for _ in range(2)]
        until(lambda: any("event=alert_sent" in one.text() for one in workers))
        assert len(receiver.received) == 1
        assert receiver.received[0]["situations"][0]["situation"] == "dead_jobs"
        assert run_sql("SELECT count(*) FROM django_jobs_alert WHERE attempts = 0") == [(1,)]
        assert not any("/secret" in one.text() for one in workers)
