"""The dry run of a replay plan, and its begin."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from pytest_django import Settings

from django_jobs import chain
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, DeadLetter, Job, Worker
from tests.admin.walking import Live, Page, change_url, message_of
from tests.app.flow_jobs import send_parcel
from tests.app.jobs import add, noop
from tests.factories import copies_of, make_dead, register_worker, run_sql
from tests.lifecycle.test_opening import DEAD, finish

pytestmark = pytest.mark.django_db
ADDRESS = reverse("admin:django_jobs_replay_plan")
PLAN = {"first": 1, "then": 20, "rate": 10, "most_failed": 20}


def default_alone(user: Any) -> dict[str, list[str]]:
    return {"queues": ["default"]}


def plan_of(page: Page, **terms: Any) -> str:
    answer = page.client.get(ADDRESS, terms)
    assert answer.status_code == 200
    return html.unescape(answer.content.decode())


def begin(page: Page, terms: Any, **given: Any) -> Any:
    text = terms if isinstance(terms, str) else json.dumps(terms)
    return page.client.post(ADDRESS, {"begin": 1, "terms": text, **PLAN, **given})


def test_the_dry_run_says_what_a_replay_would_meet(page: Page) -> None:
    register_worker()
    dead = make_dead(add, 1)
    copies_of(dead, 4, status="dead")
    text = plan_of(page, error=dead.fingerprint, type="app.add")
    assert "Replay plan: 5 dead jobs" in text
    assert '<p class="jobs-sentence">app.add: ValueError: boom</p>' in text
    assert dead.fingerprint not in text.replace(f'"error": "{dead.fingerprint}"', "")
    assert "known to 2 live workers" in text
    assert "5 of 5 fit the current handler" in text
    assert "at-most-once" not in text
    assert "Keys" not in text


def test_jobs_of_other_errors_are_not_counted(page: Page) -> None:
    make_dead()
    text = plan_of(page, error="0" * 16)
    assert "No dead job matches" in text
    assert '<form method="post" action="' + ADDRESS not in text


def test_problems_are_said_before_they_are_met(page: Page) -> None:
    dead = make_dead(noop, idempotency_key="k")
    noop.using(idempotency_key="k").enqueue()
    odd = make_dead(add, 1)
    run_sql("UPDATE django_jobs_job SET payload = '{\"secret\": 1}' WHERE id = %s", [odd.pk])
    run_sql("UPDATE django_jobs_job SET at_most_once = true WHERE id = %s", [dead.pk])
    run_sql("UPDATE django_jobs_worker SET status = 'stopped', stopped_at = now()")
    text = plan_of(page, status="dead")
    assert "no live worker knows app.add, app.noop" in text
    assert "1 of 2 fit the current handler; the others are not replayed" in text
    assert "1 has a live job with its key: it is not replayed" in text
    assert "1 is of an at-most-once type" in text


def test_a_step_that_takes_the_result_of_another_fits(page: Page) -> None:
    chain(add.step(first=1), send_parcel.step(order_id=7).taking(stock="add")).start()
    finish({"send_parcel": DEAD})
    assert "1 of 1 fit the current handler" in plan_of(page, status="dead")


def test_the_dry_run_says_whether_the_code_has_changed_since(page: Page) -> None:
    def run_by(version: str) -> None:
        Worker.objects.filter(code_version="").update(code_version=version)

    make_dead()
    assert "workers run" not in plan_of(page, status="dead")  # no version is known
    run_by("4f2a")
    assert "failed in 4f2a, workers run 4f2a: nothing has changed" in plan_of(page, status="dead")
    Worker.objects.update(status="stopped")
    assert "workers run" not in plan_of(page, status="dead")
    register_worker()
    run_by("9b1c")
    text = plan_of(page, status="dead")
    assert "failed in 4f2a, workers run 9b1c" in text
    assert "nothing has changed" not in text
    make_dead()
    run_by("9b1c")
    text = plan_of(page, status="dead")
    assert "failed in 9b1c, 4f2a, workers run 9b1c: for 1 job nothing has changed" in text


def test_the_code_of_workers_that_do_not_run_these_jobs_does_not_count(page: Page) -> None:
    make_dead(add, 1)
    Worker.objects.update(code_version="4f2a")
    register_worker(job_types={"app.noop": 1})
    Worker.objects.filter(code_version="").update(code_version="9b1c")
    assert "workers run 4f2a: nothing has changed" in plan_of(page, status="dead")


def test_no_value_of_a_payload_is_shown(page_of: Callable[..., Page]) -> None:
    make_dead(add, 1)
    run_sql('UPDATE django_jobs_job SET payload = \'{"card": "s3cr3t"}\'')
    text = plan_of(page_of("view_job", "replay_job"), type="app.add")
    assert "0 of 1 fit" in text
    assert "s3cr3t" not in text


def test_a_large_payload_does_not_make_the_dry_run_large(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_jobs.admin.operations import replay_plan

    copies_of(make_dead(add, 1), 9, status="dead")
    ((size,),) = run_sql("SELECT max(pg_column_size(payload)) FROM django_jobs_job_live")
    monkeypatch.setattr(replay_plan, "SAMPLE_BYTES", 3 * size)
    text = plan_of(page, type="app.add")
    assert "3 of 3 fit" in text
    assert "Checked on the oldest 3 jobs." in text


def test_the_page_takes_few_queries(page: Page, django_assert_max_num_queries: Any) -> None:
    copies_of(make_dead(noop, idempotency_key="k"), 30, status="dead")
    with django_assert_max_num_queries(15):
        plan_of(page, status="dead")


def test_a_begun_plan_is_an_operation(page: Page) -> None:
    dead = make_dead()
    done = begin(page, {"error": dead.fingerprint}, then=5, reason="partner is back")
    operation = BulkOperation.objects.get()
    assert (done.status_code, done.url) == (302, change_url(BulkOperation, operation.pk))
    assert operation.plan == {**PLAN, "then": 5}
    assert (operation.action, operation.reason) == ("replay", "partner is back")
    assert operation.terms == {"error": dead.fingerprint}


def test_a_plan_that_is_begun_twice_leads_to_the_first(page: Page) -> None:
    dead = make_dead()
    first, again = (begin(page, {"error": dead.fingerprint}, first=n) for n in (1, 2))
    assert first.url == again.url == change_url(BulkOperation, BulkOperation.objects.get().pk)
    assert "No other operation was started." in message_of(again)
    assert LogEntry.objects.count() == 1


def test_a_plan_whose_jobs_were_replayed_meanwhile_replays_none(page: Page) -> None:
    dead = make_dead()
    assert "1 dead job" in plan_of(page, error=dead.fingerprint)
    page.confirm(Job, "replay_jobs", dead.pk)
    begin(page, {"error": dead.fingerprint}, max_id=dead.pk)
    for _ in range(3):
        BulkOperation.objects.update(next_at="2026-01-01T00:00:00Z")
        run_chunk()
    operation = BulkOperation.objects.get()
    assert (operation.status, operation.done, operation.left) == ("completed", 0, 0)
    dead.refresh_from_db()
    assert (dead.status, dead.replays) == ("ready", 1)


@pytest.mark.parametrize(
    "given", [{"first": 0}, {"rate": 5_000}, {"most_failed": 101}, {"then": ""}, {"rate": "x"}]
)
def test_other_numbers_are_refused_with_the_form(page: Page, given: dict[str, Any]) -> None:
    make_dead()
    answer = begin(page, {"status": "dead"}, **given)
    assert answer.status_code == 200
    assert "Please correct the error below." in answer.content.decode()
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(
    "terms",
    [
        "",
        "{}",
        "[]",
        "null",
        "[1]",
        "{",
        '{"payload": 1}',
        '{"ids": ["1; DROP TABLE"]}',
        "[" * 100_000,
    ],
)
def test_other_terms_are_refused(page: Page, terms: str) -> None:
    answer = begin(page, terms)
    assert (answer.status_code, BulkOperation.objects.count()) == (302, 0)


def test_an_odd_address_leads_to_the_dead_letters(page: Page) -> None:
    for query in ({"odd": "1"}, {"error": "a\0b"}, {"ids": "1"}):
        assert page.client.get(ADDRESS, query).status_code == 302


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "\"><img src=x onerror='a'>"])
def test_terms_are_escaped(page: Page, name: str) -> None:
    answer = page.client.get(ADDRESS, {"error": name})
    assert not Live(answer.content.decode()).alarms
    run_sql("UPDATE django_jobs_job SET job_type = %s WHERE id = %s", [name, make_dead().pk])
    assert not Live(page.client.get(ADDRESS, {"type": name}).content.decode()).alarms


def test_a_plan_needs_the_permission_to_replay(page_of: Callable[..., Page]) -> None:
    make_dead()
    olga = page_of("view_job", "cancel_job", "view_bulkoperation")
    assert olga.client.get(ADDRESS, {"status": "dead"}).status_code == 403
    assert begin(olga, {"status": "dead"}).status_code == 403
    assert not BulkOperation.objects.exists()


@pytest.mark.parametrize(("jobs", "across", "first"), [(3, 1, True), (1, 1, False), (3, 0, False)])
def test_the_plan_is_the_first_button_for_all_that_match(
    page: Page, jobs: int, across: int, first: bool
) -> None:
    ids = [make_dead().pk for _ in range(jobs)]
    chosen = [0] if across else ids
    asked = page.ask(DeadLetter, "replay_jobs", *chosen, select_across=across).content.decode()
    plan = asked.index('name="instead" value="plan"')
    assert (plan < asked.index('value="Replay ')) == first
    assert len(re.findall(r'class="(?:button )?default"', asked)) == 1
    assert ('class="button default" name="instead" value="plan"' in asked) == first


def test_a_user_with_a_scope_is_offered_a_plan(
    page_of: Callable[..., Page], settings: Settings
) -> None:
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "ADMIN_SCOPE": f"{__name__}.default_alone",
    }
    dead = make_dead()
    olga = page_of("view_job", "replay_job")
    asked = olga.ask(DeadLetter, "replay_jobs", dead.pk).content.decode()
    assert 'value="Replay 1 job"' in asked
    assert 'value="plan"' in asked


def test_chosen_dead_letters_can_be_replayed_by_a_plan(page: Page) -> None:
    one, other, third = (make_dead() for _ in range(3))
    asked = page.ask(DeadLetter, "replay_jobs", one.pk, other.pk).content.decode()
    assert 'name="instead" value="plan"' in asked
    shown = page.confirm(DeadLetter, "replay_jobs", one.pk, other.pk, instead="plan", reason="x")
    text = html.unescape(shown.content.decode())
    assert "Replay plan: 2 dead jobs" in text
    begin(page, {"ids": [one.pk, other.pk]})
    assert BulkOperation.objects.get().terms == {"ids": [one.pk, other.pk]}
    assert set(Job.objects.values_list("status", flat=True)) == {"dead"}
    assert third.status == "dead"
