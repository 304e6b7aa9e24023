"""The page of a job shows what earlier edits of it changed."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable

import pytest

from django_jobs.api.editing import edit_job
from django_jobs.domain.run_log import MASK
from django_jobs.models import Job
from tests.admin.walking import Live, Page, change_url
from tests.app.jobs import add
from tests.factories import declared, make_dead, run_sql

pytestmark = pytest.mark.django_db
EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{}'


def section_of(page: Page, pk: int) -> str:
    """The section of the edits; empty if there is none."""
    text = page.text(change_url(Job, pk)).partition('aria-labelledby="jobs-edits"')[2]
    assert not Live(text).alarms
    return text.partition("</section>")[0]


def rows_of(section: str) -> list[tuple[str, ...]]:
    """What was changed, from which value and to which."""
    row = r'scope="row">(.*?)</th><td><del>(.*?)</del></td><td><ins>(.*?)</ins>'
    return [tuple(map(html.unescape, found)) for found in re.findall(row, section, re.DOTALL)]


def test_each_edit_has_the_values_before_and_after_the_latest_first(page: Page) -> None:
    job = make_dead(add, 1, 5)
    assert section_of(page, job.pk) == ""
    edit_job(job.pk, payload={"first": 2, "second": 5}, by="ada", reason="wrong number")
    edit_job(job.pk, payload={"first": 3}, queue="bulk", by="bob", reason="wrong again")
    edit_job(job.pk, priority=7, by="eve", reason="urgent")
    section = section_of(page, job.pk)
    assert rows_of(section) == [
        ("Priority", "0", "7"),
        ("first", "2", "3"),
        ("second", "5", "-"),
        ("Queue", "default", "bulk"),
        ("first", "1", "2"),
    ]
    assert section.index("Edited by eve") < section.index("Edited by bob")
    assert ": wrong number" in section
    run_sql("UPDATE django_jobs_job SET headers = headers || '{\"trace\": 7}'")
    headers = page.read(change_url(Job, job.pk)).partition("Headers")[2].partition("</pre>")[0]
    assert "trace" in headers
    assert "wrong again" not in headers, "the section of the edits has them"


def test_a_due_time_is_shown_as_other_times_are(page: Page) -> None:
    job = add.using(delay=60).enqueue(1)
    run_sql("UPDATE django_jobs_job SET available_at = '2099-05-06 07:08:09Z'")
    job.edit(run_at=job.created_at)
    ((name, before, _after),) = rows_of(section_of(page, job.pk))
    assert (name, ">May 6, 2099, 07:08:09\xa0UTC</time>" in before) == ("Due", True)


def test_secrets_are_masked_and_markup_is_text(page: Page) -> None:
    def pay(token: str, note: str = "") -> None: ...

    with declared(pay, name="app.pay_by_token") as job_type:
        job = job_type.enqueue("old-s3cr3t", EVIL)
        edit_job(job.pk, payload={"token": "new-s3cr3t", "note": "plain"}, by=EVIL, reason=EVIL)
        section = section_of(page, job.pk)
    assert "s3cr3t" not in page.text(change_url(Job, job.pk))
    assert rows_of(section) == [
        ("note", json.dumps(EVIL), '"plain"'),
        ("token", f'"{MASK}"', f'"{MASK}"'),
    ]


def test_arguments_need_their_permission(page_of: Callable[..., Page]) -> None:
    job = add.enqueue(7781)
    edit_job(job.pk, payload={"first": 7782}, queue="bulk")
    text = section_of(page_of("view_job"), job.pk)
    assert "778" not in text
    (arguments, queue) = rows_of(text)
    assert "requires the permission" in arguments[1]
    assert queue == ("Queue", "default", "bulk")


def test_what_was_too_large_to_keep_is_said(page: Page) -> None:
    job = add.enqueue("x" * 20_000)
    edit_job(job.pk, payload={"first": 1})
    edit_job(job.pk, payload={"first": 2})
    assert rows_of(section_of(page, job.pk)) == [
        ("first", "1", "2"),
        ("Arguments", "not kept: they were too large", "-"),
    ]


@pytest.mark.parametrize(
    "edits",
    [
        7,
        [7, {}, {"before": 7}],
        [{"before": {"payload": [1], "queue": [EVIL], "due": EVIL}, "after": 7}],
        [{"before": {"due": "2031-99-99", "priority": None}, "by": {}, "at": 7}],
    ],
)
def test_odd_headers_break_nothing(page: Page, edits: object) -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET headers = %s", [json.dumps({"edits": edits})])
    section_of(page, job.pk)
