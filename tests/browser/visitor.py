"""A person at a browser: sees pages, clicks, and notes all that goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from tests.patience import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Response

WIDE, WIDER, NARROW = (1280, 800), (1440, 900), (390, 844)

AXE_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = """async ([options, left_out, excused]) => (
    await axe.run({ exclude: left_out }, options)).violations.flatMap((rule) => rule.nodes
        .filter((node) => !excused.some(([name, place]) =>
            name === rule.id && document.querySelector(node.target[0]).closest(place)))
        .map((node) => `${rule.id} at ${node.target}: ${node.failureSummary}`))"""
LEADS_ON = """(one) => {
    const link = one.closest("a[href]");
    const button = one.closest("button, input");
    return link ? !link.getAttribute("href").startsWith("#")
        : Boolean(button && button.type === "submit" && button.form);
}"""
# To wait for their ends took a quarter of the walk through all pages, and without limit.
END_TRANSITIONS = "() => document.getAnimations().forEach((one) => one.finish())"

OF_DJANGO = (
    ("link-in-text-block", ".breadcrumbs"),
    ("label", ".datetime"),
    ("target-size", "#changelist-filter"),
    ("target-size", ".breadcrumbs"),
    ("label-title-only", "#searchbar"),
    ("label-title-only", "#nav-filter"),
)
"""Findings in Django's own markup, which its list of users has too: a rule, and where."""


def axe_source() -> str:
    """The script of axe-core, from the package that brings it."""
    spec = find_spec("axe_playwright_python")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("axe.min.js").read_text()


class Visitor:
    """A member of staff who is logged in, at one page of a browser."""

    def __init__(self, browser: Browser, address: str, user: Any) -> None:
        self.address, self.user = address, user
        self.problems: list[str] = []
        self.clicks = 0
        self._axe = axe_source()
        self._shown = WIDE, False
        self._seen = set[tuple[str, ...]]()
        self._context = browser.new_context(viewport=_size(WIDE), reduced_motion="reduce")
        self._context.set_default_timeout(PATIENCE * 1000)
        self._context.add_cookies([_session(user, address)])
        self.page: Page = self._context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        self.page.on("response", self._look)

    def close(self) -> None:
        """Leave."""
        self._context.close()

    def visit(self, path: str) -> Response:
        """Type an address."""
        response = self.page.goto(f"{self.address}{path}")
        assert response is not None, path
        return response

    def click(self, found: Locator) -> None:
        """Click, and wait for the page that follows a link or a button of a form. By itself the
        browser tells of the page that is there still."""
        self.clicks += 1
        if found.evaluate(LEADS_ON):
            with self.page.expect_navigation(wait_until="load"):
                found.click()
        else:
            found.click()

    def choose(self, found: Locator, label: str) -> None:
        """Choose from a list. It counts as one click."""
        self.clicks += 1
        found.select_option(label=label)

    @contextmanager
    def at(self, size: tuple[int, int], *, dark: bool = False) -> Iterator[Page]:
        """The page in a window of this size."""
        before = self._shown
        if self._show(size, dark):
            self.page.evaluate(END_TRANSITIONS)
        yield self.page
        self._show(*before)

    def _show(self, size: tuple[int, int], dark: bool) -> bool:
        """Change what is otherwise; returns whether anything was."""
        before, self._shown = self._shown, (size, dark)
        if size != before[0]:
            self.page.set_viewport_size(_size(size))
        if dark != before[1]:
            self.page.emulate_media(color_scheme="dark" if dark else "light")
        return before != self._shown

    def findings(self, *rules: str) -> list[str]:
        """What axe finds on the page, of all rules or of these, without what is Django's. It looks
        once for these rules at the list of all models, a third of each page."""
        kind = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": AXE_TAGS}
        before = list(self.problems)
        if not self.page.evaluate("() => typeof axe !== 'undefined'"):
            self.page.evaluate(self._axe)
        options = {"runOnly": kind, "preload": False, "resultTypes": ["violations"]}
        left_out = [["#nav-sidebar"]] if rules in self._seen else []
        self._seen.add(rules)
        found: list[str] = self.page.evaluate(RUN_AXE, [options, left_out, OF_DJANGO])
        self.problems[:] = before  # axe tries styles that the policy refuses
        return found

    def _hear(self, message: ConsoleMessage) -> None:
        of_django = message.location["url"].endswith("/favicon.ico")  # its admin has none
        if message.type in ("error", "warning") and not of_django:
            self.problems.append(f"{urlsplit(self.page.url).path}: {message.text}")

    def _look(self, response: Response) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.url} answered {response.status}")


def _size(size: tuple[int, int]) -> Any:
    return {"width": size[0], "height": size[1]}


def _session(user: Any, address: str) -> Any:
    client = Client()
    client.force_login(user)
    name = settings.SESSION_COOKIE_NAME
    return {"name": name, "value": client.cookies[name].value, "url": address}


def superuser() -> Any:
    """A person who may do everything."""
    return get_user_model().objects.create_superuser("ada")


def index() -> str:
    """Where a person begins."""
    return reverse("admin:index")
