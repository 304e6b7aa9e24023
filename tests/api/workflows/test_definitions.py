"""The stored versions of workflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from django_jobs import WorkflowError
from django_jobs.api.workflows.definitions import synchronise
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.apps import take_over
from django_jobs.domain.graph import fingerprint
from django_jobs.models import WorkflowDefinition
from tests.app.jobs import noop

pytestmark = pytest.mark.django_db

Declare = Callable[..., Workflow]


def stored() -> list[tuple[str, int, str]]:
    rows = WorkflowDefinition.objects.order_by("name", "version")
    return [(row.name, row.version, row.fingerprint) for row in rows]


def test_the_first_start_stores_the_graph(workflow: Declare) -> None:
    flow = workflow(version=3)
    flow.step(noop)
    first, second = flow.start(), flow.start()
    definition = first.definition
    assert definition is not None
    assert definition == second.definition
    assert (definition.name, definition.version) == ("test.flow", 3)
    assert definition.graph == flow.graph
    assert definition.created_at is not None
    assert stored() == [("test.flow", 3, fingerprint(flow.graph))]


def test_runs_of_several_versions_keep_theirs(workflow: Declare) -> None:
    old, new = workflow(version=1), workflow(version=2)
    old.step(noop)
    new.step(noop, "other")
    versions = [flow.start().definition for flow in (old, new)]
    assert [one and one.version for one in versions] == [1, 2]
    assert [one and one.graph["steps"][0]["name"] for one in versions] == ["noop", "other"]


def test_a_changed_graph_of_a_version_with_runs_is_refused(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop)
    flow.start()
    flow.step(noop, "second", after="noop")
    with pytest.raises(WorkflowError) as caught:
        flow.start()
    assert str(caught.value) == (
        "workflow test.flow v1: its graph has changed and runs have the stored one (added: "
        "second); declare it as a new version, such as version=2"
    )
    assert WorkflowDefinition.objects.get().graph["steps"][0]["name"] == "noop"


def test_a_version_without_runs_may_change(workflow: Declare) -> None:
    flow = workflow()
    flow.step(noop)
    take_over(using="default")
    before = stored()
    flow.step(noop, "second", after="noop")
    take_over(using="default")
    assert stored() == [("test.flow", 1, fingerprint(flow.graph))]
    assert stored() != before


def test_migrate_stores_all_versions_and_leaves_those_with_runs(workflow: Declare) -> None:
    used, unused = workflow("test.a"), workflow("test.b", version=2)
    used.step(noop)
    unused.step(noop)
    used.start()
    used.step(noop, "second")
    before = used.graph
    synchronise("default")
    assert [(name, version) for name, version, _ in stored()] == [("test.a", 1), ("test.b", 2)]
    assert WorkflowDefinition.objects.get(name="test.a").graph != before
