"""Links: none leads a user to a page that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from urllib.parse import urljoin, urlsplit

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import resolve

from django_jobs.models import Backfill, DeadLetter, Overview, Tick
from tests.browser import scene, shop
from tests.browser.pages import console_pages

OF_DJANGO = ("logout", "password_change", "jsi18n")
BY_ANOTHER = (Backfill, DeadLetter, Overview, Tick)
"""Models whose rows are seen by the permission for another one."""


class Links(HTMLParser):
    """The addresses to which a page of the admin links, without Django's own."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__()
        self.path = path
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        address = (
            urlsplit(urljoin(self.path, dict(attrs).get("href") or "")) if tag == "a" else None
        )
        if address and not address.netloc and not any(one in address.path for one in OF_DJANGO):
            self.found.add(address._replace(fragment="").geturl())


@pytest.fixture
def pages(transactional_db: None) -> Iterator[list[str]]:
    """Those of a shop on a busy afternoon."""
    with shop.declared():
        scene.make_scene(history=100)
        yield list(console_pages(get_user_model().objects.create_superuser("ada")))


def test_no_link_leads_a_user_who_sees_one_kind_of_row_to_a_refused_page(pages: list[str]) -> None:
    refused = []
    for model in admin.site._registry:
        if model._meta.app_label != "django_jobs" or model in BY_ANOTHER:
            continue
        name = f"view_{model._meta.model_name}"
        user = get_user_model().objects.create_user(name, is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename=name))
        client = Client()
        client.force_login(user)
        answers: dict[str, int] = {}  # one of each kind of page
        opened = 0
        for path in pages:
            page = client.get(path)
            if page.status_code != 200 or "html" not in page.headers["content-type"]:
                continue
            opened += 1
            for link in sorted(Links(path, page.content.decode()).found):
                to = resolve(urlsplit(link).path).url_name or ""
                if to not in answers:
                    answers[to] = client.get(link).status_code
                if answers[to] >= 400:
                    refused.append(f"{name}: {resolve(path).url_name} to {to}")
        assert opened > 1, name
    assert refused == []
