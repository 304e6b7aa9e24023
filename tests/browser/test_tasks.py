"""What an operator does most, from the admin's first page, in few clicks."""

from __future__ import annotations

import re

from pytest_django import Settings

from django_jobs.models import Job, Queue
from tests.receivers import webhook

from .visitor import Visitor, index


def begin(visitor: Visitor, model: str) -> None:
    """The link of the first page."""
    visitor.visit(index())
    visitor.click(visitor.page.locator(f"#content a[href$='/django_jobs/{model}/']").first)


def press(visitor: Visitor, name: str) -> None:
    visitor.click(visitor.page.get_by_role("button", name=name).first)


def test_all_dead_jobs_of_one_kind_of_failure_are_replayed_in_five_clicks(
    visitor: Visitor,
) -> None:
    failed = Job.objects.dead().filter(last_error__startswith="TimeoutError")
    ids = list(failed.values_list("pk", flat=True))
    assert len(ids) == 18
    others = Job.objects.dead().exclude(pk__in=ids).count()
    begin(visitor, "deadletter")
    visitor.click(visitor.page.get_by_role("link", name="Failures").last)
    row = visitor.page.get_by_role("row", name="TimeoutError")
    visitor.click(row.get_by_role("button", name="Replay"))
    press(visitor, "Replay 18 jobs")
    visitor.page.locator(".messagelist").wait_for()
    assert not Job.objects.dead().filter(pk__in=ids).exists()
    assert Job.objects.dead().count() == others > 0
    assert visitor.clicks <= 5


def test_all_jobs_of_a_customer_are_found_in_two_clicks(visitor: Visitor) -> None:
    begin(visitor, "job")
    visitor.page.locator("#searchbar").fill("customer_id:42")
    press(visitor, "Search")
    rows = visitor.page.locator("#result_list tbody tr")
    assert rows.count() == Job.objects.filter(payload__customer_id=42).count() > 1
    assert visitor.clicks <= 2


def test_why_a_job_does_not_run_is_two_clicks_away(visitor: Visitor, found: dict[str, int]) -> None:
    Job.objects.filter(pk__gt=found["limited"]).exclude(status="running").delete()
    begin(visitor, "job")
    visitor.click(visitor.page.get_by_role("link", name=str(found["limited"]), exact=True))
    why = visitor.page.locator("section", has_text="Why is it not running?").inner_text()
    assert "3 of 3" in why
    assert visitor.clicks <= 2


def test_a_queue_is_paused_in_three_clicks(visitor: Visitor) -> None:
    begin(visitor, "queue")
    press(visitor, "Pause emails")
    visitor.click(visitor.page.locator(".submit-row .default"))
    visitor.page.locator(".messagelist").wait_for()
    assert Queue.objects.get(name="emails").paused
    assert visitor.clicks <= 3


def test_all_jobs_that_match_are_cancelled_in_six_clicks(visitor: Visitor) -> None:
    matching = Job.objects.filter(queue="emails", status="scheduled")
    assert matching.count() == 60
    begin(visitor, "job")
    visitor.choose(visitor.page.get_by_label("Status"), "scheduled")
    visitor.choose(visitor.page.get_by_label("Queue"), "emails")
    press(visitor, "Search")
    press(visitor, "Cancel all 60")
    visitor.click(visitor.page.locator(".submit-row .default"))
    visitor.page.locator(".messagelist").wait_for()
    assert not matching.exists()
    assert visitor.clicks <= 6


def test_when_a_queue_will_be_empty_is_one_click_away(visitor: Visitor) -> None:
    visitor.visit(index())
    visitor.click(visitor.page.get_by_role("link", name="Overview").last)
    table = visitor.page.locator("table", has=visitor.page.get_by_text("Empty in"))
    place = table.get_by_role("columnheader").all_text_contents().index("Empty in")
    cells = {
        row.locator("th").inner_text(): row.locator("th, td").nth(place).inner_text()
        for row in table.locator("tbody tr").all()
    }
    assert re.fullmatch(r"\d+\s(s|min|h)( \d+\s(s|min))?|growing", cells["emails"])
    assert re.fullmatch(r"\d+\s(s|min|h)( \d+\s(s|min))?", cells["media"])
    assert visitor.clicks == 1


def test_a_test_of_an_alert_is_three_clicks_away(visitor: Visitor, settings: Settings) -> None:
    with webhook() as receiver:
        url = f"http://127.0.0.1:{receiver.port}/secret"
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ALERTS": {"ops": {"to": url}}}
        begin(visitor, "worker")
        visitor.click(visitor.page.get_by_role("link", name="Doctor"))
        visitor.click(visitor.page.get_by_role("button", name="Send a test of ops"))
        told = visitor.page.locator(".messagelist .success").inner_text()
    assert told == "A test of “ops” was sent."
    assert receiver.received == [{"rule": "ops", "test": True, "situations": []}]
    assert visitor.clicks == 3
