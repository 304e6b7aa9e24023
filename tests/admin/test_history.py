"""The console finds jobs and runs that moved to the partition of their day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_jobs.admin.base import history_list, search
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.retention import Period, start_of
from django_jobs.lifecycle.history import TABLES
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.progress import ProgressReport, report, store
from django_jobs.models import Job, JobStatus, Run, Schedule
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    due_schedule,
    enqueue_and_claim,
    failure,
    look,
    make_dead,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)

from .walking import Page, change_url, list_url, listed

pytestmark = pytest.mark.django_db

DAYS = 3


@pytest.fixture(autouse=True)
def _three_days() -> None:
    """Partitions of the three days before today."""
    today = start_of(Period.DAY, datetime.now(UTC))
    for table in TABLES:
        for ago in range(1, DAYS + 1):
            start = today - timedelta(days=ago)
            name = f"{table.prefix}{start:%Y%m%d}"
            run_sql(f"CREATE TABLE {name} (LIKE {table.default} INCLUDING ALL)")
            run_sql(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ('{start}') TO ('{start + timedelta(days=1)}')"
            )


@pytest.fixture
def newest_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of each part is all that a list reads."""
    for module in (history_list, search):
        monkeypatch.setattr(module, "NEWEST", 1)


def finished(days_ago: int, job_type: Any = noop, *args: Any, **options: Any) -> int:
    """A job that succeeded this number of days ago."""
    held = enqueue_and_claim(job_type, *args, **options)
    settle_one(held, Succeeded())
    moved_back(held.id, days_ago)
    return held.id


def moved_back(job: int, days: int) -> None:
    for table, column in ("django_jobs_job", "id"), ("django_jobs_run", "job_id"):
        run_sql(
            f"UPDATE {table} SET finished_at = finished_at - make_interval(days => %s)"
            f" WHERE {column} = %s",
            [days, job],
        )


def day(days_ago: int) -> str:
    return f"{datetime.now(UTC) - timedelta(days=days_ago):%Y-%m-%d}"


def note(page: Page, model: Any = Job, **query: str) -> bool:
    """Whether the list says that it searched a part only."""
    return (
        "To search older ones, choose the day"
        in page.client.get(list_url(model), query).content.decode()
    )


def test_everything_is_searched_while_it_is_small(page: Page) -> None:
    old, new = finished(3, add, 1), finished(0, add, 1)
    for query in ({"queue": "default"}, {"q": "type:app.add"}, {"job_type": "app.add"}):
        assert listed(page, **query) == [new, old]
        assert not note(page, **query)


@pytest.mark.usefixtures("newest_only")
@pytest.mark.parametrize(
    "query",
    [
        *({"queue": "default"}, {"job_type": "app.add"}, {"q": "type:app.add"}),
        *({"status": "succeeded"}, {"created": "7d"}, {"q": "type:app.add", "queue": "default"}),
    ],
)
def test_a_filter_without_an_index_searches_the_newest_and_says_so(
    page: Page, query: dict[str, str]
) -> None:
    old, new = finished(2, add, 1), finished(0, add, 1)
    assert listed(page, **query) == [new]
    assert note(page, **query)
    assert listed(page, **query, day=day(2)) == [old]
    assert not note(page, **query, day=day(2))


@pytest.mark.usefixtures("newest_only")
def test_jobs_outside_the_history_are_searched_at_any_age(page: Page) -> None:
    dead = make_dead(add, 1)
    moved_back(dead.pk, 3)
    waiting = add.enqueue(1)
    finished(2, add, 1)
    new = finished(0, add, 1)
    assert listed(page, job_type="app.add") == [new, waiting.pk, dead.pk]
    assert listed(page, q="type:app.add") == [new, waiting.pk, dead.pk]
    assert listed(page, status="dead", queue="default") == [dead.pk]
    assert not note(page, status="dead", queue="default")


@pytest.mark.usefixtures("newest_only")
def test_ids_and_the_whole_list_reach_everything_without_a_note(page: Page) -> None:
    old, new = finished(2, add, 1), finished(0)
    for query in ({}, {"q": f"{old} {new}"}):
        assert listed(page, **query) == [new, old]
        assert not note(page, **query)
    assert listed(page, q=f"{old} type:app.add") == [old]
    assert listed(page, q=f"{old} type:app.noop") == []
    assert listed(page, q=f"{old}", queue="default") == [old]
    assert not note(page, q="nonsense")


@pytest.mark.usefixtures("newest_only")
def test_a_key_is_found_among_live_dead_and_the_newest_finished_jobs(page: Page) -> None:
    old = finished(2, idempotency_key="order-7")
    new = finished(0, idempotency_key="order-7")
    dead = make_dead(idempotency_key="order-7")
    live = noop.using(idempotency_key="order-7").enqueue()
    assert listed(page, q="key:order-7") == [live.pk, dead.pk, new]
    assert note(page, q="key:order-7")
    assert listed(page, q="key:order-7", day=day(2)) == [old]


@pytest.mark.usefixtures("newest_only")
def test_runs_are_searched_alike(page: Page) -> None:
    old, new = finished(2), finished(0)
    assert listed(page, Run) == [new, old]
    assert listed(page, Run, job=str(old)) == [old]
    assert listed(page, Run, finished="7d") == [new, old]
    assert not note(page, Run, finished="7d")
    assert listed(page, Run, outcome="succeeded") == [new]
    assert note(page, Run, outcome="succeeded")
    assert listed(page, Run, outcome="succeeded", day=day(2)) == [old]
    run_sql("UPDATE django_jobs_run SET error_code = '503'")
    assert listed(page, Run, q="code:503") == [new]
    assert note(page, Run, q="code:503")
    assert listed(page, Run, q="code:503", day=day(2)) == [old]
    assert listed(page, Run, q=f"code:503 {old}") == [old]
    assert not note(page, Run, q=f"code:503 {old}")


@pytest.mark.usefixtures("newest_only")
@pytest.mark.parametrize(
    "query, days_ago, read",
    [
        ({"status": "dead"}, None, set()),
        ({}, 2, {2}),
        ({"queue": "default"}, 2, {2}),
    ],
)
def test_the_plan_of_a_list_has_no_other_days(
    page: Page, query: dict[str, str], days_ago: int | None, read: set[int]
) -> None:
    for ago in range(DAYS + 1):
        finished(ago)
    chosen = query if days_ago is None else {**query, "day": day(days_ago)}
    plan = page.client.get(list_url(Job), chosen).context["cl"].queryset.explain()
    days = {day(ago).replace("-", ""): ago for ago in range(DAYS + 1)}
    assert {ago for name, ago in days.items() if f"django_jobs_job_{name} " in plan} == read


def test_days_are_offered_up_to_today_and_another_finds_nothing(page: Page) -> None:
    finished(0)
    text = page.text(list_url(Job))
    assert [f'<option value="{day(ago)}"' in text for ago in (-1, 0, 1, 2, 3, 4)] == [
        *(False, True, True, True, True, False),
    ]
    assert listed(page, day="2001-01-01") == listed(page, day="soon") == []


def test_the_page_of_a_job_in_the_history_has_its_runs_progress_receipts_and_replay(
    page: Page,
) -> None:
    held = enqueue_and_claim(add, 1, max_attempts=2)
    report([ProgressReport(job=held, fraction=0.5, note="half way")])
    store(held, "mail-7", '"sent"')
    settle_one(held, failure("the first try"))
    run_again(held.id, register_worker("second"), failure("the last try", final=True))
    assert "1 job was sent back" in page.act(Job, "replay_jobs", held.id)
    (again,) = claim_ready(register_worker("third"))
    settle_one(again, Succeeded(result='{"answer": 42}'))
    moved_back(held.id, 2)
    ((table,),) = run_sql("SELECT tableoid::regclass::text FROM django_jobs_job")
    assert table == f"django_jobs_job_{day(2).replace('-', '')}"

    text = page.read(change_url(Job, held.id))
    for part in ("the first try", "the last try", "Replayed by ada", "mail-7", "100 %", "42"):
        assert part in text
    runs = Run.objects.filter(job=held.id).order_by("attempt")
    assert [run.outcome for run in runs] == ["failed", "failed", "succeeded"]
    for run in runs:
        assert change_url(Run, run.pk) in text
        assert change_url(Job, held.id) in page.text(change_url(Run, run.pk))
    assert listed(page, Run, job=str(held.id)) == [held.id] * 3


def test_a_schedule_links_to_its_jobs_in_the_history(page: Page) -> None:
    schedule = due_schedule()
    look()
    job = Job.objects.get()
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    moved_back(job.pk, 1)
    assert change_url(Job, job.pk) in page.text(change_url(Schedule, schedule.pk))
    assert change_url(Schedule, schedule.pk) in page.text(change_url(Job, job.pk))


def test_an_ended_job_is_skipped_by_actions(page: Page) -> None:
    job = finished(1)
    for action in ("cancel_jobs", "replay_jobs"):
        page.confirm(Job, action, job)
    job_operations.cancel([job])
    assert Job.objects.get(pk=job).status == JobStatus.SUCCEEDED
