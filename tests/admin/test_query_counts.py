"""No page and no filter of the console takes more than sixteen queries, but the doctor's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobs.models import Job
from tests.browser import scene, shop
from tests.browser.pages import console_pages, filtered_pages

from .walking import Page

pytestmark = pytest.mark.django_db(transaction=True)
MOST = 16
EXAMINES, MOST_EXAMINED = "/doctor/", 28
"""The page that looks for causes: most of the 24 examinations are read in one round trip, and each
of the others ends with one that releases its locks and forgets its error."""


@pytest.fixture(autouse=True)
def _shop() -> Iterator[None]:
    with shop.declared():
        scene.make_scene(history=400)
        yield


def too_many(page: Page, paths: Iterator[str]) -> dict[str, int]:
    """The pages that take more queries, or have none. Each was visited before."""
    found = {}
    for path in paths:
        most = MOST_EXAMINED if path.endswith(EXAMINES) else MOST
        page.client.get(path)
        with CaptureQueriesContext(connection) as queries:
            assert page.client.get(path).status_code in (200, 302), path
        if not 1 < len(queries) <= most:  # with the transaction of the time limit
            found[path] = len(queries)
    return found


def test_each_page_takes_few_queries(page: Page, superuser: object) -> None:
    assert too_many(page, console_pages(superuser)) == {}


@pytest.mark.once
def test_each_filter_takes_few_queries(page: Page) -> None:
    assert too_many(page, filtered_pages(page.client, choices=3)) == {}


@pytest.mark.once
def test_each_search_takes_few_queries(page: Page) -> None:
    jobs = reverse(f"admin:django_jobs_{Job._meta.model_name}_changelist")
    searches = ("customer_id:42", "error:TimeoutError", "type:media.transcode", "key:x", "tag:x")
    assert too_many(page, (f"{jobs}?q={search}" for search in (*searches, "parent:1"))) == {}
    schedules = reverse("admin:django_jobs_schedule_changelist")
    assert too_many(page, iter([f"{schedules}?q=type:zebra"])) == {}
