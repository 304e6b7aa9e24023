"""``python -m tests.browser.screenshots DIR [WORD ...]``: pictures of all pages of the console, or
of those with one of the words in their address, light and dark, 1280, 1440 and 390 px wide."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOOKS = tuple((width, dark) for width in (1280, 1440, 390) for dark in (False, True))
HEIGHT = 900


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots")
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="parts of addresses")
    parser.add_argument("--history", type=int, default=9000, help="jobs of the last hour")
    parser.add_argument("--language", default="en", help="such as de")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with scene_in_a_browser(options.history, options.language) as visitor:
        for name, path in _named(visitor.user):
            if not options.words or any(word in path for word in options.words):
                _take(visitor, path, options.folder / name)
        for problem in visitor.problems:
            print(problem, file=sys.stderr)
    return 0


@contextmanager
def scene_in_a_browser(history: int, language: str = "en") -> Iterator[Any]:
    """A visitor in a database of its own."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    import django

    django.setup()
    from django.db import connection
    from django.test.utils import override_settings
    from playwright.sync_api import sync_playwright
    from pytest_django.live_server_helper import LiveServer

    from django_jobs import registry

    from . import scene, shop
    from .visitor import Visitor, superuser

    for workflow in registry.workflows():
        registry.forget_workflow(workflow.name)
    connection.settings_dict["TEST"]["NAME"] = f"test_screenshots_{os.getpid()}"
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        with (
            override_settings(ALLOWED_HOSTS=["localhost"], LANGUAGE_CODE=language),
            shop.declared(),
            sync_playwright() as playwright,
        ):
            scene.make_scene(history)
            server = LiveServer("localhost")
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            visitor = Visitor(browser, server.url, superuser())
            yield visitor
            visitor.close()
            browser.close()
            server.stop()
    finally:
        with connection.cursor() as cursor:  # of requests that the browser did not wait for
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        connection.creation.destroy_test_db("", verbosity=0)


def _named(user: Any) -> Iterator[tuple[str, str]]:
    """The addresses of all pages, each with the name of its pictures."""
    from django_jobs.models import Job

    from .pages import console_pages

    status = {
        f"job-{pk}-": f"job-{state}-" for pk, state in Job.objects.values_list("pk", "status")
    }
    for path in console_pages(user):
        name = path.removeprefix("/admin/").strip("/").replace("/", "-")
        name = name.removeprefix("django_jobs-")
        for part, state in status.items():
            if name.startswith(part):
                name = name.replace(part, state, 1)
                break
        yield name, path


def _take(visitor: Any, path: str, name: Path) -> None:
    visitor.visit(path)
    for width, dark in LOOKS:
        with visitor.at((width, HEIGHT), dark=dark) as page:
            file = f"{name}-{width}-{'dark' if dark else 'light'}.png"
            page.screenshot(path=file, full_page=True)


if __name__ == "__main__":
    sys.exit(main())
