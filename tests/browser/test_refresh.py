"""A page that shows what runs now changes by itself, where it is looked at."""

from __future__ import annotations

import pytest
from django.db.models.functions import Now
from django.urls import reverse

from django_jobs.models import BulkOperation, Job, Queue, Worker
from tests.admin.walking import change_url, list_url

from .visitor import Visitor

playwright = pytest.importorskip("playwright.sync_api", reason="the extra test-browser")


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
    with visitor.at((300, 800)) as page:  # a phone has room for all of it
        visitor.visit(reverse("admin:django_jobs_worker_deploys"))
        commands = page.locator(".jobs-scroll").last
        assert commands.evaluate("(one) => { one.scrollLeft = 30; return one.scrollLeft; }") == 30
        page.locator(".jobs-commands th").last.evaluate("(one) => one.append('old')")
        playwright.expect(commands).not_to_contain_text("old")
        assert commands.evaluate("(one) => one.scrollLeft") == 30


def test_a_list_changes_but_for_what_is_selected(visitor: Visitor) -> None:
    visitor.visit(list_url(Queue))
    page = visitor.page
    queue = Queue.objects.earliest("pk")
    box = page.locator(f"input.action-select[value='{queue.pk}']")
    table, counter = page.locator("#result_list"), page.locator(".action-counter")

    def pause(reason: str) -> None:
        Queue.objects.filter(pk=queue.pk).update(paused_at=Now(), paused_reason=reason)

    pause("first")
    playwright.expect(table).to_contain_text("first")
    # The new rows are selected as the old ones were, and all of them by one box.
    page.locator("#action-toggle").check()
    count = page.locator("input.action-select").count()
    playwright.expect(page.locator("input.action-select:checked")).to_have_count(count)
    playwright.expect(counter).to_contain_text(f"{count} of {count} selected")
    page.locator("#action-toggle").uncheck()
    box.check()
    playwright.expect(counter).to_contain_text(f"1 of {count} selected")
    page.locator("h1").first.click()
    page.evaluate("document.activeElement.blur()")
    pause("second")
    with page.expect_request(lambda one: "x-requested-with" in one.headers, timeout=30_000) as one:
        box.uncheck()
        page.evaluate("document.activeElement.blur()")
    one.value.response()
    playwright.expect(table).to_contain_text("second")


def test_a_selected_row_text_or_action_keeps_the_list_as_it_is(visitor: Visitor) -> None:
    page = visitor.page
    page.clock.install()
    selections = {
        "box": "() => document.querySelector('input.action-select').click()",
        "text": "() => getSelection().selectAllChildren(document.querySelector('#result_list'))",
        "action": "() => { document.querySelector('select[name=action]').selectedIndex = 1; }",
        "focus": "() => document.querySelector('#result_list a').focus()",
    }
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    for name, select in selections.items():
        visitor.visit(list_url(Job))
        asked.clear()
        page.clock.run_for(6_000)
        assert asked
        page.wait_for_load_state("networkidle")
        asked.clear()
        page.evaluate(select)
        page.locator("#result_list th").first.evaluate("(one) => one.append('old')")
        page.clock.run_for(20_000)
        assert (name, asked) == (name, [])
        playwright.expect(page.locator("#result_list th").first).to_contain_text("old")
