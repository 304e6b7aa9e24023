"""The links of a project on the page of a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.api.generations import PARENT
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.admin.walking import Live, Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import declared, run_sql

pytestmark = pytest.mark.django_db

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def handler(**arguments: Any) -> None: ...


@pytest.fixture
def job() -> Any:
    with declared(handler, name="app.linked") as job_type:
        chosen = job_type.using(headers={"traceparent": TRACE}, tags="vip")
        yield chosen.enqueue(order={"id": 'a/"b'}, api_token="hush", other=None)


def use(settings: Any, links: Any) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "LINKS": links}


def links(*urls: str) -> list[dict[str, str]]:
    return [{"label": f"<{number}>", "url": url} for number, url in enumerate(urls)]


def test_a_link_has_the_values_of_the_job(page: Page, job: Job, settings: Any) -> None:
    use(settings, links("https://logs.example/?q={job_id}&t={trace_id}", "/o/{payload.order.id}/"))
    text = page.text(change_url(Job, job.pk))
    trace = TRACE.split("-")[1]
    assert f'<a href="https://logs.example/?q={job.pk}&amp;t={trace}">&lt;0&gt;</a>' in text
    assert '<a href="/o/a%2F%22b/">&lt;1&gt;</a>' in text
    assert Live(text).alarms == []


def test_a_link_without_its_value_is_left_out(page: Page, job: Job, settings: Any) -> None:
    use(settings, links("/{payload.other}", "/{payload.order}", "/{tenant}", "/{payload.none.at}"))
    assert 'aria-label="Links"' not in page.text(change_url(Job, job.pk))


def test_masked_and_hidden_values_are_in_no_link(
    page: Page, page_of: Callable[..., Page], job: Job, settings: Any
) -> None:
    use(settings, links("/{payload.api_token}", "/order/{payload.order.id}", "/job/{job_id}"))
    text = page.text(change_url(Job, job.pk))
    assert "hush" not in text
    assert "/order/a%2F" in text
    text = page_of("view_job").text(change_url(Job, job.pk))
    assert "/order/" not in text
    assert f'href="/job/{job.pk}"' in text


def by_function(job: Job) -> Any:
    yield "wiki", f"https://wiki.example/{job.job_type}"
    yield "script", "javascript:alert(1)"
    yield "elsewhere", "//evil.example"


def by_content(job: Job) -> Any:
    found = job.payload, job.headers, getattr(job.result, "keys", tuple)(), job.signals
    yield f"{json.dumps(found[:2])} {found[2:]}", "/"


def test_a_function_gets_of_a_job_what_the_user_may_see(
    page: Page, page_of: Callable[..., Page], job: Job, settings: Any
) -> None:
    use(settings, f"{__name__}.by_content")
    run_sql('UPDATE django_jobs_job SET headers = headers || \'{"note": "for few"}\'')
    full, other = (
        page.read(change_url(Job, job.pk)),
        page_of("view_job").read(change_url(Job, job.pk)),
    )
    assert "hush" not in full + other
    assert '"order": {"id": "a/' in full
    assert f'{{}}, {{"traceparent": "{TRACE}"}}] ((), None)' in other
    assert "for few" in full
    assert "for few" not in other
    assert Job.objects.get().payload["api_token"] == "hush"


def broken(job: Job) -> Any:
    raise RuntimeError("no wiki")


def test_a_function_returns_links_and_only_safe_ones_are_shown(
    page: Page, job: Job, settings: Any
) -> None:
    use(settings, f"{__name__}.by_function")
    text = page.text(change_url(Job, job.pk))
    assert '<a href="https://wiki.example/app.linked">wiki</a>' in text
    assert "script</a>" not in text
    assert "evil.example" not in text


def test_a_function_that_fails_leaves_the_page_as_it_is(
    page: Page, job: Job, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    use(settings, f"{__name__}.broken")
    assert "app.linked" in page.text(change_url(Job, job.pk))
    assert 'DJANGO_JOBS["LINKS"] failed' in caplog.text


def test_no_link_is_shown_without_the_setting(page: Page) -> None:
    assert 'aria-label="Links"' not in page.text(change_url(Job, noop.enqueue().pk))


def test_the_pages_of_parent_and_child_link_each_other(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parent() -> None:
        noop.enqueue()
        noop.using(delay=3600).enqueue()

    with declared(parent, name="app.parent") as job_type:
        made = job_type.enqueue()
        other = job_type.using(delay=3600).enqueue()
        run_jobs()
        ended, waits = Job.objects.filter(job_type="app.noop").order_by("pk")
        for child in (ended, waits):
            assert f'href="{change_url(Job, made.pk)}">Its parent' in page.text(
                change_url(Job, child.pk)
            )
        text = page.text(change_url(Job, made.pk))
        assert f'<a href="{list_url(Job)}?q=parent%3A{made.pk}">All jobs that its' in text
        monkeypatch.setattr("django_jobs.admin.job_sections.links.MOST_CHILDREN", 1)
        newest = page.text(change_url(Job, made.pk))
        for child, is_newest in ((ended, False), (waits, True)):
            link = f'href="{change_url(Job, child.pk)}">app.noop #{child.pk}'
            assert link in text
            assert (link in newest) is is_newest
        for alone in (made, other):
            assert "Its parent" not in page.text(change_url(Job, alone.pk))
        assert "Enqueued by its handler" not in page.text(change_url(Job, other.pk))


def test_of_a_parent_that_is_deleted_the_number_is_left(page: Page) -> None:
    job = noop.using(headers={PARENT: 2**62}).enqueue()
    text = page.text(change_url(Job, job.pk))
    assert f"<li>Its parent, whose handler enqueued it: #{2**62}</li>" in text
