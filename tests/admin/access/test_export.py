"""The export of a list: what is in the file, from whom it is hidden, and what the history has."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import AsyncClient
from django.test.utils import CaptureQueriesContext

from django_jobs.admin.access import export
from django_jobs.admin.base import history_list
from django_jobs.models import DeadLetter, Job, Run, Tick
from tests.admin.access.test_errors import EVERYTHING, PASSWORD, SECRET, fail
from tests.admin.walking import Page, list_url
from tests.app.jobs import add, noop
from tests.factories import copies_of, due_schedule, look, make_dead, make_user, run_sql

pytestmark = pytest.mark.django_db

FAILURES = "/admin/django_jobs/deadletter/failures/"
VIEWS = ("view_job", "view_run", "view_deadletter", "view_schedule")
LISTS = (list_url(Job), list_url(DeadLetter), list_url(Run), list_url(Tick), FAILURES)
BUTTON = "Export CSV"
DOCS = (Path(__file__).parents[3] / "docs/admin/lists.md").read_text().partition("## Export")[2]
UNREADABLE = "cannot be shown: Python cannot read this JSON"


def post(page: Page, url: str, kind: str = "jsonl") -> Any:
    return page.client.post(url, {"export": kind})


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.status_code
    return b"".join(response.streaming_content).decode()


def rows(page: Page, url: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines. What JSON does not have fails."""
    lines = text_of(post(page, url)).splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def cells(page: Page, url: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text_of(post(page, url, "csv")), newline="")))


def name_of(response: Any) -> str:
    return str(response["Content-Disposition"].partition("filename=")[2].strip('"'))


def one_of_each() -> None:
    fail(final=True)
    due_schedule()
    look()


@pytest.mark.parametrize("url", LISTS)
def test_each_list_is_exported_in_both_formats(page: Page, url: str) -> None:
    one_of_each()
    assert BUTTON in page.text(url)
    (first, *_), (same, *_) = rows(page, url), cells(page, url)
    assert list(first) == list(same)
    assert [name for name in first if f"`{name}`" not in DOCS] == []
    for name, value in first.items():
        assert same[name] == str(export._cell(value)), name
    assert post(page, url, "csv")["Content-Type"] == "text/csv; charset=utf-8"


def test_the_rows_are_those_of_the_filters_the_search_and_all_pages(page: Page) -> None:
    dead, dead_too = make_dead(add, 1), make_dead(noop)
    ready = copies_of(noop.enqueue(), 60)
    url = list_url(Job)
    assert [row["id"] for row in rows(page, url)] == sorted(
        Job.objects.values_list("pk", flat=True), reverse=True
    )
    assert len(rows(page, f"{url}?status=ready&p=2")) == len(ready) + 1
    assert [row["id"] for row in rows(page, f"{url}?q=type:app.add")] == [dead.pk]
    assert [row["id"] for row in rows(page, f"{url}?status=dead&job_type=app.noop")] == [
        dead_too.pk
    ]
    assert [row["job_id"] for row in rows(page, f"{list_url(Run)}?job={dead.pk}")] == [dead.pk]
    assert [row["job_type"] for row in rows(page, f"{FAILURES}?q=type:add")] == ["app.add"]
    assert rows(page, f"{list_url(Tick)}?outcome=fired") == []


def test_what_is_hidden_or_masked_on_the_pages_is_so_in_the_file(
    page_of: Callable[..., Page],
) -> None:
    one_of_each()
    Job.objects.update(payload={"iban": "DE12", "api_key": PASSWORD}, result={"token": PASSWORD})
    eve = page_of(*VIEWS, "export_job", name="eve")
    full = page_of(*VIEWS, *EVERYTHING, "export_job", "view_job_error", name="otto")
    for url in LISTS:
        hidden, shown = text_of(post(eve, url)), text_of(post(full, url))
        assert SECRET not in hidden
        assert "iban" not in hidden
        assert PASSWORD not in hidden + shown, url
        assert (SECRET in shown) == (url != list_url(Tick)), url
        assert ("BankError" in hidden) == (url != list_url(Tick)), url
        assert ('"iban": "DE12"' in shown) == (url in LISTS[:2]), url


@pytest.mark.parametrize("url", LISTS)
def test_it_needs_a_permission_of_its_own_and_that_of_the_page(
    page_of: Callable[..., Page], url: str
) -> None:
    one_of_each()
    looks, exports = page_of(*VIEWS, name="eve"), page_of("export_job", name="mallory")
    assert BUTTON not in looks.text(url)
    assert [post(one, url).status_code for one in (looks, exports)] == [403, 403]
    assert not LogEntry.objects.exists()


def test_the_history_says_who_exported_what(page_of: Callable[..., Page]) -> None:
    make_dead()
    olga = page_of(*VIEWS, "export_job")
    response = post(olga, f"{list_url(Job)}?status=dead&q=type:app.noop&p=1", "csv")
    entry = LogEntry.objects.get()  # before a byte was read
    assert (str(entry.user), entry.object_repr) == ("olga", "1 jobs")
    assert entry.change_message == "exported as csv: status=dead, q=type:app.noop"
    text_of(response)
    text_of(post(olga, FAILURES))
    entry = LogEntry.objects.latest("pk")
    assert (entry.object_repr, entry.change_message) == ("1 failures", "exported as jsonl: all")


def test_a_file_of_a_part_says_so_in_its_name(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = max(copies_of(noop.enqueue(), 3))
    url = list_url(Job)
    assert name_of(post(page, url)) == "jobs.jsonl"
    monkeypatch.setattr(export, "MOST", 2)
    response = post(page, url, "csv")
    assert name_of(response) == "jobs-only-2.csv"
    assert text_of(response).splitlines()[1].startswith(f"{newest},")
    assert len(text_of(response := post(page, f"{url}?queue=default")).splitlines()) == 2
    assert name_of(response) == "jobs-only-2.jsonl"
    monkeypatch.setattr(export, "MOST", 4)
    monkeypatch.setattr(history_list, "NEWEST", 1)
    response = post(page, f"{url}?queue=default")
    assert name_of(response) == "jobs-only-1.jsonl", "the list searched one row of each part"


def test_a_list_with_more_rows_than_it_counts_is_exported_whole(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_list.CappedPaginator, "cap", 2)
    copies_of(noop.enqueue(), 4)
    for query in ("", "?queue=default"):
        response = post(page, list_url(Job) + query)
        assert (len(text_of(response).splitlines()), name_of(response)) == (5, "jobs.jsonl")


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_is_a_formula(page: Page, start: str) -> None:
    attack = f'{start}HYPERLINK("https://example.org","a")'
    pk = noop.enqueue().pk
    Job.objects.filter(pk=pk).update(last_error=attack, priority=-5, result=attack)
    (cell,) = cells(page, list_url(Job))
    assert (cell["last_error"], cell["result"], cell["priority"]) == (*[f"'{attack}"] * 2, "-5")
    (row,) = rows(page, list_url(Job))
    assert (row["last_error"], row["result"]) == (attack, attack)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (f'{{"a": {"9" * 400}.5, "ü": null}}', {"a": "Infinity", "ü": None}),
        ("9" * 5001, f"{UNREADABLE} (ValueError, 5,001 characters)"),
        (f'"{"x" * 100_001}"', "too large to show: 100,003 characters"),
        ("null", None),
        ('"a\\u2028\\nb"', "a\u2028\nb"),
    ],
)
def test_a_line_is_json_whatever_is_stored(page: Page, stored: str, expected: Any) -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET result = %s, available_at = 'infinity'", [stored])
    text = text_of(post(page, list_url(Job)))
    row = json.loads(text.removesuffix("\n"), parse_constant=pytest.fail)
    assert (row["result"], row["available_at"]) == (expected, "infinity")
    assert text.count("\n") == 1
    assert len(cells(page, list_url(Job))) == 1


def test_rows_are_read_in_parts_by_one_statement_each(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CHUNK", 2)
    one_of_each()
    copies_of(noop.enqueue(), 4)
    for url in LISTS[:4]:
        response = post(page, url)
        with CaptureQueriesContext(
            connection,
        ) as queries:
            parts = list(response.streaming_content)
        assert len(queries) == len(parts), url
    assert len(list(post(page, list_url(Job)).streaming_content)) > 2


def test_what_was_deleted_in_between_is_left_out(page: Page) -> None:
    kept, gone = noop.enqueue().pk, noop.enqueue().pk
    response = post(page, list_url(Job))
    Job.objects.filter(pk=gone).delete()
    assert [json.loads(line)["id"] for line in text_of(response).splitlines()] == [kept]


def test_a_user_with_a_scope_exports_the_rows_of_the_scope(
    page_of: Callable[..., Page], settings: Any
) -> None:
    path = "tests.admin.jobs.test_reveal.only_add"
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": path}
    own = make_dead(add, 1)
    make_dead(noop)
    olga = page_of(*VIEWS, "export_job")
    for url, name in ((LISTS[0], "id"), (LISTS[1], "id"), (LISTS[2], "job_id")):
        assert [row[name] for row in rows(olga, url)] == [own.pk]
    assert [post(olga, url).status_code for url in LISTS[3:]] == [403, 403]


@pytest.mark.parametrize("url", LISTS)
def test_another_format_is_refused(page: Page, url: str) -> None:
    response = post(page, url, "xlsx")
    assert response.status_code == 400
    assert response.content.decode() == "The format of an export is csv / jsonl."
    assert not LogEntry.objects.exists()


def test_under_asgi_the_parts_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "CHUNK", 1)
    noop.enqueue()
    noop.enqueue()
    user = make_user("view_job", "export_job")

    async def parts() -> list[bytes]:
        client = AsyncClient()
        await client.aforce_login(user)
        response: Any = await client.post(list_url(Job), {"export": "jsonl"})
        assert response.is_async
        return [part async for part in response.streaming_content]

    assert [json.loads(part)["job_type"] for part in async_to_sync(parts)()] == ["app.noop"] * 2
