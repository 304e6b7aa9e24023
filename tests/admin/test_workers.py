"""The list of workers: the version of the code, the jobs in hand, and one word for the state."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_jobs.models import Job, Worker
from tests.admin.walking import Page, change_url, list_url
from tests.app.jobs import noop
from tests.factories import claim_ready, register_worker

pytestmark = pytest.mark.django_db


def cells(page: Page, column: str) -> list[str]:
    return re.findall(rf'field-{column}">(.*?)</td>', page.text(list_url(Worker)), re.DOTALL)


def test_the_list_has_the_version_of_the_code(page: Page) -> None:
    register_worker("old")
    Worker.objects.update(code_version="release-2026-11-25")
    register_worker("unnamed")
    assert cells(page, "version_line") == [
        "-",
        '<span title="release-2026-11-25">release-2026-11-25</span>',
    ]


def test_the_jobs_in_hand_are_a_link_to_them(page: Page, page_of: Callable[..., Page]) -> None:
    idle, worker = register_worker("idle"), register_worker("web-1", threads=2)
    noop.enqueue_many([{}] * 4)
    held = claim_ready(worker, limit=3)
    link = f"{list_url(Job)}?worker={worker}"
    assert cells(page, "busy") == [f'<a href="{link}">2 / 2</a>', "0 / 1"]
    listed = page.text(link)
    assert "3 jobs" in listed
    for job in held:
        assert change_url(Job, job.id) in listed
    assert idle != worker
    viewer = page_of("view_worker")
    assert cells(viewer, "busy") == ["2 / 2", "0 / 1"]
    assert list_url(Job) not in viewer.text(list_url(Worker))


def test_the_state_of_a_worker_is_one_badge(page: Page) -> None:
    register_worker("gone", lease=-1)
    Worker.objects.update(drain_requested_at="2026-01-01T00:00Z")
    asked = register_worker("asked")
    Worker.objects.filter(pk=asked).update(drain_requested_at="2026-01-01T00:00Z")
    register_worker("busy")
    shown = [re.findall(r"</span>([^<]+)</span>", cell) for cell in cells(page, "state")]
    assert shown == [["running"], ["asked to drain"], ["lease expired"]]


def test_the_end_of_a_lease_is_on_the_page_of_the_worker_alone(page: Page) -> None:
    worker = register_worker("web-1")
    assert "Lease ends" not in page.read(list_url(Worker))
    assert "Lease ends" in page.read(change_url(Worker, worker))
