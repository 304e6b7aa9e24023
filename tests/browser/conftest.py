"""A browser and a server for the tests of the console. One of each serves all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test.utils import override_settings
from pytest_django.live_server_helper import LiveServer

from django_jobs.admin.base.model_admin import ConsoleAdmin
from tests.factories import run_sql
from tests.patience import PATIENCE

from . import scene, shop
from .visitor import Visitor, superuser

EXTRA = "the extra test-browser"


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Chromium. Playwright runs a loop in this thread, of which Django must not complain."""
    sync_api = pytest.importorskip("playwright.sync_api", reason=f"Playwright is in {EXTRA}")
    pytest.importorskip("axe_playwright_python", reason=f"axe is in {EXTRA}")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("Debian's package chromium is not installed")
    with pytest.MonkeyPatch.context() as patch, sync_api.sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        sync_api.expect.set_options(timeout=PATIENCE * 1000)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def address(django_db_setup: None) -> Iterator[str]:
    """Where the admin is served, under the policy of :mod:`.policy`."""
    middleware = ["tests.browser.policy.enforce_policy", *settings.MIDDLEWARE]
    with override_settings(MIDDLEWARE=middleware, ALLOWED_HOSTS=["localhost"]):
        server = LiveServer("localhost")
        yield server.url
        server.stop()


@pytest.fixture(autouse=True)
def _short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Axe takes its time with each cell."""
    monkeypatch.setattr(ConsoleAdmin, "list_per_page", 12)


@pytest.fixture
def found(transactional_db: None) -> Iterator[dict[str, int]]:
    """The rows of :mod:`.scene`; the ids of some jobs by what they show. Their length would depend
    on the tests before, and a list may be just wide enough for short ones."""
    run_sql("SELECT setval('django_jobs_job_id_seq', 9876543210)")
    with shop.declared():
        yield scene.make_scene(history=600)


@pytest.fixture
def visitor(browser: Any, address: str, found: dict[str, int]) -> Iterator[Visitor]:
    """Somebody who may do everything. What went wrong in the browser fails the test."""
    visitor = Visitor(browser, address, superuser())
    yield visitor
    visitor.close()
    assert visitor.problems == []
