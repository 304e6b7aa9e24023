"""A page that shows what runs now changes by itself, where it is looked at."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now
from django.urls import reverse

from django_jobs.models import BulkOperation, Worker
from tests.admin.walking import change_url

from .visitor import NARROW, Visitor

playwright = pytest.importorskip("playwright.sync_api", reason="the extra test-browser")
pytestmark = pytest.mark.timeout(120)


def test_the_page_of_a_worker_shows_its_end_and_then_stands_still(visitor: Visitor) -> None:
    worker = Worker.objects.filter(status="running").earliest("pk")
    visitor.visit(change_url(Worker, worker.pk))
    region, bar = (visitor.page.locator(f"[data-{one}]") for one in ("live-region", "refresh"))
    playwright.expect(region).to_contain_text("What it does")
    playwright.expect(bar).to_be_visible()
    Worker.objects.filter(pk=worker.pk).update(status="stopped", stop_reason="drained by ada")
    playwright.expect(region).to_contain_text("drained by ada")
    playwright.expect(bar).to_be_hidden()


def test_the_buttons_of_an_operation_follow_its_end(visitor: Visitor) -> None:
    operation = BulkOperation.objects.get()
    visitor.visit(change_url(BulkOperation, operation.pk))
    tools = visitor.page.locator(".object-tools")
    playwright.expect(tools).to_contain_text("Stop")
    BulkOperation.objects.update(status="stopped", why="stopped by ada", finished_at=Now())
    playwright.expect(tools).not_to_contain_text("Stop")
    playwright.expect(tools).to_contain_text("Continue")


def test_what_was_scrolled_stays_where_it_is(visitor: Visitor) -> None:
    with visitor.at(NARROW) as page:
        visitor.visit(reverse("admin:django_jobs_worker_deploys"))
        commands = page.locator(".jobs-scroll").last
        assert commands.evaluate("(one) => { one.scrollLeft = 30; return one.scrollLeft; }") == 30
        page.locator(".jobs-commands th").last.evaluate("(one) => one.append('old')")
        playwright.expect(commands).not_to_contain_text("old")
        assert commands.evaluate("(one) => one.scrollLeft") == 30
