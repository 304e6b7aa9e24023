"""The search box finds jobs by tags, payloads and errors, and says what it does not understand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.messages import get_messages
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.admin.base import children, search
from django_jobs.api.generations import PARENT
from django_jobs.models import DeadLetter, Job, Run
from django_jobs.testing import run_jobs
from tests.admin.walking import Live, Page, change_url, list_url, listed
from tests.app.jobs import add, noop
from tests.factories import (
    declared,
    enqueue_and_claim,
    explain,
    failure,
    plan_nodes,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

ODD = '"><img src=x onerror=alert(1)>'


def answer(page: Page, text: str, model: Any = Job, **more: str) -> tuple[list[int], str]:
    """The numbers of the jobs that a search finds, and the messages above the list."""
    response = page.client.get(list_url(model), {"q": text, **more})
    assert response.status_code == 200
    rows = response.context["cl"].result_list
    shown = " | ".join(str(one) for one in response.context["messages"])
    return [row.job_id if model is Run else row.pk for row in rows], shown


def found(page: Page, text: str, model: Any = Job, **more: str) -> list[int]:
    ids, shown = answer(page, text, model, **more)
    assert shown == ""
    return ids


def handler(**arguments: Any) -> None: ...


@pytest.fixture
def orders() -> Any:
    with declared(handler, name="app.orders") as job_type:
        yield job_type


def test_jobs_are_found_by_an_argument(page: Page, orders: Any) -> None:
    number = orders.enqueue(customer_id=42).pk
    text = orders.enqueue(customer_id="42").pk
    several = orders.enqueue(customer_id=[41, 42]).pk
    deep = orders.enqueue(order={"id": 7, "express": True, "note": None}).pk
    other = orders.enqueue(customer_id=420, note="two words", type="mail").pk
    assert found(page, "customer_id:42") == [several, text, number]
    assert found(page, 'customer_id:"42"') == [text]
    assert found(page, "args.order.id:7") == found(page, "order.id:7 order.express:true") == [deep]
    assert found(page, "order.note:null") == [deep]
    assert found(page, 'note:"two words"') == found(page, "args.type:mail") == [other]
    assert found(page, f"customer_id:42 #{text}") == [text]
    assert found(page, "customer_id:42 order.id:7") == found(page, "customer_id:4") == []


def test_ended_and_dead_jobs_are_found_by_an_argument(page: Page) -> None:
    ended = add.enqueue(1, second=2).pk
    run_jobs()
    held = enqueue_and_claim(add, 1, 2)
    settle_one(held, failure(final=True))
    dead = held.id
    assert found(page, "second:2") == [dead, ended]
    assert found(page, "second:2", DeadLetter) == [dead]
    assert found(page, "second:2", status="succeeded") == [ended]


def test_jobs_are_found_by_their_tags(page: Page) -> None:
    both = noop.using(tags=["eu", "vip plus"]).enqueue().pk
    one = add.using(tags="vip plus").enqueue(1).pk
    noop.enqueue()
    assert found(page, 'tag:"vip plus"') == [one, both]
    assert found(page, 'tag:"vip plus" tag:eu') == [both]
    assert found(page, "tag:eu type:app.noop") == found(page, f"tag:eu {both}") == [both]
    assert found(page, "tag:vip") == found(page, "tag:eu type:app.add") == []


def test_tags_are_links_to_all_jobs_that_have_them(page: Page) -> None:
    tagged, other = noop.using(tags=["a b&c", ODD]).enqueue(), noop.enqueue()
    for url in (list_url(Job), change_url(Job, tagged.pk)):
        text = page.text(url)
        assert 'class="jobs-tag" href="/admin/django_jobs/job/?tag=a+b%26c">a b&amp;c</a>' in text
        assert Live(text).alarms == []
    assert "jobs-tag" not in page.text(change_url(Job, other.pk))
    assert listed(page, tag="a b&c") == [tagged.pk]


def test_the_tags_that_job_types_declare_can_be_chosen(page: Page) -> None:
    with declared(handler, name="app.tagged", tags=["mail"]):
        assert '<option value="mail">' in page.text(list_url(Job))


def test_jobs_are_found_by_their_last_error(page: Page) -> None:
    def attempted(message: str, **options: Any) -> int:
        held = enqueue_and_claim(noop)
        settle_one(held, failure(message, **options))
        return held.id

    dead = attempted("the bank said 100%", kind="ReadTimeout", final=True)
    waits = attempted("timeout of the bank", kind="app.BankError")
    attempted("boom")
    for model in (Job, Run):
        assert found(page, "error:Timeout", model) == [waits, dead]
        assert found(page, 'error:"bank said"', model) == [dead]
        assert found(page, 'error:"100%"', model) == [dead]
        assert found(page, "error:BankError", model) == [waits]
        assert found(page, "error:100_", model) == []
    assert found(page, "error:readtimeout", DeadLetter) == [dead]
    fingerprint = Run.objects.get(job=dead).fingerprint
    assert found(page, f"error:{fingerprint}") == found(page, f"error:{fingerprint}", Run) == [dead]


def test_the_filter_by_error_is_a_term_of_the_search(
    page: Page, page_of: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = enqueue_and_claim(noop)
    settle_one(held, failure('the "bank" said no', kind="ReadTimeout", final=True))
    settle_one(other := enqueue_and_claim(add, 1), failure("boom", final=True))
    fingerprint = Run.objects.get(job=held.id).fingerprint
    for text in ("timeout", 'the "bank" said', fingerprint):
        assert found(page, "", error=text) == [held.id]
    assert found(page, "type:app.add", error="boom") == [other.id]
    assert found(page, "type:app.add", error="timeout") == []
    assert 'name="error"' in page.text(list_url(Job))
    assert answer(page_of("view_job"), "", error="bank")[0] == []
    monkeypatch.setattr(search, "NEWEST", 1)
    ids, shown = answer(page, "", error="timeout")
    assert ids == []
    assert "searched in the newest 1 jobs only" in shown


def test_without_the_permission_only_the_class_of_an_error_is_searched(
    page_of: Callable[..., Page],
) -> None:
    held = enqueue_and_claim(noop)
    settle_one(held, failure("customer 8231: Timeout", kind="ReadTimeout"))
    page = page_of("view_job", "view_run")
    for model in (Job, Run):
        ids, shown = answer(page, "error:Timeout", model)
        assert ids == [held.id]
        assert "Only the classes of errors were searched" in shown
        assert answer(page, "error:8231", model)[0] == []


@pytest.mark.parametrize("text", ["customer 42", "type:", "a..b:1", "typ"])
def test_what_is_not_understood_is_named_with_what_is(page: Page, text: str) -> None:
    noop.enqueue()
    for model in (Job, DeadLetter):
        ids, shown = answer(page, text, model)
        assert ids == []
        assert f"Not understood: {text.split()[0]}. A search has ids of jobs, type:" in shown
        assert "arguments of the handler such as customer_id:42" in shown
    ids, shown = answer(page, "type:app.noop", Run)
    assert ids == []
    assert shown == (
        "Not understood: type:app.noop. A search has ids of jobs, code:503, error:Timeout."
    )
    assert "error:Timeout. Did you mean code:503?" in answer(page, "cod:503", Run)[1]


def test_payloads_are_searched_only_by_those_who_may_see_them(
    page_of: Callable[..., Page], orders: Any
) -> None:
    job = orders.enqueue(customer_id=42)
    ids, shown = answer(page_of("view_job"), "customer_id:42")
    assert ids == []
    assert "you need the permission to see payloads" in shown
    allowed = page_of("view_job", "view_job_payload", name="otto")
    assert answer(allowed, "customer_id:42") == ([job.pk], "")


@pytest.mark.parametrize("path", ["api_token", "card.TOKEN", "tokens.first"])
def test_a_masked_argument_is_never_searched(page: Page, orders: Any, path: str) -> None:
    orders.enqueue(api_token="42", card={"TOKEN": "42"}, tokens={"first": "42"})
    for model in (Job, DeadLetter):
        ids, shown = answer(page, f"{path}:42", model)
        assert ids == []
        assert f"{path} is masked, so it cannot be searched." in shown


@pytest.mark.parametrize(
    "text",
    [
        "x:' OR 1=1 --",
        "x%s:%s",
        'x:"{}"',
        "x:\\u0000",
        "error:%(secret)s",
        "tag:{}",
        'tag:"a,b"',
        "a.b.c:[1]",
        f"tag:{ODD}",
        f"error:{ODD}",
        "x:9" + "9" * 400,
        'type:"',
        "٣",
    ],
)
def test_hostile_terms_find_nothing_and_break_nothing(page: Page, text: str) -> None:
    noop.enqueue()
    for model in (Job, DeadLetter, Run):
        response = page.client.get(list_url(model), {"q": text})
        assert response.status_code == 200
        assert list(response.context["cl"].result_list) == []
        assert Live(response.content.decode()).alarms == []


def test_a_refused_search_is_not_named_after_an_action(page: Page) -> None:
    job = noop.enqueue()
    done = page.confirm(Job, "cancel_jobs", job.pk, query="?q=what")
    assert [str(one) for one in get_messages(done.wsgi_request)] == ["1 job was cancelled."]


def test_contents_are_read_of_the_newest_jobs_only(
    page: Page, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NEWEST", 2)
    for ended in (True, False):
        old, *_, new = orders.enqueue_many([{"customer_id": 42}, {}, {"customer_id": 42}])
        if ended:
            run_jobs()
            ids, shown = answer(page, "customer_id:42", status="succeeded")
        else:
            ids, shown = answer(page, "customer_id:42", status="ready")
        assert ids == [new]
        assert "searched in the newest 2 jobs only" in shown
        assert old not in ids


@pytest.mark.usefixtures("fresh_tables")
def test_an_index_on_payloads_is_used_and_finds_jobs_of_any_age(
    page: Page, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NEWEST", 1)
    run_sql("CREATE INDEX own_payload ON django_jobs_job_live USING gin (payload jsonb_path_ops)")
    old, _ = orders.enqueue_many([{"customer_id": 42}, {}])
    assert found(page, "customer_id:42") == [old]
    run_sql("SET LOCAL enable_seqscan = off")
    run_sql("SET LOCAL enable_indexscan = off")
    with CaptureQueriesContext(connection) as queries:
        assert found(page, "customer_id:42") == [old]
    sql = next(one["sql"] for one in queries if '"payload" @>' in one["sql"])
    assert "own_payload" in {node.get("Index Name") for node in explain(sql, ())}


@pytest.mark.usefixtures("fresh_tables")
def test_the_indexes_of_tags_serve_live_and_ended_jobs(page: Page) -> None:
    noop.using(tags="vip").enqueue_many([{}] * 3)
    run_jobs()
    noop.using(tags="vip").enqueue()
    run_sql("SET LOCAL enable_seqscan = off")
    run_sql("SET LOCAL enable_indexscan = off")
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN (FORMAT JSON) SELECT id FROM django_jobs_job WHERE tags @> '{vip}'::text[]"
        )
        (plan,) = cursor.fetchone()
    names = [node["Index Name"] for node in plan_nodes(plan) if "Index Name" in node]
    assert "django_jobs_tags" in names
    assert sum("tags" in name for name in names) == len(names) > 1


def test_of_a_rare_tag_the_contents_of_all_jobs_are_read(
    page: Page, orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "NEWEST", 1)
    old = orders.using(tags="vip").enqueue(customer_id=42).pk
    orders.enqueue_many([{"customer_id": 42}] * 3)
    assert found(page, "tag:vip customer_id:42") == [old]
    monkeypatch.setattr(search, "MOST_FOUND", 0)
    assert "searched in the newest 1 jobs only" in answer(page, "tag:vip customer_id:42")[1]


def test_a_search_is_within_the_filters_of_the_list(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_FOUND", 2)
    older = [noop.using(queue="bulk").enqueue().pk for _ in range(2)]
    noop.enqueue_many([{}] * 3)
    assert listed(page, q="type:app.noop", queue="bulk") == older[::-1]


def test_a_search_that_finds_more_than_it_lists_says_so(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST_FOUND", 2)
    noop.enqueue_many([{}] * 2)
    assert answer(page, "type:app.noop")[1] == ""
    noop.enqueue()
    ids, shown = answer(page, "type:app.noop")
    assert len(ids) == 2
    assert shown == "More match: the newest 2 live, dead and ended ones are listed."


def test_a_search_of_very_many_terms_is_refused(page: Page) -> None:
    for model, term in ((Job, "a:1"), (Run, "error:x")):
        ids, shown = answer(page, " ".join([term] * 5_000), model)
        assert ids == []
        assert shown == "A search has at most 20 terms besides ids."
    ids, _shown = answer(page, " ".join(map(str, range(30))) + " type:app.noop")
    assert ids == []


SEARCHED = [model for model, page in admin.site._registry.items() if page.search_fields]


@pytest.mark.parametrize("model", [one for one in SEARCHED if one._meta.app_label == "django_jobs"])
def test_a_search_of_many_words_is_no_condition_each(page: Page, model: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        ids, shown = answer(page, " ".join(f"word{number}" for number in range(1_600)), model)
    assert (ids, shown[:24]) == ([], "A search has at most 20 ")
    assert not [one for one in queries if "word1599" in one["sql"]]


@pytest.fixture
def _orders() -> Iterator[None]:
    def handler(customer_id: int, order: dict[str, int]) -> None: ...

    with declared(handler, name="app.orders"):
        yield


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("app.noopp", " Did you mean type:app.noop?"),
        ("app.noo", " Did you mean type:app.noop?"),
        ("app", " Did you mean type:app.?"),
        ("zzzz", ""),
    ],
)
def test_a_job_type_that_is_not_known_is_named_with_the_nearest(
    page: Page, typed: str, meant: str
) -> None:
    text = page.read(f"{list_url(Job)}?q=type:{typed}")
    assert f"This process knows no job type {typed}.{meant}</p>" in text
    assert "knows no job type" not in page.read(f"{list_url(Job)}?q=type:app.noop")


def test_a_point_or_an_asterisk_finds_all_job_types_that_begin_so(page: Page) -> None:
    ids = {noop.enqueue().pk, add.enqueue(1).pk}
    for typed, found in (("app.", ids), ("app.*", ids), ("app.no*", {min(ids)}), ("zzz.", set())):
        assert set(listed(page, q=f"type:{typed}")) == found


@pytest.mark.usefixtures("_orders")
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("customer_ids:42", " Did you mean customer_id:42?"),
        ("orders.id:7", " Did you mean order.id:7?"),
        ("zzzz:1", ""),
        ("orbiter:1", ""),
        ("tpye:app.noop", " Did you mean type:app.noop?"),
        ("status:dead", " Use the filter of the list instead."),
    ],
)
def test_an_argument_that_no_job_type_has_is_named_with_the_nearest(
    page: Page, typed: str, meant: str
) -> None:
    name = typed.split(":")[0].split(".")[0]
    text = page.read(f"{list_url(Job)}?q={typed}")
    assert f"No job type declares an argument {name}.{meant}</p>" in text
    assert "No job type declares" not in page.read(f"{list_url(Job)}?q=customer_id:42")


@pytest.mark.usefixtures("_orders")
@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("customer 42", "Did you mean customer_id:42?"),
        ("customer_id 42", "Did you mean customer_id:42?"),
        ("custmer_id x", "Did you mean customer_id:x?"),
        ("app.nop", "Did you mean type:app.noop?"),
        ("app.orders", "Did you mean type:app.orders?"),
        ("zzzz 42", ""),
        ("customer", ""),
    ],
)
def test_words_without_a_colon_suggest_an_argument_or_a_type(
    page: Page, typed: str, meant: str
) -> None:
    text = page.read(f"{list_url(Job)}?q={typed.replace(' ', '+')}")
    assert "Not understood: " in text
    assert meant in text
    assert ("Did you mean" in text) == bool(meant)


@pytest.mark.usefixtures("_orders")
def test_arguments_are_named_only_to_those_who_may_search_them(
    page_of: Callable[..., Page],
) -> None:
    olga = page_of("view_job")
    for typed in ("customer+42", "customer_ids:42"):
        text = olga.read(f"{list_url(Job)}?q={typed}")
        assert "Did you mean" not in text
        assert "declares an argument" not in text
    assert "Did you mean key:order-7?" in olga.read(f"{list_url(Job)}?q=keys:order-7")


def test_jobs_are_found_by_their_parent(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    first = noop.enqueue().pk
    ended = noop.using(headers={PARENT: first}).enqueue().pk
    run_jobs()
    live = add.using(headers={PARENT: first, "trace": "7"}).enqueue(1).pk
    noop.using(headers={PARENT: str(first)}).enqueue()
    newest = noop.using(headers={PARENT: live}).enqueue().pk
    assert found(page, f"parent:{first}") == [live, ended]
    assert found(page, f"parent:{first} type:app.add") == found(page, f"parent:{first} first:1")
    assert found(page, f"parent:{first} type:app.add") == [live]
    for none in (newest, 0, -1, "x", 2**63, "9" * 5000, "²"):
        assert found(page, f"parent:{none}") == []
    for _ in range(3):
        noop.enqueue()
    later = noop.using(headers={PARENT: first}).enqueue().pk
    monkeypatch.setattr(children, "NEWEST", 2)
    assert found(page, f"parent:{first}") == [later, live, ended]
    monkeypatch.setattr(children, "NEWEST", 1)
    assert found(page, f"parent:{first}") == [later, ended]
    monkeypatch.setattr(search, "MOST_FOUND", 1)
    _ids, shown = answer(page, f"parent:{first}")
    assert "More match: the newest 1 live, dead and ended ones" in shown
