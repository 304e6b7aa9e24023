"""The numbers of a queue above its form."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import pause
from django_jobs.admin.overview import numbers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.metrics import gauges, stored
from django_jobs.models import (
    DeadLetter,
    Job,
    Quarantine,
    Queue,
    Resource,
    StoredMetrics,
)
from django_jobs.why.evaluation import explain
from tests.admin.overview.looking import tiles, words
from tests.admin.overview.test_overview import counted, some_traffic
from tests.admin.walking import Live, Page, change_url, list_url
from tests.app.jobs import add, noop
from tests.factories import claim_ready, due_schedule, make_dead, register_worker, run_sql

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_time_limit")]


@pytest.fixture(autouse=True)
def count_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gauges.BOUNDS, "whole", 1_000_000)


def shown(page: Page, name: str) -> str:
    """The region of a queue's page that refreshes, with numbers of now."""
    run_sql("DELETE FROM django_jobs_storedmetrics")
    text = page.text(change_url(Queue, Queue.objects.get(name=name).pk))
    return text.split("data-live-region", 1)[1].split("</section>", 1)[0]


def test_a_queue_shows_its_numbers_and_links_to_its_jobs(page: Page) -> None:
    some_traffic()
    Queue.objects.filter(name="bulk").update(max_concurrency=9)
    for name, limit in (("default", "∞"), ("bulk", "9")):
        text = shown(page, name)
        now = tiles(text)
        for label, state in (
            ("ready", "ready"), (f"running, limit {limit}", "running"), ("scheduled", "scheduled"),
            ("dead", "dead"),
        ):  # fmt: skip
            assert now[label] == str(counted(f"queue = '{name}' AND status = '{state}'")), label
        assert f'href="{list_url(Job)}?queue={name}"' in text
        assert f'href="{list_url(DeadLetter)}?queue={name}"' in text
    assert f'href="{list_url(Job)}?queue=bulk&amp;status=ready"' in shown(page, "bulk")
    now = tiles(shown(page, "default"))
    assert (now["done a minute"], now["failed a minute"]) == ("1", "0.4")
    assert tiles(shown(page, "bulk"))["empty in"] == "not known yet"
    assert tiles(shown(page, "emails"))["empty in"] == "empty"


def test_a_queue_that_the_overview_does_not_list_has_the_same_numbers(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_traffic()
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " SELECT 'default', now() - n * interval '1 min', 10 * n, 0, 0"
        " FROM generate_series(1, 50) AS n"
    )

    def texts(text: str) -> tuple[Any, ...]:
        now = {label: text for label, text in tiles(text).items() if label != "oldest ready"}
        return now, re.findall(r"<title>(.*?)</title>", text)

    listed = texts(shown(page, "default"))
    assert listed[1] == ["Ready jobs of default in the last hour: at most 500"]
    monkeypatch.setattr(numbers, "MOST_QUEUES", 0)
    assert texts(shown(page, "default")) == listed


def test_a_paused_queue_says_by_whom_and_why(page: Page, superuser: Any) -> None:
    register_worker(queues=("bulk",))
    assert words("<p" + shown(page, "bulk")).count("active") == 1
    actor = get_user_model().objects.get(pk=superuser.pk)
    job_operations.pause(["bulk"], reason="mail <b>server</b> is down", actor=actor)
    add.using(queue="bulk").enqueue(1)
    text = shown(page, "bulk")
    assert re.search(r"paused [^:]* ago by ada: mail <b>server</b> is down", words("<p" + text))
    assert Live(text).alarms == []
    assert "<b>" not in text
    assert tiles(text)["empty in"] == "after the pause"


def test_the_page_refreshes_its_numbers_and_not_its_form(page: Page) -> None:
    text = page.text(change_url(Queue, Queue.objects.get(name="bulk").pk))
    region, form = text.split("data-live-region", 1)[1].split("</section>", 1)
    assert "<input" not in region
    assert 'name="max_concurrency"' in form
    assert 'data-refresh="5"' in text
    assert '<script src="/static/django_jobs/refresh.js"></script>' in text
    added = page.text(list_url(Queue) + "add/")
    assert "data-live-region" not in added


def test_a_queue_without_stored_numbers_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown(page, "bulk")
    Queue.objects.create(name="young")
    text = page.text(change_url(Queue, Queue.objects.get(name="young").pk))
    assert "being read for the first time" in text
    run_sql("UPDATE django_jobs_storedmetrics SET values = '{}'")
    monkeypatch.setattr(stored, "fetch_last", lambda *_: [])  # another session takes them
    text = page.text(change_url(Queue, Queue.objects.get(name="bulk").pk))
    assert "being read for the first time" in text


def test_the_links_are_for_those_who_may_view_jobs(page_of: Callable[..., Page]) -> None:
    make_dead()
    noop.enqueue()
    text = shown(page_of("view_queue"), "default")
    assert tiles(text)["ready"] == "1"
    assert "<a " not in text


def backlog(before: int, ended: int, seconds: float) -> None:
    """Five minutes ago so many jobs were ready; since then so many attempts ended, each after so
    many seconds."""
    run_sql("DELETE FROM django_jobs_backlogsample")
    run_sql("DELETE FROM django_jobs_runtotal")
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " VALUES ('default', now() - interval '300 s', %s, 0, 0)",
        [before],
    )
    run_sql(
        "INSERT INTO django_jobs_runtotal SELECT period, at, 'default', 'app.noop', 'succeeded',"
        " %s, zeros, 0, zeros, 0, zeros, 0, zeros, %s, 0, 0"
        " FROM (VALUES (0, '1970-01-01Z'::timestamptz), (60, date_bin('1 min', now(), 'epoch')))"
        " AS of (period, at), (SELECT array_fill(0::bigint, ARRAY[19]) AS zeros) AS no_times",
        [ended, ended * seconds],
    )
    run_sql(
        "INSERT INTO django_jobs_runwatermark (id, run_id, reached_at) VALUES (1, 10000, now())"
        " ON CONFLICT (id) DO UPDATE SET run_id = 10000, reached_at = now()"
    )


@pytest.mark.parametrize(
    ("before", "ended", "seconds", "limit", "needed", "sentence"),
    [
        (10, 0, 0.0, None, None, "An outage: none of its jobs was claimed in the last 5 min"),
        (10, 300, 2.0, None, "2.4", "A backlog that does not become smaller, although its w"),
        (310, 300, 2.0, None, "0.0", "A backlog that becomes smaller: its workers have enou"),
        (10, 300, 9.0, None, "10.8", "Too few workers: its jobs need more slots than those"),
        (10, 300, 2.0, 1, "2.4", "Its limit is too low: its jobs need 2.4 slots, and 1 may"),
    ],
)
def test_a_backlog_is_an_outage_a_burst_or_too_few_workers(
    page: Page,
    before: int,
    ended: int,
    seconds: float,
    limit: int | None,
    needed: str | None,
    sentence: str,
) -> None:
    register_worker(threads=4)
    Queue.objects.filter(name="default").update(max_concurrency=limit)
    noop.enqueue_many([{}] * 10)
    backlog(before, ended, seconds)
    text = shown(page, "default")
    found = re.findall(r"Threads that new jobs need: (.*?)<", text)
    assert found == ([f"{needed}; there are 4"] if needed else [])
    assert sentence in words(text)
    Queue.objects.update(paused_at="2020-01-01T00:00Z")
    assert sentence not in words(shown(page, "default"))


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        (310, "Its limit holds it: a backlog that becomes smaller."),
        (10, "Its limit holds it: a backlog that does not become smaller."),
    ],
)
def test_a_backlog_behind_a_full_limit_is_held_by_it_and_not_by_workers(
    page: Page, before: int, sentence: str
) -> None:
    worker = register_worker(threads=40)
    noop.enqueue_many([{}] * 14)
    claim_ready(worker, limit=4)
    Queue.objects.filter(name="default").update(max_concurrency=4)
    backlog(before, 300, 2.0)
    run_sql("UPDATE django_jobs_backlogsample SET running = 4")
    text = shown(page, "default")
    assert "limit full" in text
    assert sentence in text
    assert "enough slots" not in text


@pytest.mark.parametrize("seconds", [59.4, 59.6, 59.999, 60, 3_600, -3_601])
def test_a_sample_of_the_end_of_this_minute_or_of_another_clock_is_shown(
    page: Page, seconds: float
) -> None:
    """The last half second of a minute was rounded to the next one, which the curve does not have.
    The last point is the number of now."""
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " VALUES ('default', date_bin('1 minute', statement_timestamp(), 'epoch')"
        " + make_interval(secs => %s), 11, 0, 299)",
        [seconds],
    )
    assert "Ready jobs of default in the last hour: at most 0" in shown(page, "default")


def test_what_stands_on_a_pause_is_not_known_until_there_are_rates_again(page: Page) -> None:
    register_worker(threads=4)
    noop.enqueue_many([{}] * 10)
    backlog(310, 300, 2.0)
    assert "becomes smaller" in shown(page, "default")
    job_operations.pause(["default"])
    text = shown(page, "default")
    assert (tiles(text)["empty in"], "A backlog" in text) == ("after the pause", False)
    job_operations.resume(["default"])
    # The stored numbers are from the time of the pause.
    region = page.text(change_url(Queue, Queue.objects.get(name="default").pk))
    assert tiles(region)["empty in"] == "not known yet"
    assert "paused" not in words(region.split("data-live-region", 1)[1].split("</section>", 1)[0])
    for age in (0, 20):
        run_sql("DELETE FROM django_jobs_backlogsample WHERE ready = 11")
        run_sql("UPDATE django_jobs_queue SET resumed_at = now() - interval '20 s'")
        run_sql(
            "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
            " VALUES ('default', now() - make_interval(secs => %s), 11, 0, 299)",
            [age],
        )
        text = shown(page, "default")
        assert (tiles(text)["empty in"], "A backlog" in text) == ("not known yet", False)
    run_sql("UPDATE django_jobs_queue SET resumed_at = now() - interval '70 s'")
    run_sql("UPDATE django_jobs_backlogsample SET taken_at = now() - interval '60 s'"
            " WHERE ready = 11")  # fmt: skip
    assert tiles(shown(page, "default"))["empty in"] == "10 min"  # one of eleven in a minute


def test_the_list_says_after_a_resume_that_the_forecast_is_not_known_yet(page: Page) -> None:
    register_worker()
    noop.enqueue_many([{}] * 10)
    backlog(310, 300, 2.0)
    job_operations.pause(["default"])

    def of_default() -> tuple[str, ...]:
        text = page.text(list_url(Queue))
        (row,) = (row for row in text.split("<tr>") if ">default</a>" in row)
        cells = re.findall(r'class="field-(?:state|time_to_empty|button)">(.*?)</td>', row)
        return tuple(words(cell) for cell in cells)

    assert of_default() == ("‖ paused", "after the pause", "Resume")
    job_operations.resume(["default"])
    assert of_default() == ("✔ active", "not known yet", "Pause")
    assert "Pause or resume" in page.text(list_url(Queue))


def test_a_queue_that_runs_jobs_is_no_outage_and_one_without_known_times_gets_no_verdict(
    page: Page,
) -> None:
    register_worker(threads=4)
    Queue.objects.filter(name="default").update(max_concurrency=1)
    noop.enqueue_many([{}] * 10)
    backlog(10, 0, 0.0)
    assert "An outage" in shown(page, "default")
    job = Job.objects.earliest("id").pk
    run_sql(
        "UPDATE django_jobs_job SET status = 'running', worker_id = 1, claimed_at = now()"
        " WHERE id = %s",
        [job],
    )
    run_sql("UPDATE django_jobs_backlogsample SET running = 1")
    assert "An outage" not in shown(page, "default")
    backlog(310, 300, 0.0)
    assert "A backlog" not in shown(page, "default")


def test_an_action_on_queues_does_not_take_the_numbers(page: Page) -> None:
    assert page.act(Queue, "pause_queues", Queue.objects.get(name="bulk").pk)
    assert not StoredMetrics.objects.exists()
    page.text(list_url(Queue))
    assert StoredMetrics.objects.exists()


def test_what_async_jobs_need_are_slots_of_the_loop(page: Page) -> None:
    register_worker(threads=4, async_slots=50)
    noop.enqueue_many([{}] * 10)
    backlog(10, 300, 2.0)
    run_sql("UPDATE django_jobs_runtotal SET job_type = 'app.add_async'")
    text = words(shown(page, "default"))
    assert "Async slots that new jobs need: 2.4; there are 50" in text
    assert "Threads that new jobs need" not in text


def test_the_list_of_queues_has_their_dead_jobs_and_when_they_will_be_empty(page: Page) -> None:
    register_worker()
    make_dead()
    noop.enqueue_many([{}] * 10)
    backlog(310, 300, 2.0)
    run_sql("DELETE FROM django_jobs_storedmetrics")
    text = page.text(list_url(Queue))
    dead = re.findall(r'class="field-dead">(.*?)</td>', text)
    names = list(Queue.objects.order_by("name").values_list("name", flat=True))
    link = f'<a href="{list_url(DeadLetter)}?queue=default">1</a>'
    assert dead == [link if name == "default" else "0" for name in names]
    times = re.findall(r'class="field-time_to_empty">(.*?)</td>', text)
    assert times == ["10\N{NO-BREAK SPACE}s" if name == "default" else "empty" for name in names]
    Queue.objects.create(name="young")
    assert re.findall(r'class="field-dead">(.*?)</td>', page.text(list_url(Queue)))[-1] == "-"


def test_the_list_of_queues_has_their_scheduled_jobs(page: Page) -> None:
    noop.enqueue()
    noop.using(delay=60).enqueue()
    text = page.text(list_url(Queue))
    scheduled = re.findall(r'class="field-scheduled">(?:<a .*?>)?(\d+)', text)
    names = Queue.objects.order_by("name").values_list("name", flat=True)
    assert scheduled == ["1" if name == "default" else "0" for name in names]


def test_the_list_has_the_number_of_the_overview_where_it_does_not_count(page: Page) -> None:
    noop.enqueue_many([{}] * 1_002)
    run_sql("DELETE FROM django_jobs_storedmetrics")
    assert ">1,002</a>" in page.text(list_url(Queue))
    assert tiles(shown(page, "default"))["ready"] == "1,002"


def done(page: Page) -> dict[str, str]:
    """The rate of each queue in the list."""
    text = page.text(list_url(Queue))
    names = Queue.objects.order_by("name").values_list("name", flat=True)
    return dict(zip(names, re.findall(r'class="field-done">(.*?)</td>', text), strict=True))


def test_the_list_of_queues_has_what_each_does_a_minute(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_worker()
    noop.enqueue_many([{}] * 10)
    backlog(310, 300, 2.0)
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at - interval '1 min'"
            " WHERE period = 60")  # fmt: skip
    run_sql("DELETE FROM django_jobs_storedmetrics")
    assert done(page) == {
        name: "60" if name == "default" else "0" for name in Queue.objects.names()
    }
    monkeypatch.setattr("django_jobs.admin.overview.numbers.MOST_QUEUES", 1)
    run_sql("DELETE FROM django_jobs_storedmetrics")
    others = dict.fromkeys(Queue.objects.names(), "-")
    assert done(page) == {**others, "default": "60"}  # the one with the most jobs


def test_the_list_of_queues_has_the_reason_of_a_pause(page: Page) -> None:
    job_operations.pause(["default"], reason="<b>the partner\nis down")
    job_operations.pause(["bulk"])
    cells = dict(zip(
        Queue.objects.order_by("name").values_list("name", flat=True),
        re.findall(r'class="field-state">(.*?)</td>', page.text(list_url(Queue)), re.DOTALL),
        strict=True,
    ))  # fmt: skip
    reason = '<span class="jobs-state-reason">&lt;b&gt;the partner\nis down</span>'
    assert cells["default"].endswith(f"paused</span> {reason}")
    assert cells["bulk"].endswith("paused</span>")


def test_without_totals_there_are_no_rates(page: Page, settings: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    assert set(done(page).values()) == {"-"}
    now = tiles(shown(page, "default"))
    assert (now["done a minute"], now["failed a minute"]) == ("-", "-")


def test_the_page_takes_few_queries(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    some_traffic()
    Queue.objects.update(slo_seconds=30)
    monkeypatch.setattr(numbers, "MOST_QUEUES", 0)
    with CaptureQueriesContext(connection) as queries:
        shown(page, "default")
    assert len(queries) <= 15 + 2  # and the two of the test


def test_a_pause_with_an_end_says_until_when(page: Page) -> None:
    end = datetime(2099, 12, 24, 18, tzinfo=UTC)
    rows: dict[str, Any] = {"queue": Queue.objects.get(name="default")}
    rows |= {"resource": Resource.objects.create(name="stripe"), "schedule": due_schedule()}
    for kind, row in rows.items():
        pause(kind, row.name, until=end, by="ada@web-1")
    pause("job_type", noop.name, until=end)
    rows["job_type"] = Quarantine.objects.get()
    for kind, row in rows.items():
        text = page.text(change_url(type(row), row.pk))
        assert "2099" in text, kind
        assert "&lt;time" not in text, kind
    assert "until 2099-12-24" in str(explain(noop.enqueue()).as_dict())
