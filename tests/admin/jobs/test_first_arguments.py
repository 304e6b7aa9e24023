"""The first arguments in the lists of jobs, and the columns that say something."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.admin.jobs.columns import CUT
from django_jobs.domain.run_log import MASK
from django_jobs.models import DeadLetter, Job
from tests.admin.walking import Live, Page, list_url, statements_of
from tests.app.jobs import add, noop
from tests.factories import copies_of, declared, enqueue_and_claim, make_dead, run_sql

pytestmark = pytest.mark.django_db

EVIL = "<script>alert(1)</script>"


def greet(customer: str, id: int = 0, api_key: str = "", note: Any = None) -> None:
    """Takes arguments whose names PostgreSQL orders in another way."""


def columns(page: Page, model: type[Job | DeadLetter] = Job) -> list[str]:
    shown: Any = page.client.get(list_url(model))
    return list(shown.context_data["cl"].list_display)[1:]


def test_they_tell_jobs_apart_in_the_order_of_the_handler_without_secrets(page: Page) -> None:
    with declared(greet, name="app.hail") as job_type:
        job_type.enqueue("Ada", id=7, api_key="k-secret", note=[1, {"deep": EVIL}])
        text = page.read(list_url(Job))
    assert f"customer: Ada, id: 7, api_key: {MASK}" in text
    assert "k-secret" not in text
    assert Live(page.text(list_url(Job))).alarms == []


def test_who_may_not_see_payloads_has_no_such_column(page_of: Callable[..., Page]) -> None:
    add.enqueue(4711)
    assert "arguments_line" in columns(page_of("view_job", "view_job_payload"))
    page = page_of("view_job", name="eve")
    assert "arguments_line" not in columns(page)
    assert "4711" not in page.text(list_url(Job))


def test_columns_that_are_empty_on_the_page_are_left_out(page: Page) -> None:
    noop.enqueue()
    assert columns(page) == ["id", "state", "job_name", "queue_name", "due_in"]
    add.using(priority=3).enqueue(1)
    assert columns(page)[2:5] == ["job_name", "arguments_line", "queue_name"]
    assert "urgency" in columns(page)
    assert "failures_of" not in columns(page)
    make_dead(noop)
    assert {"failures_of", "error_line"} <= set(columns(page))
    assert "failures_of" in columns(page, DeadLetter)


def test_ended_jobs_have_them_too_and_broken_or_large_ones_do_no_harm(page: Page) -> None:
    add.enqueue(4711)
    run_sql("UPDATE django_jobs_job SET status = 'succeeded', finished_at = now()")
    assert "first: 4711" in page.read(list_url(Job))
    for payload in ("[1]", "null", '{"first": ' + "9" * 5001 + "}", '{"a": {"b": ' * 200 + "1"
                    + "}}" * 200):  # fmt: skip
        run_sql("UPDATE django_jobs_job SET payload = %s::jsonb", [payload])
        assert page.client.get(list_url(Job)).status_code == 200
    large = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 500) AS n"
    run_sql(f"UPDATE django_jobs_job SET payload = jsonb_build_object('a', ({large}))")
    row = re.search(r'class="field-arguments_line">(.*?)</td>', page.text(list_url(Job)))
    assert row is not None
    assert re.sub("<[^>]+>", "", row[1]) == CUT
    add.enqueue("x" * 500)
    assert f"first: {'x' * 39}…" in page.read(list_url(Job))


def test_they_take_one_statement_for_a_page(page: Page) -> None:
    copies_of(add.enqueue(1), 20)
    enqueue_and_claim(noop)
    assert sum("pg_column_size" in sql for sql in statements_of(page, list_url(Job))) == 1
