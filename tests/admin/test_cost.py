"""What runs used, on the pages of job and run and summed up by job type."""

from __future__ import annotations

import re
import time
from functools import partial

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.run_log import RunCost
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.metrics.forecast import take_cost
from django_jobs.models import Job, Run
from tests.app.jobs import add, noop
from tests.factories import enqueue_and_claim

from .walking import Page, change_url, list_url

pytestmark = pytest.mark.django_db
COST = RunCost(cpu_seconds=1.25, max_rss_kb=204_800, queries=17, query_seconds=0.5)


def settle_with(cost: RunCost | None) -> Run:
    job, now = enqueue_and_claim(noop), time.monotonic()
    settle([Ending(job, Succeeded(), now - 2, now, cost=cost)])
    return Run.objects.get(job_id=job.id)


def test_a_run_shows_what_it_used_on_its_page_and_that_of_its_job(page: Page) -> None:
    run = settle_with(COST)
    for url in (change_url(Run, run.pk), change_url(Job, run.job_id)):
        assert "1.25 s CPU, 200 MB, 17 queries in 0.5 s" in page.text(url)


def test_a_run_that_was_not_measured_shows_nothing(page: Page) -> None:
    assert "s CPU" not in page.text(change_url(Run, settle_with(None).pk))


def test_the_sums_are_behind_the_list_of_runs(page: Page) -> None:
    url = f"{list_url(Run)}cost/"
    assert "No run ended in the last hour." in page.text(url)
    settle_with(COST)
    settle_with(COST)
    assert url in page.text(list_url(Run))
    text = page.text(url)
    for shown in ("app.noop", "2.5 s", "200 MB", "34", "1.0 s"):
        assert shown in text
    assert "All 2 runs that ended in the last hour." in text
    assert re.findall(r'aria-sort="(\w+)"', text) == ["descending"]


def order(page: Page, sort: str) -> list[str]:
    text = page.text(f"{list_url(Run)}cost/?o={sort}")
    return re.findall(r'<th scope="row">([\w.]+)</th>', text)


def test_each_column_sorts_and_all_types_are_there(page: Page) -> None:
    settle_with(COST)
    job, now = enqueue_and_claim(add, 1), time.monotonic()
    settle([Ending(job, Succeeded(), now - 5, now, cost=None)])
    assert order(page, "") == order(page, "x") == order(page, "-mean") == ["app.add", "app.noop"]
    assert order(page, "p95") == order(page, "-type") == ["app.noop", "app.add"]
    assert order(page, "queries") == order(page, "-queries") == ["app.noop", "app.add"]
    row = re.sub(r"<[^>]+>", " ", page.text(f"{list_url(Run)}cost/")).split("app.add")[1]
    assert row.split()[:5] == ["1", "5.0", "s", "71%", "5.0"]


def test_columns_without_a_value_are_left_out_with_a_word_on_them(page: Page) -> None:
    settle_with(None)
    text = page.text(f"{list_url(Run)}cost/")
    assert "CPU time</a>" not in text
    assert "Queries</a>" not in text
    assert "turn on RUN_COST." in text
    assert "turn on COUNT_QUERIES." in text
    settle_with(COST)
    text = page.text(f"{list_url(Run)}cost/")
    assert "CPU time</a>" in text
    assert "turn on" not in text


def test_the_window_is_said_if_it_is_shorter(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    settle_with(COST)
    settle_with(COST)
    monkeypatch.setattr("django_jobs.metrics.forecast.take_cost", partial(take_cost, most_runs=1))
    text = page.text(f"{list_url(Run)}cost/")
    assert re.search(r"The newest 1 runs\. They ended in the last [\d.]+ m?s\.", text)
