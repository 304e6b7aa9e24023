"""The lists: whole with long names, one line a row, with the status on a telephone. Whether one is
cut without them, the walk through all pages sees."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.db.models.functions import Now
from django.urls import reverse
from pytest_django import Settings

from django_jobs import registry
from django_jobs.models import DeadLetter, Job, Queue, Resource, Run, Schedule, Worker

from .visitor import NARROW, WIDE, WIDER, Visitor

CUT = """() => [...document.querySelectorAll(".results")]
    .map((one) => one.scrollWidth - one.clientWidth)[0] ?? 0"""
HEIGHTS = """() => [...document.querySelectorAll("#result_list tbody tr")].map((one) => {
    const reason = one.querySelector(".jobs-state-reason");
    const below = reason ? reason.getBoundingClientRect().height : 0;
    return Math.round(one.getBoundingClientRect().height - below);
})"""
BROKEN = """() => [...document.querySelectorAll("#result_list .field-job_name > span")]
    .filter((one) => {
        const line = 2 * parseFloat(getComputedStyle(one).fontSize);
        return one.getBoundingClientRect().height > line;
    })
    .map((one) => one.title)"""
TALLEST = 60
"""Pixels of a row: two lines, without those of the reason of a pause. Rows of jobs have one."""


def lists() -> list[str]:
    """The addresses of all lists."""
    return [
        reverse(f"admin:django_jobs_{model._meta.model_name}_changelist")
        for model in admin.site._registry
        if model._meta.app_label == "django_jobs"
    ]


LONG = "a-queue-whose-name-a-team-of-a-large-company-has-taken-from-its-directory-of-departments"
CAUSE = "T" * 100 + ": " + "the_same_word_without_a_space_in_it_" * 20


def test_no_list_is_cut_by_long_names_and_each_shows_its_status_on_a_telephone(
    visitor: Visitor,
) -> None:
    Queue.objects.create(name=LONG)
    receipt = registry.get("mail.send_receipt")
    receipt.using(
        queue=LONG, idempotency_key=f"receipt-{'0' * 120}", tenant="t" * 100, tags=["u" * 100]
    ).enqueue(customer_id=1, order_id=1)
    dead = Job.objects.dead().latest("pk")
    Job.objects.filter(pk=dead.pk).update(last_error=CAUSE, queue=LONG)
    cut, tall, ends = {}, {}, {}
    for path in lists():
        visitor.visit(path)
        if missing := visitor.page.evaluate(CUT):
            cut[path] = missing
        tall[path] = max(visitor.page.evaluate(HEIGHTS), default=0)
        with visitor.at(NARROW) as page:
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > NARROW[0]:
                cut[path] = width
            badge = page.locator("#result_list tbody tr .jobs-badge").first
            if badge.count():
                box = badge.bounding_box()
                assert box is not None
                ends[path] = box["x"] + box["width"]
    assert cut == {}
    assert {path: height for path, height in tall.items() if height > TALLEST} == {}
    assert len(ends) > 8
    assert {path: end for path, end in ends.items() if end > NARROW[0]} == {}


REASON = """the payment provider answers every third call with 503 since 14:20; wait for incident
INC-20931 to be closed, and ask Grace before you resume"""
PAUSED = {"paused_at": Now(), "paused_reason": REASON}
HIDDEN = """(reason) => [reason.scrollWidth - reason.clientWidth,
    Math.max(0, reason.getBoundingClientRect().right - window.innerWidth)]"""


@pytest.mark.parametrize("model", [Job, DeadLetter, Run])
def test_names_of_job_types_are_one_line_where_there_is_room(visitor: Visitor, model: Any) -> None:
    visitor.visit(reverse(f"admin:django_jobs_{model._meta.model_name}_changelist"))
    assert visitor.page.locator("#result_list .field-job_name").count() > 5
    assert visitor.page.evaluate(BROKEN) == []


@pytest.mark.parametrize("model", [Queue, Resource, Schedule])
def test_the_reason_of_a_pause_is_read_whole(visitor: Visitor, model: Any) -> None:
    model.objects.update(**PAUSED)
    visitor.visit(reverse(f"admin:django_jobs_{model._meta.model_name}_changelist"))
    for size in (WIDE, NARROW):
        with visitor.at(size) as page:
            shown = page.locator(".jobs-state-reason").first
            assert " ".join(shown.inner_text().split()) == " ".join(REASON.split())
            assert shown.evaluate(HIDDEN) == [0, 0]


SIGHTS = (
    ("job", "?status=dead", (".field-state .jobs-badge", ".field-error_line")),
    ("deadletter", "", (".field-why",)),
    ("queue", "", (".field-state .jobs-badge", "button[aria-label^=Pause]")),
)
"""What a person on a telephone looks for in a list."""
IN_SIGHT = """(all) => all.map((one) => one.getBoundingClientRect())
    .every((box) => box.width > 40 && box.left >= 0 && box.right <= innerWidth)"""


def test_errors_and_pause_are_in_sight_on_a_telephone(visitor: Visitor) -> None:
    emails = Queue.objects.get(name="emails").pk
    looks = [(reverse("admin:django_jobs_queue_change", args=[emails]), ["button >> text=Pause"])]
    for name, chosen, parts in SIGHTS:
        path = f"{reverse(f'admin:django_jobs_{name}_changelist')}{chosen}"
        looks.append((path, [f"#result_list tbody {part}" for part in parts]))
    hidden = []
    for path, places in looks:
        visitor.visit(path)
        with visitor.at(NARROW) as page:
            for place in places:
                rows = page.locator(place)
                assert rows.count(), (path, place)
                if not rows.evaluate_all(IN_SIGHT):
                    hidden.append((path, place))
    assert hidden == []


TYPE = "accounting_of_the_group.reconciliation.close_the_month_of_a_subsidiary"
MISSING = "(one) => one.scrollWidth - one.clientWidth"


@pytest.mark.parametrize("language", ["en", "de"])
def test_duration_and_stop_of_what_runs_now_are_in_sight(
    visitor: Visitor, settings: Settings, language: str
) -> None:
    settings.LANGUAGE_CODE = language
    running = Job.objects.filter(status="running", worker__name="web-1")
    newest = running.latest("pk").pk
    running.filter(pk=newest).update(
        job_type=TYPE, tags=["the-customer-of-the-year"], cancel_requested_at=Now()
    )
    started = [[pk, 47_580.0, None] for pk in running.values_list("pk", flat=True)]
    Worker.objects.filter(name="web-1").update(started_jobs=started)
    visitor.visit(f"{reverse('admin:django_jobs_job_changelist')}?status=running")
    row = visitor.page.locator(f"#result_list tr:has(input[value='{newest}'])")
    for size in (WIDE, WIDER, NARROW):
        with visitor.at(size) as page:
            assert page.evaluate("document.documentElement.scrollWidth") == size[0]
            assert page.evaluate(CUT) == 0, size
            assert re.match(r"13\sh\s1\d\smin", row.locator(".field-runs_for").inner_text())
            assert row.get_by_role("button").is_visible()
            for part in ("runs_for", "stop_button", *(["job_name"] if size == NARROW else [])):
                assert row.locator(f".field-{part}").evaluate(MISSING) == 0, (size, part)
