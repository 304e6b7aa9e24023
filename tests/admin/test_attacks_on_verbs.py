"""Each verb of the console, attacked: without its permission, without a token, by a link, twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.test import Client
from django.urls import reverse
from django.utils.http import urlencode

from django_jobs.admin.base import actions
from django_jobs.models import BulkOperation, Schedule
from django_jobs.models.totals import StoredMetrics
from tests.api.workflows.conftest import workflow
from tests.app.jobs import noop
from tests.factories import make_user, run_sql

from .schedules.scheduling import schedulable
from .verbs import READ, VERBS, VIEWS
from .walking import change_url, list_url

__all__ = ["workflow"]
pytestmark = pytest.mark.django_db

LABEL = "django_jobs"


@pytest.fixture(autouse=True)
def _all_can_be_done(
    monkeypatch: pytest.MonkeyPatch, workflow: Callable[..., Any]
) -> Iterator[None]:
    monkeypatch.setattr(actions, "ADMIN_BULK_LIMIT", 2)
    workflow().step(noop)
    with schedulable():
        yield


def state() -> dict[str, str]:
    """The rows of all tables, and of the history, but for numbers that pages keep for the next."""
    models = {*apps.get_app_config(LABEL).get_models(), LogEntry}
    tables = {one._meta.db_table for one in models} - {StoredMetrics._meta.db_table}
    rows = " UNION ALL ".join(
        f"SELECT '{table}', md5(string_agg(t::text, '' ORDER BY t::text)) FROM {table} AS t"
        for table in sorted(tables)
    )
    return dict(run_sql(rows))


def client_of(name: str, permissions: set[str], **options: Any) -> Client:
    client = Client(**options)
    client.force_login(make_user(*permissions, name=name))
    return client


def places(action: tuple[Any, str], data: dict[str, Any]) -> list[str]:
    """The list and the page of the chosen row, which have a button for an action. The list of
    operations has it for those who may do to jobs what any of them does."""
    page = change_url(action[0], data["_selected_action"])
    return [page] if action[0] is BulkOperation else [list_url(action[0]), page]


def is_offered(action: tuple[Any, str], client: Client, url: str) -> bool:
    return f'value="{action[1]}"' in client.get(url).content.decode()


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_needs_its_permission_a_token_and_a_post(name: str) -> None:
    verb = VERBS[name]
    codenames = Permission.objects.filter(content_type__app_label=LABEL)
    every = set(codenames.values_list("codename", flat=True))
    views = {one for one in every if one.startswith("view_")}
    assert verb.permission in every - views
    url, data = verb.make()
    eve = client_of("eve", every - {verb.permission} - verb.lacking)
    olga = client_of("olga", {*views, verb.permission} - verb.lacking, enforce_csrf_checks=True)
    if verb.action:
        assert not any(is_offered(verb.action, eve, at) for at in places(verb.action, data))
        assert is_offered(verb.action, olga, list_url(verb.action[0]))
    assert b'name="_save"' not in eve.get(url).content
    before = state()
    eve.post(url, data)
    eve.post(url, {**data, "index": 0})
    assert state() == before, "without the permission"
    assert olga.post(url, data).status_code == 403
    assert state() == before, "without a token"
    olga.get(f"{url}{'&' if '?' in url else '?'}{urlencode(data)}")
    assert state() == before, "by GET"
    olga.handler.enforce_csrf_checks = False
    olga.post(url, data)
    after = state()
    assert after != before, "nothing forbids it, but nothing happens"
    olga.post(url, data)
    twice = {table for table, rows in state().items() if rows != after[table]}
    assert bool(twice - {LogEntry._meta.db_table}) == verb.again, "sent twice"


def test_who_has_not_logged_in_is_sent_to_the_login() -> None:
    patterns = [url for model, page in site._registry.items() for url in page.get_urls()
                if model._meta.app_label == LABEL and url.name]  # fmt: skip
    for pattern in patterns:
        arguments = ["1"] if pattern.pattern.converters else []
        answer = Client().get(reverse(f"admin:{pattern.name}", args=arguments))
        assert answer.url.startswith(reverse("admin:login")), pattern.name
    assert len(patterns) > 60


def test_each_verb_is_attacked() -> None:
    pages = [page for model, page in site._registry.items() if model._meta.app_label == LABEL]
    offered = {
        (page.model, one if isinstance(one, str) else one.__name__)
        for page in pages
        for one in page.actions or ()
    }
    attacked = {verb.action for verb in VERBS.values() if verb.action}
    assert offered - attacked == {(Schedule, "duplicate_schedule")}  # it leads to a form
    assert attacked <= offered
    of_models = ("add", "change", "changelist", "delete", "history")
    named = {url.name for page in pages for url in page.get_urls() if url.name}
    others = {one for one in named if not one.endswith(tuple(f"_{name}" for name in of_models))}
    known = tuple(f"_{name}" for name in VIEWS | READ)
    assert [one for one in others if not one.endswith(known)] == []
