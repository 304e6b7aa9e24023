"""The pages of workflows: versions, graph, and the changes between two versions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs.admin.workflows.drawing import TIMES
from django_jobs.domain.graph import GraphStep, StepKind
from django_jobs.domain.workflows import If, When
from django_jobs.models import WorkflowDefinition, WorkflowRun
from tests.admin.test_safety import EVIL
from tests.admin.walking import BROKEN_PAYLOADS, Live, Page, change_url, list_url, listed
from tests.factories import run_sql

from .graphs import definition_of, order
from .test_runs import nodes_of

pytestmark = pytest.mark.django_db


def declared(name: str, *after: str, job_type: str = "app.noop", **options: Any) -> GraphStep:
    edges = dict.fromkeys(after, When.SUCCEEDED)
    return GraphStep(name=name, job_type=job_type, **{"after": edges, **options})


def read(page: Page, row: WorkflowDefinition, query: str = "") -> str:
    return " ".join(page.read(change_url(WorkflowDefinition, row.pk) + query).split())


def three_versions() -> list[WorkflowDefinition]:
    return [
        definition_of("orders", declared("reserve"), declared("ship", "reserve")),
        definition_of("orders", declared("reserve"), declared("mail", "reserve"), version=2),
        definition_of(
            "orders",
            declared("reserve", details={"api_key": "s3cret"}),
            declared("pack"),
            declared("mail", "pack", job_type="app.add"),
            version=3,
        ),
    ]


def test_the_list_has_each_version_and_the_number_of_its_runs(page: Page) -> None:
    first, *_others = three_versions()
    definition_of("media")
    order(definition=first)
    text = page.read(list_url(WorkflowDefinition))
    cells = re.findall(r'field-(?:workflow_name|number)">(?:<a.*?>)?(.+?)(?:</a>)?</t', text)
    assert cells == ["media", "v1", "orders", "v3", "orders", "v2", "orders", "v1"]
    assert f'?definition__id__exact={first.pk}">1</a>' in text
    narrowed = page.read(list_url(WorkflowDefinition) + "?name=media")
    assert 'field-workflow_name"><a href' in narrowed
    assert ">v3<" not in narrowed


def test_the_runs_of_a_version_are_listed(page: Page) -> None:
    first, second, _third = three_versions()
    run, _other = order(definition=first), order(definition=second)
    assert listed(page, WorkflowRun, definition__id__exact=first.pk) == [run.pk]


def test_the_graph_is_drawn_from_the_definition(page: Page) -> None:
    row = definition_of(
        "orders",
        declared("charge", compensate="app.add"),
        declared("approval", "charge", job_type="", kind=StepKind.WAIT),
        declared("cool", "charge", job_type="", kind=StepKind.SLEEP),
        declared("ship", "approval", "cool", takes={"receipt": "charge"}),
        declared("sorry", after={"ship": When.FAILED}),
        declared("review", after={"ship": If("score", at_most=3)}),
    )
    assert nodes_of(page.text(change_url(WorkflowDefinition, row.pk))) == {
        "charge": "jobs-node jobs-declared",
        "approval": "jobs-node jobs-waiting",
        "cool": "jobs-node jobs-scheduled",
        "ship": "jobs-node jobs-declared",
        "sorry": "jobs-node jobs-declared",
        "review": "jobs-node jobs-declared",
    }
    text = read(page, row)
    for words in (
        "undone by app.add",
        "waits for a signal",
        "lets time pass",
        "receipt: charge",
        "ship (failed)",
        'text-anchor="middle">failed</text>',
        "ship (score ≤ 3)",
        'text-anchor="middle">score ≤ 3</text>',
    ):
        assert words in text


def test_a_step_without_a_handler_is_marked(page: Page) -> None:
    row = definition_of("orders", declared("old", job_type="app.removed"), declared("new", "old"))
    text = page.text(change_url(WorkflowDefinition, row.pk))
    assert nodes_of(text)["old"] == "jobs-node jobs-gone"
    assert "app.removed" in text
    assert "</span>no handler is registered</span>" in text


def test_a_version_is_compared_with_the_one_before(page: Page) -> None:
    first, second, third = three_versions()
    text = read(page, third)
    assert "Changes from version 2" in text
    assert "Added: pack" in text
    assert "Removed:" not in text
    rows = re.findall(r'<th scope="row">(\w+)</th> <td>(\w+)</td>', text)
    assert rows == [("reserve", "api_key"), ("mail", "after"), ("mail", "job_type")]
    assert '{"reserve": "succeeded"}' in text
    assert "s3cret" not in text
    assert nodes_of(page.text(change_url(WorkflowDefinition, third.pk)))["pack"] == (
        "jobs-node jobs-added"
    )
    assert "Removed: ship" in read(page, second)
    assert "Changes from" not in read(page, first)


def test_a_change_of_the_whole_graph_is_named(page: Page) -> None:
    definition_of("orders", declared("reserve"))
    row = definition_of("orders", declared("reserve"), version=2)
    row.graph["on_failure"] = "cancel"
    row.save()
    text = read(page, row)
    assert "The graphs are equal" not in text
    assert re.findall(r"<td>on_failure</td> <td.*?>(.*?)</td> <td.*?>(.*?)</td>", text) == [
        ("-", '"cancel"')
    ]


def test_any_two_versions_are_compared(page: Page) -> None:
    first, _second, third = three_versions()
    text = read(page, third, "?compare=1")
    assert "Changes from version 1" in text
    assert "Removed: ship" in text
    assert f"{change_url(WorkflowDefinition, third.pk)}?compare=1" in text
    assert "Changes from version 3" in read(page, first, "?compare=3")
    for wrong in ("3", "9", "x", "9" * 30):
        assert read(page, third, f"?compare={wrong}")


def test_versions_with_the_same_graph_are_said_to_be_equal(page: Page) -> None:
    definition_of("orders", declared("reserve"))
    assert "The graphs are equal." in read(
        page, definition_of("orders", declared("reserve"), version=2)
    )


def test_a_large_graph_folds(page: Page) -> None:
    parts = [declared(f"part {number}", "begin") for number in range(500)]
    row = definition_of("media", declared("begin", job_type="app.add"), *parts)
    assert list(nodes_of(page.text(change_url(WorkflowDefinition, row.pk)))) == [
        "begin",
        f"app.noop {TIMES} 500",
    ]


@pytest.mark.parametrize(
    "graph",
    [
        *BROKEN_PAYLOADS.values(),
        "[]",
        '{"steps": {}}',
        '{"steps": [1, {"name": 2}, {"name": "a", "after": [1], "kind": "odd"}]}',
        '{"steps": [{"name": "a", "after": {"b": "succeeded"}}, {"name": "b", "after": {"a": 1}}]}',
        '{"steps": [{"name": "a", "after": {"gone": "succeeded"}}]}',
    ],
)
def test_an_odd_graph_does_not_break_the_page(page: Page, graph: str) -> None:
    row = definition_of("orders", declared("reserve"))
    newer = definition_of("orders", declared("reserve"), version=2)
    run_sql("UPDATE django_jobs_workflowdefinition SET graph = %s WHERE id = %s", [graph, row.pk])
    page.text(list_url(WorkflowDefinition))
    page.text(change_url(WorkflowDefinition, row.pk))
    page.text(change_url(WorkflowDefinition, newer.pk))


def test_markup_in_a_definition_is_shown_and_not_run(page: Page) -> None:
    definition_of(EVIL, declared(EVIL, takes={EVIL: EVIL}))
    row = definition_of(
        EVIL, declared(EVIL, job_type=EVIL, compensate=EVIL), declared("a", EVIL), version=2
    )
    for url in (list_url(WorkflowDefinition), change_url(WorkflowDefinition, row.pk)):
        text = page.text(url)
        assert Live(text).alarms == []
        assert "&lt;script&gt;alert(1)" in text


def test_definitions_need_a_permission(page_of: Callable[..., Page]) -> None:
    row = definition_of("orders", declared("reserve"))
    url = change_url(WorkflowDefinition, row.pk)
    page_of("view_workflowdefinition").text(url)
    page_of("view_workflowrun", name="otto").text(url)
    page_of("view_job", name="ivy").text(url, status=403)
