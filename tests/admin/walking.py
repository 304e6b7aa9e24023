"""Walks through the admin as an operator does: look, choose, confirm."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

from django.contrib.messages import get_messages
from django.db import connection
from django.db.models import Model
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobs.models import Job, Run

BROKEN_PAYLOADS = {
    "a number that Python refuses": '{"first": ' + "9" * 5001 + "}",
    "arrays that Python cannot nest": '{"first": ' + "[" * 5000 + "]" * 5000 + "}",
}
ESCAPED_TWICE = re.compile("&lt;[a-z]+ (?:class|href|datetime|tabindex|title)=&quot;(?!&gt;)")
"""Markup of the package that a page shows as text. A join of safe and other text is not safe."""
UNSHOWN = re.compile("cannot be shown|nested deeper than")
"""What a page has in place of one. Some versions of Python nest deeper than the page."""


def list_url(model: type[Model]) -> str:
    """The address of a model's list."""
    return reverse(f"admin:django_jobs_{model._meta.model_name}_changelist")


def change_url(model: type[Model], pk: int) -> str:
    """The address of a row's page."""
    return reverse(f"admin:django_jobs_{model._meta.model_name}_change", args=[pk])


def words(text: str | HttpResponse) -> str:
    """A page, or a part of one, without tags, its spaces as one."""
    text = text if isinstance(text, str) else text.content.decode()
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def listed(page: Page, at: Any = Job, **query: Any) -> list[int]:
    """The ids in the list of a model, or at an address; of runs, those of their jobs."""
    url = at if isinstance(at, str) else list_url(at)
    rows = page.client.get(html.unescape(url), query).context["cl"].result_list
    return [row.job_id if isinstance(row, Run) else row.pk for row in rows]


def statements_of(page: Page, url: str) -> list[str]:
    """The statements that a page takes."""
    with CaptureQueriesContext(connection) as queries:
        page.text(url)
    return [query["sql"] for query in queries]


class Live(HTMLParser):
    """Collects what a browser would carry out: scripts without a source, handlers, odd elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.alarms: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "iframe") and "src" not in given:
            self.alarms.append(f"<{tag}>")
        if tag == "img" and "x" in (given.get("src") or "x"):
            self.alarms.append("<img>")
        if tag == "style" or "style" in given:
            self.alarms.append(f"style on <{tag}>")
        self.alarms += [f"{name} on <{tag}>" for name in given if name.startswith("on")]
        self.alarms += [
            f"javascript: in <{tag}>"
            for value in given.values()
            if (value or "").strip().lower().startswith("javascript:")
        ]


class Page:
    """A browser without scripts, at work in the console."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def text(self, url: str, status: int = 200) -> str:
        """The page at ``url``, with its entities as written."""
        response = self.client.get(url)
        assert response.status_code == status, (url, response.status_code)
        text = response.content.decode()
        assert not ESCAPED_TWICE.search(text), url
        return text

    def read(self, url: str) -> str:
        """The page at ``url`` as a person reads it."""
        return html.unescape(self.text(url))

    def ask(self, model: type[Model], action: str, *ids: int, query: str = "", **more: Any) -> Any:
        """Choose rows and an action; the answer is the confirmation page."""
        data = {"action": action, "_selected_action": list(ids), "index": 0, "select_across": 0}
        return self.client.post(list_url(model) + query, {**data, **more})

    def confirm(
        self, model: type[Model], action: str, *ids: int, query: str = "", **more: Any
    ) -> Any:
        """Say yes on the confirmation page."""
        data = {"action": action, "_selected_action": list(ids), "select_across": 0, "confirmed": 1}
        return self.client.post(list_url(model) + query, {**data, **more})

    def act(self, model: type[Model], action: str, *ids: int, **more: Any) -> str:
        """Ask, confirm; return what the next page would tell."""
        asked = self.ask(model, action, *ids)
        assert asked.status_code == 200, asked.status_code
        done = self.confirm(model, action, *ids, **more)
        assert done.status_code == 302, done.status_code
        return message_of(done)


def message_of(response: Any) -> str:
    """The messages that wait for the next page."""
    return " | ".join(str(message) for message in get_messages(response.wsgi_request))
