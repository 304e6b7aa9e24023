"""An action on all that match a search changes what its conditions say, or names what is left."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.admin.base import actions, search
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, DeadLetter, Job
from django_jobs.testing import run_jobs
from tests.admin.walking import Page, list_url, message_of
from tests.app.jobs import add, noop
from tests.factories import declared, enqueue_and_claim, explain, make_dead, run_sql

pytestmark = pytest.mark.django_db
OFFER = "Change all of them in the background"


@pytest.fixture(autouse=True)
def short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search lists the newest two of live, dead and ended jobs, and reads payloads of three."""
    monkeypatch.setattr(search, "MOST_FOUND", 2)
    monkeypatch.setattr(search, "NEWEST", 3)


def handler(customer_id: int) -> None: ...


class Question:
    """The page that asks, and its form."""

    def __init__(self, page: Page, action: str, query: str, model: Any) -> None:
        self.page, self.action, self.query, self.model = page, action, query, model
        asked = page.ask(model, action, 0, query=query, select_across=1)
        assert asked.status_code == 200
        self.html = asked.content.decode()
        self.text = " ".join(re.sub(r"<[^>]*>", " ", self.html).split())
        self.form = {
            name: re.findall(f'name="{name}" value="([^"]*)"', self.html)[0]
            for name in ("max_id", "expected")
        }

    def confirm(self, **more: Any) -> str:
        """What the next page says."""
        given: dict[str, Any] = {"select_across": 1, **self.form, **more}
        done = self.page.confirm(self.model, self.action, 0, query=self.query, **given)
        assert done.status_code == 302
        return message_of(done)


def ask(page: Page, query: str, action: str = "cancel_jobs", model: Any = Job) -> Question:
    return Question(page, action, query, model)


def statuses(*pks: int) -> list[str]:
    return list(Job.objects.filter(pk__in=pks).order_by("pk").values_list("status", flat=True))


@pytest.fixture
def orders() -> Any:
    with declared(handler, name="app.orders", tags=["vip"]) as job_type:
        yield job_type


@pytest.mark.parametrize(
    "query", ["?q=type:app.orders", "?q=tag:vip", "?tag=vip&q=type:app.orders"]
)
def test_a_search_that_lists_the_newest_changes_all_that_match(
    page: Page, orders: Any, query: str
) -> None:
    ended = [job.pk for job in (orders.enqueue(customer_id=1), orders.enqueue(customer_id=2))]
    run_jobs()
    dead = make_dead(orders, 3).pk
    live = orders.enqueue_many([{"customer_id": 4}] * 5)
    other = add.enqueue(1).pk
    assert "Cancel all that match…" in page.read(list_url(Job) + query)
    question = ask(page, query)
    assert "This changes 5 jobs." in question.text
    assert "Jobs that have succeeded or were cancelled are not counted." in question.text
    assert question.confirm() == "5 jobs were cancelled."
    assert statuses(*live) == ["cancelled"] * 5
    assert statuses(*ended, dead, other) == ["succeeded"] * 2 + ["dead", "ready"]


def test_jobs_that_come_after_the_question_take_no_place_of_others(page: Page, orders: Any) -> None:
    asked = orders.enqueue_many([{"customer_id": 42}] * 3)
    questions = [ask(page, f"?q={query}") for query in ("type:app.orders", "customer_id:42")]
    for question in questions:
        assert "This changes 3 jobs." in question.text
    later = orders.enqueue_many([{"customer_id": 42}] * 9)
    assert questions[1].confirm() == "3 jobs were cancelled."
    assert statuses(*asked, *later) == ["cancelled"] * 3 + ["ready"] * 9


@pytest.mark.parametrize("model", [Job, DeadLetter])
@pytest.mark.parametrize("query", ["?q=error:boom", "?q=customer_id:42"])
def test_the_question_names_what_was_not_searched(
    page: Page, orders: Any, query: str, model: Any
) -> None:
    dead = [make_dead(orders, 42).pk for _ in range(5)]
    question = ask(page, query, "replay_jobs", model)
    assert "This changes 3 " in question.text
    assert "Payloads and errors were searched in the newest 3 jobs only." in question.text
    assert "More match" not in question.text
    make_dead(orders, 42)
    assert question.confirm().startswith("3 jobs were sent back to their queues.")
    assert statuses(*dead) == ["dead"] * 2 + ["ready"] * 3


def test_a_rare_tag_and_an_index_on_payloads_find_all_for_an_action_too(
    page: Page, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = orders.using(tags=["rare"]).enqueue(customer_id=42).pk
    orders.enqueue_many([{"customer_id": 42}] * 3)
    assert "This changes 1 job." in ask(page, "?q=tag:rare customer_id:42").text
    assert "This changes 3 jobs." in ask(page, "?q=customer_id:42").text
    run_sql("CREATE INDEX own_payload ON django_jobs_job_live USING gin (payload jsonb_path_ops)")
    question = ask(page, "?q=customer_id:42")
    assert "This changes 4 jobs." in question.text
    assert "only" not in question.text
    assert question.confirm() == "4 jobs were cancelled."
    assert statuses(marked) == ["cancelled"]


def test_the_holder_of_a_key_is_found_in_each_queue(page: Page) -> None:
    held = [noop.using(queue=one, idempotency_key="k").enqueue().pk for one in ("default", "bulk")]
    scoped = noop.using(idempotency_key="k/1", key_scope="tenant")
    acme, globex = (scoped.using(tenant=tenant).enqueue().pk for tenant in ("acme", "globex"))
    assert ask(page, "?q=key:k").confirm() == "2 jobs were cancelled."
    assert statuses(*held) == ["cancelled"] * 2
    assert ask(page, "?q=key:acme/k/1").confirm() == "1 job was cancelled."
    assert statuses(acme, globex) == ["cancelled", "blocked"]


def test_what_does_not_match_any_more_is_counted(page: Page) -> None:
    first, *rest = noop.using(delay=3600).enqueue_many([{}] * 3)
    question = ask(page, "?status=scheduled&q=type:app.noop")
    run_sql("UPDATE django_jobs_job_live SET status = 'ready' WHERE id = %s", [first])
    assert question.confirm() == (
        "2 jobs were cancelled. | 1 no longer matched and was left alone."
    )
    assert statuses(first, *rest) == ["ready", "cancelled", "cancelled"]


def test_more_than_the_limit_is_offered_to_the_workers_for_a_search(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "ADMIN_BULK_LIMIT", 4)
    noop.enqueue_many([{}] * 4)
    assert OFFER not in ask(page, "?q=type:app.noop").text
    noop.enqueue()
    question = ask(page, "?q=type:app.noop")
    assert "More than 4 jobs match. This changes the newest 4 of them." in question.text
    assert OFFER in question.html
    question.confirm(instead="background")
    run_chunk()
    assert set(Job.objects.values_list("status", flat=True)) == {"cancelled"}
    assert BulkOperation.objects.get().done == 5


def test_a_replay_among_all_jobs_counts_the_dead_ones(page: Page, orders: Any) -> None:
    dead = [make_dead(orders, 42).pk for _ in range(3)]
    orders.enqueue_many([{"customer_id": 42}] * 4)
    for query in ("?q=type:app.orders", "?queue=default"):
        question = ask(page, query, "replay_jobs")
        assert "This changes 3 jobs." in question.text
    assert question.confirm().startswith("3 jobs were sent back to their queues.")
    assert statuses(*dead) == ["ready"] * 3


@pytest.mark.parametrize(
    "action", ["cancel_jobs", "reprioritize_jobs", "run_jobs_now", "inspect_jobs"]
)
def test_newer_jobs_that_an_action_cannot_change_take_no_place_of_others(
    page: Page, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    if action == "inspect_jobs":
        enqueue_and_claim(noop)
    else:
        noop.using(delay=3600).enqueue()
    for _ in range(3):
        make_dead()
    monkeypatch.setattr(actions, "ADMIN_BULK_LIMIT", 2)
    question = ask(page, "?queue=default", action)
    asks = "This asks 1 job," if action == "inspect_jobs" else "This changes 1 job."
    assert asks in question.text
    assert "1 job " in question.confirm(priority=5)


def test_of_ended_jobs_none_can_be_changed(page: Page) -> None:
    noop.enqueue()
    run_jobs()
    question = ask(page, "?status=succeeded")
    assert "None of the jobs that match can be changed." in question.text
    assert '<input type="submit"' not in question.html


def test_a_refused_search_says_so_in_the_question(page: Page) -> None:
    noop.enqueue()
    assert "Not understood: what." in ask(page, "?q=what").text


def test_an_action_reads_the_live_table_alone(page: Page) -> None:
    noop.enqueue()
    with CaptureQueriesContext(connection) as queries:
        ask(page, "?q=type:app.noop")
    chosen = [
        one["sql"] for one in queries if f"LIMIT {actions.ADMIN_BULK_LIMIT + 1}" in one["sql"]
    ]
    assert chosen
    for sql in chosen:
        read = {node.get("Relation Name") for node in explain(sql, ())}
        assert read - {None} == {"django_jobs_job_live"}
