"""Lists and pages: there, bounded, readable, whatever is in the rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

import django_jobs
from django_jobs.admin.base.model_admin import CappedPaginator
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import promoting
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.metrics import stored
from django_jobs.models import DeadLetter, Job, JobStatus, Overview, Queue, Run, Worker
from tests.app.jobs import add, noop
from tests.factories import (
    enqueue_and_claim,
    failure,
    make_dead,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)

from .walking import BROKEN_PAYLOADS, UNSHOWN, Page, change_url, list_url, listed, statements_of

pytestmark = pytest.mark.django_db

ALL = (Job, DeadLetter, Run, Queue, Worker)
CELL = re.compile(r'class="field-(\w+)[^"]*">(.*?)</t[dh]>', re.DOTALL)


def one_of_each_state() -> None:
    worker = register_worker("w")
    make_dead(add, 1, worker=worker)
    settle_one(enqueue_and_claim(add, 2, worker=worker), Succeeded(result="3"))
    settle_one(enqueue_and_claim(add, 3, worker=worker), failure())
    job_operations.cancel([noop.enqueue().pk])
    enqueue_and_claim(add, 4, worker=worker)
    noop.using(delay=500).enqueue()
    noop.enqueue()
    job_operations.pause(["bulk"], reason="mail server is down")


@pytest.mark.parametrize("model", ALL)
def test_pages_without_any_row_answer(page: Page, model: Any) -> None:
    page.text(list_url(model))
    page.text(change_url(model, 4711), status=302)


def test_a_page_behind_the_last_leads_to_a_list(page: Page) -> None:
    noop.enqueue()
    assert page.client.get(f"{list_url(Job)}?p=99", follow=True).status_code == 200


def test_the_status_filter_offers_every_state(page: Page) -> None:
    offered = page.text(list_url(Job))
    assert all(f'<option value="{status}">' in offered for status in JobStatus)


def test_the_error_of_an_earlier_attempt_is_not_shown_as_that_of_a_success(page: Page) -> None:
    held = enqueue_and_claim()
    settle_one(held, failure("first try"))
    assert "first try" in page.read(list_url(Job))
    assert "Last error</h2>" in page.read(change_url(Job, held.id))
    run_again(held.id, register_worker(), Succeeded())
    assert "first try" not in page.read(list_url(Job))
    text = page.read(change_url(Job, held.id))
    assert "Last error" not in text
    assert "first try" in text.partition("the oldest first")[2]


def test_filters_narrow(page: Page) -> None:
    one_of_each_state()
    dead = Job.objects.dead().get()
    assert listed(page, status="dead") == [dead.pk]
    for query in ({"finished": "1h"}, {"queue": "default"}, {"job_type": "app.add"}):
        assert listed(page, DeadLetter, **query) == [dead.pk]
    assert "0 dead letters" in page.read(list_url(DeadLetter) + "?queue=emails")


@pytest.fixture
def _stored_numbers(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers that all consoles share were taken just now."""
    monkeypatch.setattr(stored, "FRESH_SECONDS", 600.0)
    page.text(list_url(Overview))


@pytest.mark.usefixtures("no_time_limit")
def test_a_jobs_page_takes_the_same_queries_for_many_runs(
    page: Page, django_assert_max_num_queries: Any
) -> None:
    job = add.using(max_attempts=30).enqueue(1)
    for number in range(12):
        run_again(job.pk, register_worker(f"w{number}"), failure())
    with django_assert_max_num_queries(14):
        page.text(change_url(Job, job.pk))


def test_a_list_says_when_there_are_more_rows_than_its_cap(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CappedPaginator, "cap", 3)
    noop.enqueue_many([{}] * 3)
    assert "There are more than" not in page.read(list_url(Job))
    noop.enqueue()
    assert "There are more than 3." in page.read(list_url(Job))


def test_a_list_reads_payloads_by_id_and_only_small_ones(page: Page) -> None:
    one_of_each_state()
    captured = [sql for model in (Job, DeadLetter) for sql in statements_of(page, list_url(model))]
    selects = [sql for sql in captured if 'FROM "django_jobs_job"' in sql]
    of_page = [sql for sql in selects if "pg_column_size" in sql]
    assert len(of_page) == 2
    assert all('"id" IN (' in sql for sql in of_page)
    others = [sql for sql in selects if sql not in of_page]
    assert others
    assert not [sql for sql in others if re.search(r'"(payload|result|headers)"', sql)]


@pytest.mark.parametrize("payload", BROKEN_PAYLOADS.values(), ids=BROKEN_PAYLOADS.keys())
def test_a_payload_that_cannot_be_read_breaks_neither_list_nor_page(
    page: Page, payload: str
) -> None:
    job = make_dead(add, 1)
    for column in ("payload", "result", "headers", "backoff"):
        run_sql(f"UPDATE django_jobs_job SET {column} = %s::jsonb WHERE id = %s", [payload, job.pk])
    for model in (Job, DeadLetter):
        assert f"#{job.pk}" in page.text(change_url(model, job.pk))
        assert UNSHOWN.search(page.read(change_url(model, job.pk)))
        assert page.text(list_url(model))
    page.act(DeadLetter, "replay_jobs", job.pk)


def test_a_job_whose_payload_cannot_be_read_is_not_replayed(page: Page) -> None:
    broken, sound = make_dead(add, 1), make_dead(add, 1)
    payload = BROKEN_PAYLOADS["a number that Python refuses"]
    run_sql("UPDATE django_jobs_job SET payload = %s::jsonb WHERE id = %s", [payload, broken.pk])
    message = page.act(DeadLetter, "replay_jobs", broken.pk, sound.pk)
    assert "1 job was sent back" in message
    assert f"#{broken.pk}: its payload cannot be read" in message


def test_a_payload_too_large_to_mask_is_not_shown(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobs.admin.base.json_display.LARGEST", 20)
    job = add.enqueue(123456789, second=987654321)
    text = page.read(change_url(Job, job.pk))
    assert "too large to show: " in text
    assert "987654321" not in text


def test_a_long_payload_is_cut(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.admin.base.json_display.LONGEST", 20)
    text = page.read(change_url(Job, add.enqueue(1, second=987654321).pk))
    assert "cut after 20 of" in text
    assert "987654321" not in text


def test_the_search_finds_numbers_types_and_keys(page: Page) -> None:
    first = add.using(idempotency_key="order 7").enqueue(1)
    other = noop.using(idempotency_key="order-8").enqueue()

    def found(text: str) -> list[int]:
        return listed(page, q=text)

    assert found(str(first.pk)) == found(f"#{first.pk}") == [first.pk]
    assert found(f"{first.pk} {other.pk}") == [other.pk, first.pk]
    assert found("type:app.noop") == [other.pk]
    assert found("key:order-8") == [other.pk]
    assert found(f"key:order-8 {first.pk}") == []
    assert found("9" * 40) == found("type:") == found("noop") == found("key:nobody's") == []


def test_the_code_of_an_error_is_searched_in_dead_jobs_and_in_runs(page: Page) -> None:
    def found(model: Any, text: str) -> list[int]:
        return listed(page, model, q=text)

    def attempted(job_type: Any, *arguments: Any, **options: Any) -> int:
        held = enqueue_and_claim(job_type, *arguments)
        settle_one(held, failure(**options))
        return held.id

    down = attempted(add, 1, code="503", final=True)
    other = attempted(noop, code="503", final=True, kind="HTTPError")
    attempted(noop, code="400", final=True)
    waits = attempted(noop, code="503")
    for model in (Job, DeadLetter):
        assert found(model, "code:503") == [other, down]
        assert found(model, f"code:503 {down}") == found(model, "code:503 type:app.add") == [down]
        assert found(model, "code:503 code:400") == found(model, "code:5") == []
    assert found(DeadLetter, "type:app.add") == found(DeadLetter, f"#{down}") == [down]
    assert found(DeadLetter, str(waits)) == found(DeadLetter, "503") == []
    assert found(Run, "code:503") == [waits, other, down]
    assert found(Run, f"code:503 {waits}") == found(Run, f"#{waits}") == [waits]
    assert found(Run, "9" * 40) == found(Run, "type:app.add") == found(Run, "code:") == []
    fingerprint = Run.objects.get(job=other).fingerprint
    assert found(Job, f"error:{fingerprint}") == found(Run, f"error:{fingerprint}") == [other]


def test_a_run_whose_job_was_removed_is_still_listed(page: Page) -> None:
    make_dead()
    run_sql("DELETE FROM django_jobs_job")
    assert "(the job was deleted)" in page.read(list_url(Run))


def test_a_queue_with_a_limit_shows_its_pressure(page: Page) -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=2_000)

    def levels() -> list[str]:
        cells = re.findall(r'field-level">(.+?)</td>', page.read(list_url(Queue)))
        return [re.sub(r"<.+?>", "", cell) for cell in cells]

    assert levels()[:2] == ["✔ok", "-"]
    noop.using(queue="bulk").enqueue_many([{}] * 1_700)
    assert levels()[:2] == ["!high", "-"]
    page.read(change_url(Queue, Queue.objects.get(name="bulk").pk))  # it keeps the numbers
    noop.using(queue="bulk").enqueue_many([{}] * 300)
    assert levels()[:2] == ["✖full", "-"]
    text = page.read(change_url(Queue, Queue.objects.get(name="bulk").pk))
    (state,) = re.findall(r'jobs-queue-state">(.+?)</p>', text, re.DOTALL)
    assert re.search(r"Pressure:.{0,400}</span>full</span>", state, re.DOTALL), state


@pytest.mark.usefixtures("_stored_numbers")
def test_queue_counts_stop_at_a_thousand(page: Page) -> None:
    noop.enqueue_many([{}] * 1002)
    noop.using(queue="bulk", delay=90).enqueue()
    text = page.read(list_url(Queue))
    assert "1,000+" in text
    assert f"{list_url(Job)}?queue=bulk&status=scheduled" in text
    promoting.promote()


def test_the_list_of_queues_counts_the_jobs_of_each_state(page: Page) -> None:
    one_of_each_state()
    rows = re.findall(r"<tr\b.*?</tr>", page.text(list_url(Queue)), re.DOTALL)
    (row,) = [row for row in rows if re.search(r"field-\w*name.*?>default<", row)]
    cells = {name: re.sub(r"<.+?>", "", cell) for name, cell in CELL.findall(row)}
    counts = [cells[name] for name in ("ready", "scheduled", "running")]
    assert counts == ["1", "2", "1 / ∞"]


def test_an_expired_lease_is_shown(page: Page) -> None:
    register_worker(lease=-1)
    assert "lease expired" in page.read(list_url(Worker))


def test_a_worker_with_pools_shows_them(page: Page) -> None:
    pools = [(["heavy"], 2), (["mail", "web"], 16)]
    worker = register_worker(queues=["heavy", "mail", "web"], threads=18, pools=pools)
    for url in (list_url(Worker), change_url(Worker, worker)):
        assert "heavy:2 mail,web:16" in page.read(url)


def test_the_page_of_a_worker_lists_its_job_types_and_versions(page: Page) -> None:
    worker = register_worker(job_types={"app.noop": 1, "app.greet": 3})
    assert "app.greet (3), app.noop" in page.read(change_url(Worker, worker))
    run_sql("UPDATE django_jobs_worker SET job_types = '[{}]', payload_versions = NULL")
    assert "{}" in page.text(change_url(Worker, worker))


def test_words_that_are_ours_are_explained_where_they_stand_as_the_glossary_does(
    page: Page,
) -> None:
    one_of_each_state()
    names = ["jobs_worker_deploys", "jobs_overview_changelist"]
    pages = [list_url(model) for model in ALL] + [reverse(f"admin:django_{one}") for one in names]
    pages += [change_url(model, model.objects.latest("pk").pk) for model in ALL]
    pages.append(reverse("admin:django_jobs_tenant_add"))
    glossary = " ".join(Path("docs/glossary.md").read_text().replace("*", "").split())
    explained = set()
    for url in pages:
        whole = page.read(url)
        texts = dict(re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", whole.partition("jobs-words")[2]))
        rest = re.sub(r"<[^>]*>", " ", whole.partition("<body")[2].partition("jobs-words")[0])
        used = set(re.findall(r"\b(gate|lease|prefetched|pressure)s?\b", rest.lower()))
        assert used <= set(texts), url
        assert all(f": {text}" in glossary for text in texts.values()), texts
        explained |= set(texts)
    assert explained == {"gate", "lease", "prefetched", "pressure"}


def test_what_scrolls_in_a_page_is_reached_by_the_keyboard_and_has_a_name() -> None:
    reached = re.compile(r'class="jobs-scroll" tabindex="0" role="group" aria-label(?:ledby)?="\S')
    scrolls = 0
    for template in Path(django_jobs.__file__).parent.rglob("*.html"):
        text = template.read_text()
        scrolls += len(re.findall(r"jobs-scroll|/(?:rows|section|table)\.html", text))
        assert text.count("jobs-scroll") == len(reached.findall(text)), template
    assert scrolls > 20
