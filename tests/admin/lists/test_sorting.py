"""The small lists are sorted by a click on a heading; the others are not."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin import site
from django.db.models import Model
from django.db.models.functions import Now

from django_jobs.admin.lists import change_list
from django_jobs.admin.queues.queue_admin import QueueAdmin
from django_jobs.models import Job, Queue, Resource, Schedule, Tenant, Worker
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.factories import copies_of, register_worker, run_sql

from ..schedules.scheduling import new_schedule
from ..walking import Page, list_url, listed

pytestmark = pytest.mark.django_db


def number_of(page: Page, model: type[Model], column: str) -> int:
    """The place of a column among those of a list, as its address names it."""
    shown: Any = page.client.get(list_url(model))
    place: int = shown.context_data["cl"].list_display.index(column)
    return place


def names(page: Page, model: type[Model], column: str, down: bool = False, more: str = "") -> Any:
    sign = "-" if down else ""
    shown: Any = page.client.get(
        f"{list_url(model)}?o={sign}{number_of(page, model, column)}{more}"
    )
    return [str(row.name) for row in shown.context_data["cl"].result_list]


def waiting(queue: str, jobs: int, minutes: int = 0) -> None:
    for _ in range(jobs):
        job = noop.using(queue=queue).enqueue()
        ago = "available_at = now() - make_interval(mins => %s)"
        run_sql(f"UPDATE django_jobs_job SET {ago} WHERE id = %s", [minutes, job.pk])


def test_queues_by_what_is_ready_and_waits_longest(page: Page) -> None:
    for name in ("aa", "bb", "cc"):
        Queue.objects.create(name=name)
    waiting("aa", 1, 1)
    waiting("bb", 3, 10)
    found = names(page, Queue, "ready", down=True)
    assert found[:2] == ["bb", "aa"]
    assert names(page, Queue, "next_waits", down=True)[:2] == ["bb", "aa"]
    assert names(page, Queue, "next_waits")[-2:] == ["aa", "bb"]
    assert names(page, Queue, "name", down=True)[-2:] == ["bb", "aa"]
    assert sorted(names(page, Queue, "dead", down=True)) == sorted(found)


def test_numbers_that_python_reads_sort_the_whole_list_and_not_its_page(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueAdmin, "list_per_page", 1)
    numbers = {"aa": 2, "bb": None, "cc": 7}
    Queue.objects.exclude(name="default").delete()
    Queue.objects.filter(name="default").update(name="aa")
    for name in ("bb", "cc"):
        Queue.objects.create(name=name)
    monkeypatch.setitem(QueueAdmin.sorted_here, "dead", lambda queue: numbers[queue.name])
    for down, order in ((True, ["cc", "aa", "bb"]), (False, ["aa", "cc", "bb"])):
        pages = [names(page, Queue, "dead", down, f"&p={number}") for number in (1, 2, 3)]
        assert pages == [[name] for name in order]
    assert names(page, Queue, "dead", True, "&all=") == ["cc", "aa", "bb"]


def test_resources_and_tenants_by_what_is_taken_and_waits(page: Page) -> None:
    for name in ("ledger", "stripe"):
        Resource.objects.create(name=name)
    copies_of(refund_payment.enqueue(1), 3, "blocked")
    assert names(page, Resource, "waiting", down=True) == ["stripe", "ledger"]
    assert names(page, Resource, "waiting") == ["ledger", "stripe"]
    assert names(page, Resource, "taken", down=True)[0] == "stripe"
    for name, weight in (("acme", 3.0), ("zeta", 1.0)):
        Tenant.objects.create(name=name, weight=weight)
    assert names(page, Tenant, "share") == ["zeta", "acme"]
    assert names(page, Tenant, "name", down=True) == ["zeta", "acme"]


def test_workers_and_schedules(page: Page) -> None:
    one, other = register_worker("one"), register_worker("other")
    copies_of(noop.enqueue(), 2)
    run_sql("UPDATE django_jobs_job SET status = 'running', worker_id = %s", [one])
    assert names(page, Worker, "busy", down=True) == ["one", "other"]
    assert names(page, Worker, "name", down=True) == ["other", "one"]
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() - interval '1 h' WHERE id = %s",
            [other])  # fmt: skip
    assert names(page, Worker, "heartbeat") == ["other", "one"]
    for name, hours in (("a", 2), ("b", 1)):
        new_schedule(name=name)
        run_sql(
            "UPDATE django_jobs_schedule SET next_due_at = now() + make_interval(hours => %s)"
            " WHERE name = %s",
            [hours, name],
        )
    assert names(page, Schedule, "coming") == ["b", "a"]
    assert names(page, Schedule, "name", down=True) == ["b", "a"]
    Schedule.objects.filter(name="a").update(paused_at=Now())
    assert names(page, Schedule, "state", down=True) == ["a", "b"]
    for name, every in (("a", 300.0), ("b", 60.0)):
        Schedule.objects.filter(name=name).update(cron="", every=every)
    assert names(page, Schedule, "when") == ["b", "a"]


def test_queues_by_state_and_pressure(page: Page) -> None:
    for name, most in (("aa", 10), ("bb", 2), ("cc", None)):
        Queue.objects.create(name=name, max_backlog=most)
        waiting(name, 1)
    assert names(page, Queue, "level", down=True)[:2] == ["bb", "aa"]
    Queue.objects.filter(name="cc").update(paused_at=Now())
    assert names(page, Queue, "state", down=True)[0] == "cc"


def test_a_long_list_keeps_its_order_and_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme", "most", "zeta"):
        Tenant.objects.create(name=name)
    assert names(page, Tenant, "name", down=True) == ["zeta", "most", "acme"]
    monkeypatch.setattr(change_list, "MOST_SORTED", 2)
    place = number_of(page, Tenant, "name")
    assert names(page, Tenant, "name", down=True) == ["acme", "most", "zeta"]
    assert "More than 2 rows are not sorted." in page.read(f"{list_url(Tenant)}?o=-{place}")
    assert names(page, Tenant, "name", down=True, more="&q=e") == ["zeta", "acme"]


@pytest.mark.parametrize("order", ["x", "-", "99", "-99", "1.2", "²", "-1.-2.3", "%00", "3"])
def test_any_address_has_an_answer(page: Page, order: str) -> None:
    for model in (Queue, Tenant, Resource, Worker, Schedule, Job):
        assert page.client.get(f"{list_url(model)}?o={order}").status_code in (200, 302)


def test_no_column_of_a_large_list_sorts_it(page: Page) -> None:
    ids = [noop.enqueue().pk for _ in range(3)]
    text = page.text(list_url(Job))
    assert "sortable" not in text
    for number in range(12):
        assert listed(page, o=number) == ids[::-1]


def test_each_column_that_is_offered_has_an_order(page_of: Callable[..., Page]) -> None:
    for model, page in site._registry.items():
        for column in getattr(page, "sorted_here", ()):
            assert column in page.sortable_by, (model, column)
        for column in (page.sortable_by or ()) if hasattr(page, "sorted_here") else ():
            assert re.fullmatch("name", column) or getattr(page, column).admin_order_field, column
