"""The numbers are taken once for all that scrape."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import transaction
from pytest_django import DjangoAssertNumQueries

from django_jobs.domain.admission import retries_allowed
from django_jobs.lifecycle.operations import quarantines
from django_jobs.metrics import stored
from django_jobs.metrics.gauges import Gauges, read_gauges
from django_jobs.metrics.stored import NoMetrics
from django_jobs.models import Resource, StoredMetrics
from tests.app.jobs import noop
from tests.factories import in_threads, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def ready(gauges: Gauges) -> int:
    (jobs,) = (
        row["jobs"]
        for row in gauges["jobs"]
        if (row["queue"], row["state"]) == ("default", "ready")
    )
    return int(jobs)


def age(gauges: Gauges) -> float:
    return float(gauges["stored"][0]["age"])


def make_old(seconds: float = 5.0) -> None:
    run_sql(
        "UPDATE django_jobs_storedmetrics SET taken_at = now() - %s * interval '1 s'", [seconds]
    )


def test_the_numbers_of_the_last_five_seconds_are_served_again(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "FRESH_SECONDS", 3600.0)  # a machine may stand still for five
    noop.enqueue()
    assert ready(read_gauges()) == 1
    noop.enqueue()
    make_old(seconds=4)
    with moment() as now, django_assert_num_queries(1):
        gauges = read_gauges()
    assert ready(gauges) == 1
    assert age(gauges) in now.since(StoredMetrics.objects.get().taken_at)


def test_older_numbers_are_taken_anew_by_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    read_gauges()
    noop.enqueue()
    make_old(seconds=3_600)
    with django_assert_num_queries(2):
        gauges = read_gauges()
    assert ready(gauges) == 1
    assert age(gauges) < 3_600


def test_numbers_from_before_the_clock_was_set_back_are_taken_again() -> None:
    read_gauges()
    noop.enqueue()
    make_old(seconds=-3_600)
    gauges = read_gauges()
    assert ready(gauges) == 1
    assert 0 <= age(gauges) < 3_600


def test_numbers_that_other_code_stored_without_a_part_are_taken_again() -> None:
    """As in a deploy, while old and new code serve."""
    read_gauges()
    noop.enqueue()
    run_sql("UPDATE django_jobs_storedmetrics SET values = values::jsonb - 'queues'")
    assert ready(read_gauges()) == 1


@pytest.mark.django_db(transaction=True)
def test_while_one_session_takes_them_the_others_serve_the_last_ones() -> None:
    read_gauges()
    noop.enqueue()
    make_old(seconds=90)

    def scrape(number: int) -> Gauges:
        return read_gauges()

    with transaction.atomic():
        mine = read_gauges()
        (others,) = in_threads(1, scrape)
    assert (ready(mine), ready(others)) == (1, 0)
    assert age(others) >= 90


@pytest.mark.django_db(transaction=True)
def test_of_many_that_scrape_at_once_one_takes_the_numbers() -> None:
    read_gauges()
    make_old(seconds=90)
    run_sql("CREATE SEQUENCE refreshes")
    run_sql(
        "CREATE FUNCTION count_refresh() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM nextval('refreshes'); RETURN new; END $$;"
        "CREATE TRIGGER count_refresh BEFORE UPDATE ON django_jobs_storedmetrics "
        "FOR EACH ROW EXECUTE FUNCTION count_refresh()"
    )
    try:
        in_threads(6, lambda number: read_gauges())
        assert run_sql("SELECT last_value, is_called FROM refreshes") == [(1, True)]
    finally:
        run_sql("DROP FUNCTION count_refresh CASCADE; DROP SEQUENCE refreshes")


@pytest.mark.django_db(transaction=True)
def test_before_the_first_numbers_are_there_a_scrape_is_refused() -> None:
    read_gauges()
    run_sql("UPDATE django_jobs_storedmetrics SET values = '{}', taken_at = 'epoch'")

    def scrape(number: int) -> str:
        with pytest.raises(NoMetrics) as refused:
            read_gauges()
        return str(refused.value)

    with transaction.atomic():
        read_gauges()
        assert in_threads(1, scrape) == ["The first metrics are being taken. Try again."]


@pytest.mark.parametrize(
    "budget, starts, retries, used",
    [
        (None, 50, 9, None),
        (0.0, 50, 9, 0.9),
        (0.2, 100, 9, 9 / 22),
        (0.2, 100, 19.5, 1),
        (0.2, 5_000, 950, 950 / 1_012),
        (0.2, 1_000, 185, 185 / 203),
        (0.5, 8, 10, 1),
        (0.2, None, None, 0),
        (1.0, 100, 99, 0),
    ],
)
def test_a_retry_budget_is_used_up_when_no_retry_may_start(
    budget: float | None, starts: float | None, retries: float | None, used: float | None
) -> None:
    row = Resource(name="stripe", retry_budget=budget, recent_starts=starts, recent_retries=retries)
    row.counted_at = None if starts is None else datetime(2100, 1, 1, tzinfo=UTC)
    row.save()
    (resource,) = read_gauges()["resources"]
    assert resource["retry_budget_used"] == pytest.approx(used)
    if budget is not None and budget < 1:
        assert (used == 1) == (retries_allowed(budget, starts or 0, retries or 0) == 0)


def test_quarantined_jobs_that_wait_at_their_gates_are_counted() -> None:
    noop.using(concurrency_key="one").enqueue_many({} for _ in range(3))
    quarantines.quarantine("app.noop")
    assert read_gauges()["quarantines"] == [{"job_type": "app.noop", "jobs": 3}]
