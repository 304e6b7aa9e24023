"""Each page of the console: no error, nothing against the policy, readable by all."""

from __future__ import annotations

import pytest
from django.urls import reverse

from .pages import console_pages
from .visitor import NARROW, WIDE, WIDER, Visitor

pytestmark = pytest.mark.timeout(300)

WIDER_THAN_ITS_ELEMENTS = """() => [...document.querySelectorAll("#main *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1
        && !one.closest("[class*='results'], nav, .jobs-scroll, .jobs-graph"))
    .slice(0, 3).map((one) => `${one.tagName}.${one.className}`).join(", ")"""
CUT_TABLES = """() => [...document.querySelectorAll(".results, .jobs-scroll")]
    .filter((one) => one.scrollWidth > one.clientWidth)
    .map((one) => `${one.querySelector("table")?.className} lacks `
        + `${one.scrollWidth - one.clientWidth} px`)"""


def test_all_pages_are_shown_in_both_themes_without_a_finding(visitor: Visitor) -> None:
    findings = []
    walked = set()
    for path in console_pages(visitor.user):
        answer = visitor.visit(path)
        if answer.status != 200 or "text/html" not in answer.headers["content-type"]:
            findings.append(f"{path}: {answer.status} {answer.headers.get('content-type')}")
            continue
        walked.add(path)
        findings += [f"{path}: {one}" for one in visitor.findings()]
        for size in (WIDE, WIDER):
            with visitor.at(size) as page:
                cut = page.evaluate(CUT_TABLES)
                findings += [f"{path} at {size[0]}: {one}" for one in cut]
        with visitor.at(WIDE, dark=True):
            findings += [f"{path}, dark: {one}" for one in visitor.findings("color-contrast")]
        with visitor.at(NARROW) as page:
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > NARROW[0]:
                wide = page.evaluate(WIDER_THAN_ITS_ELEMENTS)
                findings.append(f"{path} is {width} px wide in a narrow window: {wide}")
    assert "\n".join(findings) == ""
    assert len(walked) > 35


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
