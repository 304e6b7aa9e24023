"""The overview: known traffic, and the numbers that it shows of it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs.domain.outcomes import Lost, Outcome, Snoozed, Succeeded
from django_jobs.metrics import overview as metrics
from django_jobs.metrics import stored
from django_jobs.models import (
    Job,
    Queue,
    Schedule,
    StoredMetrics,
    Worker,
    WorkflowRun,
)
from tests.admin.walking import Live, Page, list_url
from tests.app.gate_jobs import bill_tenant, charge_account
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    copies_of,
    due_schedule,
    enqueue_and_claim,
    failure,
    fold_runs,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.workflows import start_graph

from .looking import chart, overview, problems, table, tiles, url, words

pytestmark = pytest.mark.django_db


def counted(where: str, of: str = "job") -> int:
    ((number,),) = run_sql(f"SELECT count(*) FROM django_jobs_{of} WHERE {where}")
    return int(number)


def some_traffic() -> None:
    """Jobs in all states, and runs of some outcomes, some minutes ago."""
    worker = register_worker("web-1", threads=3, queues=("default", "bulk"))
    noop.enqueue_many([{}] * 12)
    outcomes = [*[Succeeded()] * 5, failure("boom"), Lost(reason="SIGKILL"), Snoozed(seconds=60)]
    for held, outcome in zip(claim_ready(worker, limit=8), outcomes, strict=True):
        settle_one(held, outcome)
    run_sql(
        "UPDATE django_jobs_run SET finished_at = date_trunc('minute', now()) - interval '90 s'"
    )
    run_sql(
        "UPDATE django_jobs_run SET started_at = finished_at - interval '3 s',"
        " claimed_at = finished_at - interval '4 s',"
        " available_at = finished_at - interval '44 s'"
    )
    fold_runs()
    noop.using(delay=60).enqueue_many([{}] * 6)
    add.using(queue="bulk").enqueue_many([{"first": 1}] * 7)
    claim_ready(worker, limit=2)
    make_dead()
    start_graph({"a": "", "b": "a", "c": "b"})


def test_the_tiles_have_the_numbers_of_all_queues(page: Page) -> None:
    some_traffic()
    shown = tiles(overview(page))
    for state in ("ready", "scheduled", "dead", "blocked"):
        assert shown[state] == str(counted(f"status = '{state}'")), state
    assert shown["waiting steps"] == str(counted("status = 'waiting'")) == "2"
    slots = sum(Worker.objects.values_list("threads", flat=True))
    running = counted("status = 'running'")
    assert running > slots
    assert shown[f"running or prefetched, {slots} slots"] == str(running)
    # Without that which make_dead() adds, which is of this minute and not counted yet.
    assert shown["finished a minute"] == "1.6"
    assert shown["failed, last hour"] == f"{2 / 7:.1%}"
    ((oldest,),) = run_sql(
        "SELECT extract(epoch FROM now() - min(available_at)) FROM django_jobs_job"
        " WHERE status = 'ready'"
    )
    assert oldest < 60
    assert shown["oldest ready"].endswith(("ms", " s"))
    Worker.objects.update(threads=running)
    slots = sum(Worker.objects.values_list("threads", flat=True))
    assert tiles(overview(page))[f"running, of {slots} slots"] == str(running)


def test_the_chart_has_each_minute_of_the_last_hour_by_outcome(page: Page) -> None:
    some_traffic()
    drawn = chart(overview(page))
    assert len(drawn) == 60
    names = "succeeded", "failed, timed out or lost", "snoozed, cancelled or released"
    (minute,) = (one for one in drawn if any(one.values()))
    assert drawn.index(minute) in (56, 57, 58)
    assert [minute[name] for name in names] == [5, 2, 1]
    assert sum(map(sum, (one.values() for one in drawn))) == counted(
        "finished_at < now() - interval '30 s'", "run"
    )


def test_the_table_of_queues(page: Page) -> None:
    some_traffic()
    Queue.objects.filter(name="bulk").update(max_concurrency=9)
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " SELECT 'bulk', now() - n * interval '1 min', 10 * n, 0, 0"
        " FROM generate_series(1, 50) AS n"
    )
    text = overview(page)
    rows = table(text, "Queues")
    assert set(rows) == set(Queue.objects.values_list("name", flat=True))
    for name, row in rows.items():
        ready, scheduled, running = (
            str(counted(f"queue = '{name}' AND status = '{state}'"))
            for state in ("ready", "scheduled", "running")
        )
        limit = {"bulk": "9", "emails": "2", "default": "∞"}.get(name, "")
        assert (row["Ready"], row["Scheduled"]) == (ready, scheduled)
        assert row["Running"].startswith(f"{running} / {limit}")
    assert rows["default"]["State"].endswith("active")
    assert rows["emails"]["State"].endswith("no worker")
    assert (rows["default"]["Done / min"], rows["default"]["Failed / min"]) == ("1", "0.4")
    assert (rows["emails"]["Empty in"], rows["emails"]["Oldest"]) == ("empty", "-")
    assert rows["bulk"]["Last hour"].startswith("Ready jobs of bulk in the last hour: at mo")
    assert "at most 500" in rows["bulk"]["Last hour"]


def test_the_time_until_a_queue_is_empty_is_that_of_jobstatus(page: Page) -> None:
    register_worker(queues=("bulk",))
    add.using(queue="bulk").enqueue_many([{"first": 1}] * 60)
    run_sql(
        "INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs)"
        " VALUES ('bulk', now() - interval '300 s', 360, 0, 0)"
    )
    run_sql(
        "INSERT INTO django_jobs_runtotal SELECT 0, 'epoch', 'bulk', 'app.add', 'succeeded', 300,"
        " zeros, 0, zeros, 0, zeros, 0, zeros, 0, 0, 0"
        " FROM (SELECT array_fill(0::bigint, ARRAY[19]) AS zeros) AS no_times"
    )
    run_sql(
        "INSERT INTO django_jobs_runwatermark (id, run_id, reached_at) VALUES (1, 10000, now())"
        " ON CONFLICT (id) DO UPDATE SET run_id = 10000, reached_at = now()"
    )
    row = table(overview(page), "Queues")["bulk"]
    assert row["Empty in"] in ("1 min", "60 s", "1 min 0 s", "1 min 1 s")  # 60 jobs at 1/s
    run_sql("UPDATE django_jobs_backlogsample SET ready = 10")
    assert table(overview(page), "Queues")["bulk"]["Empty in"] == "growing"
    run_sql("UPDATE django_jobs_runtotal SET runs = 0")
    run_sql("UPDATE django_jobs_backlogsample SET ready = 60")
    assert table(overview(page), "Queues")["bulk"]["Empty in"] == "not moving"
    Queue.objects.filter(name="bulk").update(paused_at="2020-01-01T00:00Z")
    assert table(overview(page), "Queues")["bulk"]["Empty in"] == "after the pause"


def test_job_types_with_how_long_they_wait_and_run(page: Page) -> None:
    some_traffic()
    text = overview(page)
    row = table(text, "Job types, last hour")["app.noop"]
    assert row["Attempts"] == str(counted("finished_at < now() - interval '30 s'", "run"))
    assert row["Failed"] == "2"
    cells = words(text.split("Job types, last hour</caption>")[1].split("<tbody>")[1])
    # All waited 40 s, between the bounds of 30 s and 60 s; the lag was 1 s, and they ran 3 s.
    shown = cells.split("app.noop", 1)[1].split()
    times = " ".join(shown[2:14])
    assert times == "45 s - - 750 ms - - 3.8 s - -"
    note = "p95 takes 20 attempts, and p99 100. The time of a single one is under p50."
    assert note in text
    for table_of in ("waiting", "start_lag", "runtime"):
        run_sql(
            f"UPDATE django_jobs_runtotal SET {table_of}_buckets = ARRAY("
            f" SELECT 20 * number FROM unnest({table_of}_buckets) AS number)"
        )
    text = overview(page)
    cells = words(text.split("Job types, last hour</caption>")[1].split("<tbody>")[1])
    times = " ".join(cells.split("app.noop", 1)[1].split()[2:20])
    assert times.startswith("45 s 58 s 60 s 750 ms 975 ms 995 ms 3.8 s 4.9 s 5.0 s")
    assert note not in text


def test_a_single_attempt_has_its_time_and_no_percentiles(page: Page) -> None:
    worker = register_worker()
    settle_one(enqueue_and_claim(noop, worker=worker), Succeeded())
    run_sql("UPDATE django_jobs_run SET started_at = finished_at - interval '2 h',"
            " claimed_at = finished_at - interval '2 h 3 s',"
            " available_at = finished_at - interval '2 h 20 s'")  # fmt: skip
    fold_runs()
    text = overview(page)
    cells = words(text.split("Job types, last hour</caption>")[1].split("<tbody>")[1])
    assert cells.split("app.noop", 1)[1].startswith(" 1 0 17 s - - 3.0 s - - 2 h - - ")


def test_failures_of_the_last_hour_by_error(page: Page) -> None:
    worker = register_worker()
    noop.enqueue_many([{}] * 4)
    for held in claim_ready(worker, limit=3):
        settle_one(held, failure("boom"))
    rows = table(overview(page), "Failures, last hour")
    assert rows["ValueError app.noop"]["Attempts"] == "3"
    ((fingerprint,),) = run_sql("SELECT DISTINCT fingerprint FROM django_jobs_run")
    assert not Job.objects.dead().exists()
    group = reverse("admin:django_jobs_failure_group")
    link = f'href="{group}?type=app.noop&amp;fingerprint={fingerprint}"'
    assert link in overview(page)
    assert "No job is dead of it; 3 are being retried." in page.read(html.unescape(link[6:-1]))


def test_job_types_that_were_lost_with_one_worker_are_counted_apart(page: Page) -> None:
    worker = register_worker()
    noop.enqueue_many([{}] * 2)
    add.enqueue(1)
    for held in claim_ready(worker, limit=3):
        settle_one(held, Lost(reason="gone"))
    rows = table(overview(page), "Failures, last hour")
    assert {name: row["Attempts"] for name, row in rows.items()} == {
        "WorkerLost app.noop": "2",
        "WorkerLost app.add": "1",
    }


def test_failures_are_shown_by_type_if_the_hour_has_more_attempts_than_are_read(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(metrics.BOUNDS, "newest", 3)
    worker = register_worker()
    settle_one(enqueue_and_claim(add, 1, worker=worker), failure("boom"))
    for outcome in (failure("boom"), Succeeded()):
        settle_one(enqueue_and_claim(noop, worker=worker), outcome)
    rows = table(overview(page), "Failures, last hour")
    assert rows["ValueError app.noop"]["Attempts"] == rows["ValueError app.add"]["Attempts"] == "1"
    for _ in range(2):
        settle_one(enqueue_and_claim(noop, worker=worker), failure("boom"))
    fold_runs()
    rows = table(overview(page), "Failures, last hour")
    assert {name: row["Attempts"] for name, row in rows.items()} == {
        "ValueError app.noop": "3",
        "app.add": "1",
    }
    assert rows["app.add"]["Last"] == "< 1 min ago"
    link = reverse("admin:django_jobs_failures") + "?q=type%3Aapp.noop&retried=1"
    assert f'href="{html.escape(link)}"' in overview(page)
    assert "0 3 ValueError: boom app.noop" in words(page.read(link))


@pytest.mark.parametrize(("newest", "last"), [(3_000, "ago"), (2, "< 1 min ago")])
def test_failures_from_before_the_clock_went_back_are_in_the_newest_part(
    page: Page, monkeypatch: pytest.MonkeyPatch, newest: int, last: str
) -> None:
    monkeypatch.setitem(metrics.BOUNDS, "newest", newest)
    worker = register_worker()
    for _ in range(4):
        settle_one(enqueue_and_claim(noop, worker=worker), failure("boom"))
    fold_runs()
    run_sql("UPDATE django_jobs_run SET finished_at = finished_at + interval '2 h'")
    run_sql("UPDATE django_jobs_runtotal SET began_at = began_at + interval '2 h'")
    row = table(overview(page), "Failures, last hour")["ValueError app.noop"]
    assert row["Attempts"] == "4"
    assert row["Last"].endswith(last)


def test_failures_by_type_leave_out_attempts_whose_job_is_gone(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(metrics.BOUNDS, "newest", 1)
    worker = register_worker()
    for handler, arguments in ((noop, ()), (add, (1,))):
        held = enqueue_and_claim(handler, *arguments, worker=worker)
        settle_one(held, failure("boom"))
    run_sql("DELETE FROM django_jobs_job WHERE id = %s", [held.id])
    fold_runs()
    assert counted("job_type = '' AND outcome = 'failed'", "runtotal")
    assert list(table(overview(page), "Failures, last hour")) == ["app.noop"]


def test_failures_are_those_of_the_newest_attempts_where_nothing_counts_them(
    page: Page, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    monkeypatch.setitem(metrics.BOUNDS, "newest", 3)
    worker = register_worker()

    def end(outcome: Outcome, jobs: int) -> None:
        for _ in range(jobs):
            settle_one(enqueue_and_claim(noop, worker=worker), outcome)

    end(failure("boom"), 1)
    end(Succeeded(), 2)
    assert "ValueError app.noop" in table(overview(page), "Failures, last hour")
    end(Succeeded(), 1)
    text = overview(page)
    assert "None of the newest 3 attempts failed." in text
    assert "No attempt failed in the last hour." not in text
    end(failure("boom"), 1)
    rows = table(overview(page), "Failures, newest 3 attempts")
    assert rows["ValueError app.noop"]["Attempts"] == "1"
    run_sql("UPDATE django_jobs_run SET finished_at = finished_at - interval '2 h'")
    assert "No attempt failed in the last hour." in overview(page)


def test_workers_with_what_they_run_longest(page: Page) -> None:
    worker = register_worker("web-1", threads=3, async_slots=5)
    gone = register_worker("web-0", lease=-90)
    jobs = noop.enqueue_many([{}] * 5)
    claim_ready(worker, limit=5)
    run_sql(
        "UPDATE django_jobs_job SET claimed_at = now() - (id - %s) * interval '1 min'",
        [jobs[0] - 2],
    )
    run_sql("UPDATE django_jobs_worker SET code_version = '4f2a'")
    text = overview(page)
    rows = table(text, "Workers")
    assert list(rows) == ["web-0 4f2a", "web-1 4f2a"]
    assert rows["web-0 4f2a"]["State"].endswith("expired")
    assert rows["web-1 4f2a"]["Running / threads"] == "5 / 3 + 5"
    assert rows["web-1 4f2a"]["Prefetched"] == "0"
    longest = re.sub(r" min \d+ s", " min", rows["web-1 4f2a"]["Longest"])
    assert longest.startswith("app.noop 6 min, app.noop 5 min")
    assert rows["web-1 4f2a"]["Longest"].endswith("and 3 more")
    for address in (f"worker/{worker}", f"worker/{gone}", f"job/{max(jobs)}"):
        assert f"/{address}/change/" in text


def test_workers_of_one_name_are_shown_with_their_process(page: Page) -> None:
    for pid, name, host in ((1, "web", "web"), (2, "web", "web"), (3, "mail", "web"),
                            (4, "job", "a"), (5, "job", "b")):  # fmt: skip
        pk = register_worker(name)
        Worker.objects.filter(pk=pk).update(host=host, pid=pid)
    assert set(table(overview(page), "Workers")) == {
        "web:1", "web:2", "mail", "job a:4", "job b:5",
    }  # fmt: skip


def test_the_schedules_that_are_due_next(page: Page) -> None:
    for number in range(10):
        due_schedule(-60 * (number + 1), name=f"s{number}")
    due_schedule(600, name="paused", paused_at="2020-01-01T00:00Z")
    late = due_schedule(300, name="late")
    rows = table(overview(page), "Next schedules")
    assert list(rows) == ["late", *(f"s{number}" for number in range(7))]
    assert "5 min" in rows["late"]["Due"]
    assert rows["s3"]["Due"].startswith(("in 3 min", "in 4 min"))
    assert f"/schedule/{late.pk}/change/" in overview(page)


def test_workflows_that_run_or_failed(page: Page) -> None:
    failed, running = start_graph({"a": ""}), start_graph({"a": "", "b": "a"})
    first, *_ = claim_ready(register_worker())
    settle_one(first, failure("boom", final=True))
    text = overview(page)
    assert "Workflows: 1 running, 1 failed in the last hour" in text
    rows = table(text, "Workflows")
    states = {str(run): run.status for run in WorkflowRun.objects.all()}
    assert len(states) == len({failed, running}) == 2
    assert {name: row["State"].split()[1] for name, row in rows.items()} == states


@pytest.mark.usefixtures("fresh_tables")  # of a table of 100 pages not all are looked at
def test_the_longest_lines_of_keys(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Longest lines of a key" not in overview(page)
    bill_tenant.enqueue(1)  # of no key
    for account, jobs in ((1, 2), (2, 5)):
        first = charge_account.enqueue(account)
        copies_of(first, jobs - 1, "blocked")
    for most, shown in ((10, ["5", "2"]), (1, ["5"])):
        monkeypatch.setitem(metrics.BOUNDS, "keys", most)
        lines = table(overview(page), "Longest lines of a key")
        assert [line["Jobs that wait"] for line in lines.values()] == shown
    assert lines == {
        "account:2": {
            "Concurrency key": "account:2",
            "Queue": "default",
            "Jobs that wait": "5",
            "Next in line": f"#{first.pk}",
        }
    }
    monkeypatch.setitem(metrics.BOUNDS, "each", 3)
    (line,) = table(overview(page), "Longest lines of a key").values()
    assert line["Jobs that wait"] == "≈ 5"


def test_a_time_is_not_broken_before_its_unit(page: Page) -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() - interval '185 s'")
    assert re.search(r"<dd>3\xa0min \d+\xa0s</dd>", overview(page))


def test_an_empty_system_says_so_in_words(page: Page) -> None:
    register_worker(queues=tuple(Queue.objects.values_list("name", flat=True)))
    text = overview(page)
    assert "No problem is known." in text
    for words_ in ("No attempt failed in the last hour.", "No attempt ended in the last hour.",
                   "No schedule is due.", "No workflow runs, and none failed"):  # fmt: skip
        assert words_ in text


def test_without_totals_there_is_no_chart(page: Page, settings: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "TOTALS": False}
    text = overview(page)
    assert "the setting TOTALS is off" in text
    assert "Finished a minute" not in text


def test_while_another_session_takes_the_first_numbers_the_page_waits(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    overview(page)
    run_sql("UPDATE django_jobs_storedmetrics SET values = '{}'")
    monkeypatch.setattr(stored, "fetch_last", lambda *_: [])  # it has locked the row
    assert "being read for the first time" in page.text(url())


def test_a_look_reads_the_numbers_that_others_took(
    page: Page, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    overview(page)
    noop.enqueue()
    # The session, the user, the two rows, and the four of the time limit of a page.
    with django_assert_num_queries(8):
        text = page.text(url())
    assert tiles(text)["ready"] == "0"


def test_the_numbers_are_taken_in_two_statements(page: Page) -> None:
    some_traffic()
    overview(page)
    StoredMetrics.objects.update(taken_at="2020-01-01T00:00Z")
    with CaptureQueriesContext(connection) as queries:
        text = page.text(url())
    assert len(queries) <= 10, [query["sql"][:60] for query in queries]
    assert tiles(text)["ready"] == str(counted("status = 'ready'"))


def test_users_see_the_parts_of_the_lists_that_they_may_see(
    page_of: Callable[..., Page],
) -> None:
    some_traffic()
    due_schedule(name="nightly")
    start_graph({"a": ""})
    charge_account.enqueue(1)
    Queue.objects.filter(name="default").update(max_concurrency=1)
    parts = {
        "view_queue": ("All queues",),
        "view_job": (
            "ready</dt>",
            "Finished a minute",
            "Job types, last hour",
            "Failures",
            "account:1",
        ),
        "view_run": ("Finished a minute", "Job types, last hour"),
        "view_worker": ("All workers", "web-1"),
        "view_schedule": ("All schedules", "nightly"),
        "view_workflowrun": ("All runs of workflows",),
    }
    everything = {part for of in parts.values() for part in of}
    for permission, shown in parts.items():
        text = overview(page_of(permission, name=permission))
        there = {part for part in everything if part in text.split("data-live-region")[1]}
        allowed = {*shown, *(("ready</dt>",) if permission == "view_queue" else ())}
        assert there == allowed, permission
    text = overview(page_of("view_queue", name="quentin"))
    assert any("slot is taken" in problem for problem in problems(text))
    assert "app.noop" not in text
    assert f"{list_url(Job)}" not in text
    text = overview(page_of("view_worker", name="wanda"))
    assert "app.noop" not in text


def test_the_doctor_is_linked_for_those_who_may_run_it(page_of: Callable[..., Page]) -> None:
    link = f'<a href="{reverse("admin:django_jobs_worker_doctor")}">Examine the database'
    assert link in overview(page_of("view_queue", "run_doctor"))
    assert link not in overview(page_of("view_queue", name="quentin"))


def test_who_may_see_none_of_the_lists_sees_no_overview(page_of: Callable[..., Page]) -> None:
    page_of("view_tenant").text(url(), status=403)
    assert url() not in page_of("view_tenant", name="tess").text("/admin/django_jobs/")


def test_it_is_the_first_entry_of_the_app(page: Page) -> None:
    for start in ("/admin/", "/admin/django_jobs/"):
        text = page.text(start)
        entries = text.split("app-django_jobs module", 1)[1].split("<tr ")[1:]
        assert f'href="{url()}"' in entries[0]
        assert words("<" + entries[0]).startswith("Overview")


def test_it_refreshes_itself_and_is_not_stored(page: Page) -> None:
    answer = page.client.get(url())
    assert "no-store" in answer["Cache-Control"]
    text = answer.content.decode()
    script = '<script src="/static/django_jobs/refresh.js"></script>'
    for part in ('data-refresh="5"', "data-live-region", script):
        assert part in text


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_what_rows_contain_is_escaped(page: Page, name: str) -> None:
    Queue.objects.create(name=name, paused_at="2020-01-01T00:00Z", paused_reason=name)
    worker = register_worker(name, queues=(name, "default"))
    noop.enqueue_many([{}] * 3)
    settle_one(claim_ready(worker)[0], failure(name, kind=name))
    claim_ready(worker)
    noop.enqueue()
    charge_account.enqueue(1)
    run_sql("UPDATE django_jobs_job SET concurrency_key = %s WHERE status = 'blocked'", [name])
    run_sql("UPDATE django_jobs_job SET queue = %s WHERE status = 'ready'", [name])
    run_sql("UPDATE django_jobs_job SET job_type = %s", [name])
    run_sql("UPDATE django_jobs_worker SET code_version = %s", [name])
    due_schedule(name=name)
    due_schedule(name="wrong")
    Schedule.objects.filter(name="wrong").update(error=name)
    Worker.objects.update(name=name)
    fold_runs()
    text = overview(page)
    assert Live(text).alarms == []
    assert name not in text
    assert len(problems(text)) >= 2
