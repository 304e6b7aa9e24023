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

from django_jobs.admin.base import actions
from django_jobs.models import Schedule
from django_jobs.models.totals import StoredMetrics
from tests.api.workflows.conftest import workflow
from tests.app.jobs import noop
from tests.factories import make_user, run_sql

from .schedules.scheduling import schedulable
from .verbs import READ, VERBS, VIEWS

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


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_needs_its_permission_a_token_and_a_post(name: str) -> None:
    verb = VERBS[name]
    codenames = Permission.objects.filter(content_type__app_label=LABEL)
    every = set(codenames.values_list("codename", flat=True))
    views = {one for one in every if one.startswith("view_")}
    assert verb.permission in every - views
    url, data = verb.make()
    before = state()
    client_of("eve", every - {verb.permission} - verb.lacking).post(url, data)
    assert state() == before, "without the permission"
    olga = client_of("olga", {*views, verb.permission} - verb.lacking, enforce_csrf_checks=True)
    assert olga.post(url, data).status_code == 403
    assert state() == before, "without a token"
    olga.get(url, data)
    assert state() == before, "by GET"
    olga.handler.enforce_csrf_checks = False
    olga.post(url, data)
    after = state()
    assert after != before, "nothing forbids it, but nothing happens"
    olga.post(url, data)
    twice = {table for table, rows in state().items() if rows != after[table]}
    assert bool(twice - {LogEntry._meta.db_table}) == verb.again, "sent twice"


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
