"""What is seen of jobs costs nothing where it is off: no column, row, process or task more."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import models
from pytest_django import Settings

from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.models import (
    BacklogSample,
    ErrorTotal,
    Inspection,
    Job,
    Run,
    RunTotal,
    RunWatermark,
    StoredMetrics,
)
from tests.app import log_jobs, spans
from tests.app.jobs import noop

from .processes import Start, until_status

HOOKS = ["django_jobs.contrib.opentelemetry.trace"]
OFF = {"TOTALS": False, "HOOKS": [], "RUN_COST": False, "COUNT_QUERIES": False, "RUN_LOGS": None}
ON = {"TOTALS": True, "HOOKS": HOOKS, "RUN_COST": True, "COUNT_QUERIES": True, "RUN_LOGS": "INFO"}
OF_RUN = {"cpu_seconds", "queries", "query_seconds", "log", "traceparent"}
"""Columns that are written if everything is on. The memory is only known of isolated jobs."""
WRITTEN: tuple[type[models.Model], ...] = (
    *(RunTotal, ErrorTotal, RunWatermark, BacklogSample, StoredMetrics, Inspection),
)
"""Tables of what is seen."""


def added(run: Run) -> set[str]:
    names = OF_RUN | {"max_rss_kb"}
    return {name for name in names if getattr(run, name) not in (None, "")}


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("setting", [OFF, ON], ids=["off", "on"])
def test_with_everything_off_nothing_is_added(
    start_worker: Start, settings: Settings, setting: dict[str, Any]
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, **setting}
    spans.keep()  # a provider, which other tests may have set before: an enqueue has a trace then
    is_on = setting is ON
    jobs = [noop.enqueue(), log_jobs.log_once.enqueue("ham")]
    health = ("--health-port", "0") if is_on else ()
    worker = start_worker(*health, TEST_DJANGO_JOBS=json.dumps(setting))
    runs = [Run.objects.get(job=until_status(job, "succeeded")) for job in jobs]
    assert set.union(*map(added, runs)) == (OF_RUN if is_on else set())
    assert len(worker.children()) == (3 if is_on else 2)  # heartbeat, one worker, health server
    if not is_on:
        assert list(Job.objects.values_list("headers", flat=True).distinct()) == [{}]
        assert {table.__name__ for table in WRITTEN if table._base_manager.exists()} == set()


def test_totals_and_samples_are_tasks_of_workers_with_totals_alone(settings: Settings) -> None:
    def names(setting: dict[str, Any]) -> set[str]:
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, **setting}
        return {task.name for task in maintenance_tasks()}

    assert names(ON) - names(OFF) == {"totals", "backlog_samples"}
