"""Each page of the console: no error, nothing against the policy, readable by all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlencode

import pytest
from django.urls import reverse

from django_jobs.models import Job, Queue

from .pages import console_pages
from .visitor import NARROW, WIDE, WIDER, Visitor

WIDER_THAN_ITS_ELEMENTS = """() => [...document.querySelectorAll("#main *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1
        && !one.closest("[class*='results'], nav, .jobs-scroll, .jobs-graph"))
    .slice(0, 3).map((one) => `${one.tagName}.${one.className}`).join(", ")"""
CUT_TABLES = """() => [...document.querySelectorAll(".results, .jobs-scroll")]
    .filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => `${one.querySelector("table")?.className} lacks `
        + `${one.scrollWidth - one.clientWidth} px`)"""
NEAR_NUMBERS = """() => [...document.querySelectorAll("#main td + td, #main th + td")]
    .filter((one) => {
        const before = one.previousElementSibling;
        const [left, right] = [before, one].map((cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            return text.getBoundingClientRect();
        });
        return left.width && right.width && right.left - left.right < 11
            && getComputedStyle(before).textAlign === "end"
            && !["end", "center"].includes(getComputedStyle(one).textAlign);
    }).map((one) => `${one.previousElementSibling.textContent}, ${one.textContent}`).slice(0, 3)"""
"""Numbers stand right, and what follows begins left: both read as one value."""

TABS_OUT_OF_SIGHT = """() => [...document.querySelectorAll(".jobs-tabs a")]
    .filter((one) => {
        const list = one.closest("ul").getBoundingClientRect();
        const { left, right, top, bottom } = one.getBoundingClientRect();
        return left < list.left || right > list.right || top < list.top || bottom > list.bottom;
    }).map((one) => one.textContent)"""

OF_A_WIDTH = "scrollable-region-focusable", "target-size"
"""What axe finds in one width and not in another."""


def look_at(visitor: Visitor, name: str) -> Iterator[str]:
    """What is wrong with the page: in both themes, wide and narrow."""
    for one in visitor.findings():
        yield f"{name}: {one}"
    for size in (WIDE, WIDER):
        with visitor.at(size) as page:
            for one in page.evaluate(CUT_TABLES):
                yield f"{name} at {size[0]}: {one}"
    with visitor.at(WIDE, dark=True):
        for one in visitor.findings("color-contrast"):
            yield f"{name}, dark: {one}"
    with visitor.at(NARROW) as page:
        for one in visitor.findings(*OF_A_WIDTH):
            yield f"{name} in a narrow window: {one}"
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > NARROW[0]:
            wide = page.evaluate(WIDER_THAN_ITS_ELEMENTS)
            yield f"{name} is {width} px wide in a narrow window: {wide}"


PARTS = 4
"""So that the walk is spread over processes, and none takes near its limit on a slow machine."""


@pytest.mark.parametrize("part", range(PARTS))
def test_all_pages_are_shown_in_both_themes_without_a_finding(visitor: Visitor, part: int) -> None:
    findings = []
    walked = set()
    for path in islice(console_pages(visitor.user), part, None, PARTS):
        answer = visitor.visit(path)
        if answer.status != 200 or "text/html" not in answer.headers["content-type"]:
            findings.append(f"{path}: {answer.status} {answer.headers.get('content-type')}")
            continue
        walked.add(path)
        findings += look_at(visitor, path)
    assert "\n".join(findings) == ""
    assert len(walked) * PARTS > 35


def test_pages_of_a_choice_are_shown_without_a_finding(visitor: Visitor) -> None:
    jobs, dead = (reverse(f"admin:django_jobs_{name}_changelist") for name in ("job", "deadletter"))
    group = Job.objects.dead().filter(last_error__startswith="KeyError").latest("pk")
    failure = urlencode({"type": group.job_type, "fingerprint": group.fingerprint})
    findings: list[str] = []
    for path in (
        f"{reverse('admin:django_jobs_failure_group')}?{failure}",
        f"{reverse('admin:django_jobs_job_enqueue')}?job_type=mail.send_digest",
        f"{reverse('admin:django_jobs_schedule_add')}?job_type=mail.send_digest",
        reverse("admin:django_jobs_queue_history", args=[Queue.objects.latest("pk").pk]),
        f"{jobs}?q=tag:none",
        f"{jobs}?q=from:yesterday",
        f"{jobs}?status=scheduled&queue=emails&worker=web-1",
        f"{dead}?job_type=crm.push_contact",
    ):
        assert visitor.visit(path).status == 200, path
        findings += look_at(visitor, path)
    assert "\n".join(findings) == ""


def test_questions_are_shown_without_a_finding(visitor: Visitor) -> None:
    findings: list[str] = []
    for name, chosen, button in (
        ("job_changelist", "?status=scheduled", "Cancel all"),
        ("failures", "", "Replay"),
        ("queue_changelist", "", "Pause emails"),
    ):
        visitor.visit(reverse(f"admin:django_jobs_{name}") + chosen)
        visitor.click(visitor.page.get_by_role("button", name=button).first)
        visitor.page.locator(".submit-row .default").wait_for()
        findings += look_at(visitor, f"the question of {button!r}")
    assert "\n".join(findings) == ""


def test_all_tabs_are_in_sight_in_a_narrow_window(visitor: Visitor, settings: Any) -> None:
    for settings.LANGUAGE_CODE in ("en", "de"):
        for name in ("worker", "bulkoperation", "backfill"):
            visitor.visit(reverse(f"admin:django_jobs_{name}_changelist"))
            with visitor.at(NARROW) as page:
                assert page.evaluate(TABS_OUT_OF_SIGHT) == [], (name, settings.LANGUAGE_CODE)
                assert page.locator(".jobs-tabs ul:first-child li").count() == 8, name


def test_german_pages_fit_although_their_words_are_longer(visitor: Visitor, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    findings = []
    for path in console_pages(visitor.user):
        visitor.visit(path)
        with visitor.at(WIDE) as page:
            findings += [f"{path}: {one}" for one in page.evaluate(CUT_TABLES)]
            findings += [f"{path}: {one}" for one in page.evaluate(NEAR_NUMBERS)]
        with visitor.at(NARROW) as page:
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > NARROW[0]:
                findings.append(f"{path} is {width} px wide in a narrow window")
    assert "\n".join(findings) == ""
    assert visitor.page.locator("html").get_attribute("lang") == "de"


def test_what_the_policy_forbids_is_noticed(visitor: Visitor) -> None:
    visitor.visit(reverse("admin:index"))
    visitor.page.evaluate(
        "() => { const script = document.createElement('script');"
        "script.textContent = 'window.ran = true'; document.body.append(script); }"
    )
    assert visitor.page.evaluate("() => window.ran") is None
    (problem,) = visitor.problems
    assert "Content Security Policy" in problem
    visitor.problems.clear()


def test_what_axe_forbids_is_noticed(visitor: Visitor) -> None:
    visitor.visit(reverse("admin:index"))
    visitor.page.evaluate("() => { document.body.append(document.createElement('select')); }")
    (finding,) = visitor.findings("select-name")
    assert finding.startswith("select-name at ")


def test_an_error_of_a_script_is_noticed(visitor: Visitor) -> None:
    visitor.visit(reverse("admin:index"))
    with visitor.page.expect_event("pageerror"):
        visitor.page.evaluate("() => { setTimeout(() => { throw new Error('planted'); }); }")
    (problem,) = visitor.problems
    assert "planted" in problem
    visitor.problems.clear()
