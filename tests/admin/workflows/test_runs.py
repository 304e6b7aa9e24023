"""The pages of runs: the list, the graph, the table of steps."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from datetime import timedelta
from xml.etree import ElementTree

import pytest
from django.utils import timezone
from django.utils.http import urlencode

from django_jobs.admin.workflows.drawing import TIMES
from django_jobs.models import Dependency, Job, Receipt, WorkflowRun
from tests.admin.test_safety import EVIL
from tests.admin.walking import (
    BROKEN_PAYLOADS,
    UNSHOWN,
    Live,
    Page,
    change_url,
    list_url,
    listed,
    statements_of,
)
from tests.factories import run_sql
from tests.workflows import start_graph

from .graphs import definition_of, images, order, run_of, step

pytestmark = pytest.mark.django_db

SVG = "{http://www.w3.org/2000/svg}"


def drawing_of(text: str) -> ElementTree.Element:
    """The picture of a page. It is XML, so that all of its text is escaped."""
    (svg,) = re.findall(r"<svg class=\"jobs-drawing\".*?</svg>", text, re.DOTALL)
    return ElementTree.fromstring(svg)


def nodes_of(text: str) -> dict[str, str]:
    """The class of each node of the picture, by its name."""
    return {
        str(node.findtext(f"{SVG}text[@class='jobs-name']")): node.get("class", "")
        for node in drawing_of(text).iter(f"{SVG}g")
    }


def rows_of(text: str) -> list[list[str]]:
    """The cells of the table of steps as a person reads them."""
    (table,) = re.findall(r"<table class=\"[^\"]*jobs-steps\">.*?</table>", text, re.DOTALL)
    return [
        [" ".join(re.sub(r"<.*?>", " ", cell).split()) for cell in cells]
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        if (cells := re.findall(r"<t[hd] (?:scope=\"row\"|class).*?</t[hd]>|<td>.*?</td>", row))
    ]


def test_the_list_shows_the_state_and_the_progress_of_each_run(page: Page) -> None:
    order(definition=definition_of("orders.fulfil", version=3))
    images(5, status="failed", reason="part 0 failed")
    text = page.read(list_url(WorkflowRun))
    assert ">orders.fulfil v3<" in text
    assert ">media.publish_all<" in text
    assert ">3 of 5<" in text
    assert "part 0 failed" in text
    assert "</span>failed</span>" in text


def test_the_progress_of_a_large_run_is_counted_up_to_a_limit(page: Page) -> None:
    images(1_010)
    assert ">4 of 1,000+ left<" in page.read(list_url(WorkflowRun))
    run_sql(
        "UPDATE django_jobs_job SET status = 'cancelled', finished_at = clock_timestamp()"
        " WHERE finished_at IS NULL"
    )
    assert ">all of 1,000+<" in page.read(list_url(WorkflowRun))


def test_the_page_of_a_run_refreshes_itself_until_it_has_ended(page: Page) -> None:
    run, large = images(3), images(1_010)
    text = page.text(change_url(WorkflowRun, run.pk))
    live = text.index("data-live-region")
    assert live < text.index("jobs-overall") < text.index("jobs-drawing")
    assert 'data-refresh="5"' in text[:live]
    assert "django_jobs/refresh.js" in text
    assert 'data-refresh="30"' in page.text(change_url(WorkflowRun, large.pk))
    WorkflowRun.objects.filter(pk=run.pk).update(status="failed", finished_at=run.started_at)
    assert "data-refresh=" not in page.text(change_url(WorkflowRun, run.pk))


def test_the_list_is_filtered_by_status_and_name(page: Page) -> None:
    definition_of("orders.fulfil")
    first, second = order(), images(3, status="failed")
    assert listed(page, WorkflowRun, status="failed") == [second.pk]
    assert listed(page, WorkflowRun, name="orders.fulfil") == [first.pk]
    assert listed(page, WorkflowRun, q=f"#{first.pk}") == [first.pk]
    assert listed(page, WorkflowRun, q="orders") == listed(page, WorkflowRun, q="9" * 30) == []
    assert page.client.get(list_url(WorkflowRun) + "?payload__a=1").status_code == 400


def test_each_step_is_drawn_in_its_state(page: Page) -> None:
    text = page.text(change_url(WorkflowRun, order().pk))
    assert nodes_of(text) == {
        "reserve_stock": "jobs-node jobs-succeeded",
        "charge_card": "jobs-node jobs-dead",
        "ship_order": "jobs-node jobs-skipped",
        "apologise": "jobs-node jobs-running",
        "close": "jobs-node jobs-waiting",
    }


def test_a_node_has_its_state_as_a_sign_and_a_word_and_a_link_to_its_job(page: Page) -> None:
    run = order()
    text = page.text(change_url(WorkflowRun, run.pk))
    job = Job.objects.get(workflow_run=run, step="charge_card")
    (anchor,) = (
        one
        for one in drawing_of(text).iter(f"{SVG}a")
        if one.get("href") == change_url(Job, job.pk)
    )
    assert [one.text for one in anchor.iter(f"{SVG}text")] == [
        "✖",
        "charge_card",
        "dead · 1 min",
        f"attempt 5 · #{job.pk}",
    ]


def test_edges_show_their_condition_and_what_is_skipped(page: Page) -> None:
    drawing = drawing_of(page.text(change_url(WorkflowRun, order().pk)))
    classes = sorted(one.get("class", "") for one in drawing.iter(f"{SVG}path"))
    assert classes == [
        "jobs-arrow",
        "jobs-edge jobs-edge-broken",
        "jobs-edge jobs-edge-met",
        "jobs-edge jobs-edge-met",
        "jobs-edge jobs-edge-met",
        "jobs-edge jobs-edge-open",
    ]
    labels = drawing.iter(f"{SVG}text")
    found = [one.text for one in labels if one.get("class") == "jobs-edge-label"]
    assert sorted(map(str, found)) == ["failed", "finished", "finished"]


def test_steps_are_drawn_below_the_one_that_spawned_them(page: Page) -> None:
    run = run_of({"split": step("succeeded"), **{f"part[{n}]": step("ready") for n in range(3)}})
    ids = dict(run.steps.values_list("step", "pk"))
    Receipt.objects.create(
        job_id=ids["split"],
        key="spawn:part",
        attempt=1,
        answer={"ids": [[ids["part[0]"], ids["part[1]"]], [ids["part[2]"]] * 2]},
        made_at=run.started_at,
    )
    drawing = drawing_of(page.text(change_url(WorkflowRun, run.pk)))
    classes = [one.get("class", "") for one in drawing.iter(f"{SVG}path")]
    assert classes.count("jobs-edge jobs-edge-met") == 3
    assert page.text(change_url(WorkflowRun, run.pk)).count("split (spawned)") == 3


def test_a_retry_is_offered_once_a_step_has_failed(page: Page) -> None:
    label = "Retry from the failed steps"
    waiting = run_of({"first": step("succeeded"), "second": step("waiting", "first")})
    assert label not in page.text(change_url(WorkflowRun, waiting.pk))
    failing = run_of({"first": step("dead"), "second": step("running")})
    assert label in page.text(change_url(WorkflowRun, failing.pk))


def test_the_picture_has_a_title_and_the_same_facts_in_a_table(page: Page) -> None:
    run = order()
    text = page.text(change_url(WorkflowRun, run.pk))
    drawing = drawing_of(text)
    assert drawing.get("role") == "group"
    ids = (drawing.get("aria-labelledby") or "").split()
    named = {one.get("id"): one.text for one in drawing}
    assert [named[id_] for id_ in ids] == [
        f"orders.fulfil #{run.pk}",
        "The same facts are in the table below.",
    ]
    assert all(one.get("tabindex") == "-1" for one in drawing.iter(f"{SVG}a"))
    rows = {row[0]: row[1:] for row in rows_of(text)}
    assert rows["charge_card shop.charge_card"][:3] == [
        "✖ dead · 1 min failed 5 times of 5",
        "reserve_stock",
        "5",
    ]
    assert rows["apologise shop.apologise"][1] == "charge_card (failed)"
    assert rows["close shop.close_order"][1] == "ship_order (finished), apologise (finished)"
    assert len(rows) == 5


def test_500_alike_steps_are_one_node_with_the_number_in_each_state(page: Page) -> None:
    run = images()
    text = page.text(change_url(WorkflowRun, run.pk))
    assert nodes_of(text) == {
        "list_images": "jobs-node jobs-succeeded",
        f"media.resize {TIMES} 500": "jobs-node jobs-dead",
        "publish": "jobs-node jobs-waiting",
    }
    rows = {row[0]: row[1:] for row in rows_of(text)}
    states = rows[f"media.resize {TIMES} 500 media.resize"][0]
    assert states == "✖ 1 dead ▶ 2 running ○ 1 ready ✔ 496 succeeded"
    assert "498 of 502 steps ended" in " ".join(text.split())
    link = list_url(Job) + f"?workflow_run={run.pk}&amp;job_type=media.resize&amp;status=dead"
    assert link in text


def test_the_steps_of_a_folded_node_are_listed(page: Page) -> None:
    run, _other = images(20), images(20)

    def found(query: str) -> int:
        response = page.client.get(f"{list_url(Job)}?{query}")
        return int(response.context["cl"].result_count)

    chosen = f"workflow_run={run.pk}&job_type=media.resize"
    assert found(chosen) == 20
    assert found(f"{chosen}&status=dead") == 1
    assert found(f"{chosen}&status=succeeded") == 16
    assert found(f"workflow_run={'9' * 30}") == found("workflow_run=x") == 0


@pytest.mark.usefixtures("no_time_limit")
def test_the_page_takes_the_same_queries_for_any_number_of_steps(page: Page) -> None:
    small, large = (change_url(WorkflowRun, images(number).pk) for number in (2, 300))
    page.text(small)
    assert len(statements_of(page, small)) == len(statements_of(page, large)) < 12


def test_a_step_that_waits_for_a_signal_or_a_time_says_so(page: Page) -> None:
    run = run_of({"approval": step("waiting", awaits="approved"), "pause": step("scheduled")})
    text = page.read(change_url(WorkflowRun, run.pk))
    assert "waits for approved" in text
    assert "scheduled · in 14 min" in text


def test_a_run_that_is_too_large_is_drawn_in_part_and_counted_whole(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobs.admin.workflows.steps.MOST_STEPS", 5)
    text = " ".join(page.read(change_url(WorkflowRun, images(20).pk)).split())
    assert "Only the first 5 steps are shown here." in text
    assert "18 of 22 steps ended" in text
    assert "All steps by job type" in text
    assert len(nodes_of(page.text(change_url(WorkflowRun, WorkflowRun.objects.get().pk)))) == 5


def test_a_circle_of_rows_does_not_break_the_page(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    ids = dict(Job.objects.filter(workflow_run=run).values_list("step", "pk"))
    Dependency.objects.create(
        workflow_run=run, parent_id=ids["b"], child_id=ids["a"], when="succeeded"
    )
    text = page.read(change_url(WorkflowRun, run.pk))
    assert "It cannot be drawn: the graph has a circle." in text


def test_markup_in_a_run_is_shown_and_not_run(page: Page) -> None:
    run = run_of(
        {
            EVIL: step("dead", job_type=EVIL, reason=EVIL),
            "b": step("waiting", EVIL, awaits=EVIL, job_type=EVIL),
        },
        name=EVIL,
        reason=EVIL,
        payload={"note": EVIL},
    )
    for url in (list_url(WorkflowRun), change_url(WorkflowRun, run.pk)):
        text = page.text(url)
        assert Live(text).alarms == []
        assert "&lt;script&gt;alert(1)" in text


def test_the_payload_is_masked_and_needs_its_own_permission(
    page: Page, page_of: Callable[..., Page]
) -> None:
    run = order(payload={"order": 987654321, "card_token": "s3cret"})
    seen = page.read(change_url(WorkflowRun, run.pk))
    assert "987654321" in seen
    assert "s3cret" not in seen
    hidden = page_of("view_workflowrun").read(change_url(WorkflowRun, run.pk))
    assert "987654321" not in hidden
    assert "Hidden: requires the permission" in hidden
    page_of("view_job", name="otto").text(list_url(WorkflowRun), status=403)


@pytest.mark.parametrize("payload", BROKEN_PAYLOADS.values(), ids=BROKEN_PAYLOADS.keys())
def test_a_payload_that_cannot_be_read_breaks_nothing(page: Page, payload: str) -> None:
    run = order()
    run_sql("UPDATE django_jobs_workflowrun SET payload = %s, compensations = %s", [payload] * 2)
    page.text(list_url(WorkflowRun))
    assert UNSHOWN.search(page.read(change_url(WorkflowRun, run.pk)))


@pytest.mark.parametrize("query", ["order-7", "name:orders", "#1 status:failed"])
def test_a_search_for_anything_but_ids_says_what_can_be_searched(page: Page, query: str) -> None:
    run = order()
    address = f"?{urlencode({'q': query})}"
    text = page.read(list_url(WorkflowRun) + address)
    assert f"Not understood: {query.removeprefix('#1 ')}. A search has ids of workflow run" in text
    assert "0 workflow runs" in text
    asked = page.ask(WorkflowRun, "cancel_workflow_runs", 0, query=address, select_across=1)
    assert "Not understood: " in asked.content.decode()
    assert change_url(WorkflowRun, run.pk) in page.read(f"{list_url(WorkflowRun)}?q=%23{run.pk}")


def test_the_compensations_are_listed_without_their_payloads(page: Page) -> None:
    run = order(
        compensations=[
            {
                "undoes": "charge_card",
                "name": "refund_card",
                "new": {"job_type": "shop.refund"},
                "payload": '{"card_token": "s3cret"}',
            },
            "odd",
        ]
    )
    text = page.read(change_url(WorkflowRun, run.pk))
    assert "refund_card" in text
    assert "shop.refund" in text
    assert "s3cret" not in text


def region_of(text: str) -> str:
    """The part of a run's page that refreshes."""
    return text.split('<div data-live-region aria-live="off">', 1)[1]


def test_a_run_says_what_failed_what_runs_and_what_it_waits_for(page: Page) -> None:
    later = timezone.now() + timedelta(minutes=9, seconds=30)
    run = run_of({
        "reserve": step("dead"),
        "charge": step("running"),
        "approval": step("waiting", awaits="approved <b>"),
        "ship": step("scheduled", available_at=later),
        "apologise": step("waiting", "ship"),
    })  # fmt: skip
    text = region_of(page.text(change_url(WorkflowRun, run.pk)))
    assert Live(text).alarms == []
    facts = text.split('<dl class="jobs-now-facts">', 1)[1].split("</dl>", 1)[0]
    plain = " ".join(html.unescape(re.sub(r"<.*?>", " ", facts)).split())
    assert re.fullmatch(
        r"Failed reserve Running now charge \( ?4 min( \d+ s)?\) "
        r"Waits for a signal approval \(approved <b>\) "
        r"Due later ship \( in 9 min( \d+ s)? \)",
        plain,
    )
    dead = Job.objects.get(step="reserve")
    assert f'<a href="{change_url(Job, dead.pk)}">reserve</a>' in facts


def test_the_first_steps_are_named_and_the_others_counted(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of({f"part{number}": step("running") for number in range(9)})
    text = page.text(change_url(WorkflowRun, run.pk))
    assert "and 4 more" in text
    assert text.count(">part4</a> (") == 1
    assert ">part5</a> (" not in text
    monkeypatch.setattr("django_jobs.admin.workflows.steps.MOST_STEPS", 8)
    assert "and 3+ more" in page.text(change_url(WorkflowRun, run.pk))


def test_a_run_that_ended_well_has_no_such_facts_and_shows_no_empty_field(page: Page) -> None:
    ended = run_of({"reserve": step("succeeded")}, status="succeeded", ends_left=0)
    text = page.text(change_url(WorkflowRun, ended.pk))
    for absent in ("jobs-now-facts", "Tenant:", "Idempotency key:", "Cancel requested:", "Reason:"):
        assert absent not in text
    failed = run_of({"reserve": step("dead")}, tenant="acme", idempotency_key="k", reason="no")
    text = page.text(change_url(WorkflowRun, failed.pk))
    for shown in ("Tenant:", "Idempotency key:", "Reason:"):
        assert shown in text


def test_steps_are_named_without_links_for_those_who_may_not_view_jobs(
    page_of: Callable[..., Page],
) -> None:
    run = run_of({"reserve": step("running")})
    text = page_of("view_workflowrun").text(change_url(WorkflowRun, run.pk))
    assert "<dd>reserve (4 min" in text
