"""The page of a deploy: versions, commands, and how long a drain takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models import F

from django_jobs.domain.outcomes import Snoozed, Succeeded
from django_jobs.lifecycle.workers import end, mark_draining
from django_jobs.metrics import failures
from django_jobs.models import Worker
from tests.admin.walking import Live, Page, change_url, list_url, words
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    failure,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

DEPLOYS = "/admin/django_jobs/worker/deploys/"


def worker(version: str, supervisor: int, **fields: Any) -> int:
    pk = register_worker()
    Worker.objects.filter(pk=pk).update(
        code_version=version, supervisor_pid=supervisor, rss_mb=100, **fields
    )
    return pk


def rows_in(text: str) -> list[str]:
    rows = re.findall(r"<tr>(?:(?!<th scope=.col).)*?</tr>", text, re.DOTALL)
    return [words(row) for row in rows]


def test_versions_and_commands_that_run_now(page: Page) -> None:
    worker("v1", 10, status="draining")
    busy = worker("v2", 20)
    worker("v2", 20)
    worker("v3", 30, status="stopped")
    noop.enqueue()
    claim_ready(busy)
    text = page.read(DEPLOYS)
    assert "Workers run 2 versions of the code." in text
    assert (
        "Draining all workers would take less than a second. 1 running job may take longer" in text
    )
    first, second, *commands = rows_in(text)
    assert first.startswith("v1 0 new kinds 0 / 0 1 1 0 / 1 0")
    assert second.startswith("v2 0 new kinds 0 / 0 2 0 1 / 2 0")
    assert len(commands) == 2
    assert "1 of 1 drain" in commands[0]
    assert "v2 ▶ running 2 1 / 2 0 200 MB" in commands[1]
    assert commands[1].endswith("Drain the command…")
    assert not commands[0].endswith("Drain the command…")
    assert Live(page.text(DEPLOYS)).alarms == []


def test_a_version_that_is_not_known_is_not_one_that_all_run(page: Page) -> None:
    worker("", 10)
    assert "The version of the code is not known. The setting CODE_VERSION names it" in page.read(
        DEPLOYS
    )
    worker("v1", 20)
    text = page.read(DEPLOYS)
    assert "Workers run 1 known version of the code, and 1 of 2 processes do not name" in text
    assert "The setting CODE_VERSION names it" in text
    worker("v2", 30)
    assert "Workers run 2 known versions of the code, and 1 of 3" in page.read(DEPLOYS)


def test_prefetched_jobs_are_apart_from_those_that_run(page: Page) -> None:
    full, _idle = (worker("v1", 10, threads=2) for _ in range(2))
    noop.enqueue_many([{}] * 7)
    claim_ready(full, limit=7)
    version, command = rows_in(page.read(DEPLOYS))
    assert "v1 0 new kinds 0 / 0 2 0 2 / 4 5" in version
    assert "v1 ▶ running 2 2 / 4 5 200 MB" in command
    listed = page.text(list_url(Worker))
    assert re.findall(r'field-busy">(?:<a[^>]*>)?(.*?)<', listed) == ["0 / 2", "2 / 2"]
    assert re.findall(r'class="field-prefetched">(.*?)<', listed) == ["0", "5"]


def test_workers_of_one_host_are_told_apart_by_their_process(page: Page) -> None:
    worker("v1", 10, name="web-1", host="web-1")
    worker("v1", 20, name="web-1", host="web-1")
    worker("v1", 30, name="mail", host="web-1")
    *_, first, second, third = rows_in(page.read(DEPLOYS))
    assert first.startswith("web-1:10 v1")
    assert second.startswith("web-1:20 v1")
    assert third.startswith("mail web-1:30 · v1")
    places = re.findall(
        r'class="field-place_line"><span title="(.*?)">', page.text(list_url(Worker))
    )
    assert sorted(places) == sorted(f"{one.pid} · web-1" for one in Worker.objects.all())


def test_the_buttons_of_a_worker_go_from_the_narrowest_to_the_widest(page: Page) -> None:
    text = page.text(change_url(Worker, worker("v1", 10)))
    buttons = re.findall(r'<button type="submit" title="([^"]+)">(Drain [^<]+)</button>', text)
    assert [label for _, label in buttons] == [
        "Drain the process", "Drain its command, all processes", "Drain its host, all commands",
    ]  # fmt: skip
    assert buttons[1][0].startswith("All worker processes of each command claim no more jobs")


def test_a_version_leads_to_the_failures_that_are_new_in_it(
    page: Page, page_of: Callable[..., Page]
) -> None:
    first, second = worker("v 1", 10), worker("v 10", 20)
    worker("", 30)
    of_first = ((first, "bulk", "KeyError"), (first, "bulk", "ValueError"))
    for of, queue, kind in (
        *of_first, (second, "default", "KeyError"), (second, "bulk", "OSError")
    ):  # fmt: skip
        held = enqueue_and_claim(noop, worker=of, queue=queue)
        settle_one(held, failure(kind=kind, final=True))
    text = page.text(DEPLOYS)
    address, other = re.findall(r'href="([^"]+)">\d new kinds?<', text)
    assert re.findall(r">(\d new kinds?)<", text) == ["2 new kinds", "1 new kind"]
    assert address.endswith("/failures/?q=since%3A%22v+1%22")
    assert "3 dead jobs of 2 kinds" in page.read(address)  # one of them died in v 10
    assert "1 dead job of one kind" in page.read(other)
    assert "new kind" not in page_of("view_worker").text(DEPLOYS)


def test_a_version_has_the_failed_attempts_of_the_last_hour(page: Page) -> None:
    """Also one that no process runs any more; what a worker counted since it began is not asked."""
    old, new = worker("v1", 10, ended_runs=1_200, failed_runs=2), worker("v2", 20)
    unnamed = worker("", 30)
    for of, final in ((old, False), (new, True), (new, False), (unnamed, True)):
        settle_one(enqueue_and_claim(noop, worker=of), failure(final=final))
    settle_one(enqueue_and_claim(noop, worker=new), Succeeded())
    settle_one(enqueue_and_claim(noop, worker=old), Snoozed(seconds=60.0))
    Worker.objects.filter(pk__in=[old, unnamed]).update(status="stopped")
    first, second, third = rows_in(page.read(DEPLOYS))[:3]
    assert first.startswith("v2 1 new kind 2 / 3 1")
    assert second.startswith("v1 0 new kinds 1 / 2 0 -")
    assert third.startswith("not known - 1 / 1 0 -")
    Worker.objects.all().delete()
    (unknown,) = rows_in(page.read(DEPLOYS))[:1]
    assert unknown.startswith("not known - 4 / 6 0 -")


def test_attempts_beyond_the_last_hour_are_not_counted(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = worker("v1", 10)
    for age in ("2 h", "0 s", "0 s"):
        held = enqueue_and_claim(noop, worker=of)
        settle_one(held, failure(final=True))
        run_sql(
            "UPDATE django_jobs_run SET finished_at = finished_at - %s::interval WHERE job_id = %s",
            [age, held.id],
        )
    assert "2 / 2" in rows_in(page.read(DEPLOYS))[0]
    monkeypatch.setattr(failures, "MOST_ATTEMPTS", 1)
    assert "1 / 1" in rows_in(page.read(DEPLOYS))[0]


def test_the_page_refreshes_itself(page: Page) -> None:
    worker("v1", 10)
    text = page.text(DEPLOYS)
    live = text.index("data-live-region")
    assert live < text.index("jobs-sentence") < text.index("jobs-commands")
    assert 'data-refresh="5"' in text[:live]
    assert "django_jobs/refresh.js" in text


def test_the_slots_of_a_command_are_threads_and_those_of_the_loop(page: Page) -> None:
    worker("v1", 10, threads=2, async_slots=100)
    worker("v1", 10, threads=1, async_slots=50)
    *_, command = rows_in(page.read(DEPLOYS))
    assert "v1 ▶ running 2 0 / 3 + 150 0 200 MB" in command


def test_without_workers_the_page_says_how_to_start_one(page: Page) -> None:
    text = page.read(DEPLOYS)
    assert "No worker is alive." in text
    assert "Start one with manage.py jobworker." in text


def test_a_command_is_drained_from_there(page: Page) -> None:
    first, second = worker("v1", 10), worker("v1", 10)
    assert f'href="{DEPLOYS}"' in page.text(list_url(Worker))
    assert f'value="{first}"' in page.text(DEPLOYS)
    message = page.act(Worker, "stop_commands", first)
    assert message == "2 workers were asked to drain and stop."
    logged = LogEntry.objects.values_list("object_id", "change_message")
    assert set(logged) == {
        (str(pk), "asked to drain and stop, with its command") for pk in (first, second)
    }


def test_what_each_user_may_do_there(page_of: Callable[..., Page]) -> None:
    worker("v1", 10)
    assert "Drain the command…" not in page_of("view_worker", name="vera").text(DEPLOYS)
    assert "Drain the command…" in page_of("view_worker", "stop_worker", name="sam").text(DEPLOYS)
    page_of("view_job", name="nina").text(DEPLOYS, status=403)


@pytest.mark.usefixtures("no_time_limit")
def test_its_queries_do_not_grow(page: Page, django_assert_max_num_queries: Any) -> None:
    for number in range(20):
        worker(f"v{number}", number)
    with django_assert_max_num_queries(9):
        page.text(DEPLOYS)


def test_the_last_drains(page: Page) -> None:
    for number in range(11):
        pk = worker("v1", 10, pid=500 + number)
        mark_draining([pk])
        end(pk, reason=f"SIGTERM {number}")
    Worker.objects.filter(pid=510).update(
        draining_at=F("stopped_at") - timedelta(seconds=70), stop_reason="drained by ada"
    )
    end(worker("v1", 10), reason="a crash")
    text = page.read(DEPLOYS)
    newest, *others = rows_in(text)
    assert re.fullmatch(r".+:510 v1 .+ 1 min 10 s drained by ada", newest)
    assert len(others) == 9
    assert "SIGTERM 0" not in text
    assert "a crash" not in text
