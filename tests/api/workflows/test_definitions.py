"""The stored versions of workflows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import transaction
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import WorkflowError
from django_jobs.api.workflows.definitions import (
    changed_definitions,
    definition_of,
    synchronise,
)
from django_jobs.api.workflows.workflow import Workflow
from django_jobs.apps import take_over
from django_jobs.domain.graph import fingerprint
from django_jobs.models import WorkflowDefinition, WorkflowRun
from tests.app.jobs import noop
from tests.lifecycle.workflows.test_restarting_races import Aside

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


def old_and_new(workflow: Declare) -> tuple[Workflow, Workflow]:
    """The graph of the old code, which is stored, and that of a deployment, which is declared."""
    new, old = workflow(), workflow()
    old.step(noop)
    new.step(noop, "other")
    with transaction.atomic():
        definition_of(old)
    return old, new


@pytest.mark.django_db(transaction=True)
def test_migrate_leaves_the_graph_of_a_run_that_is_not_committed_yet(workflow: Declare) -> None:
    """And it does not wait for it."""
    old, _ = old_and_new(workflow)
    migrate = Aside()
    with transaction.atomic():
        run = old.start()
        migrate.do(lambda: synchronise("default"))
        migrate.end()
    definition = WorkflowDefinition.objects.get()
    assert (definition.graph, definition.fingerprint) == (old.graph, old.fingerprint)
    assert definition == run.definition
    assert len(list(changed_definitions())) == 1


@pytest.mark.django_db(transaction=True)
def test_a_start_of_new_code_waits_for_a_run_of_the_old_graph_and_is_refused(
    workflow: Declare,
) -> None:
    old, new = old_and_new(workflow)
    refused, deployed = [], Aside()

    def start_new() -> None:
        try:
            new.start()
        except WorkflowError as error:
            refused.append(str(error))

    with transaction.atomic():
        old.start()
        deployed.do(start_new)
        assert refused == []
    deployed.end()
    (problem,) = refused
    assert "its graph has changed and runs have the stored one" in problem
    assert WorkflowDefinition.objects.get().graph == old.graph
    assert WorkflowRun.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_start_of_old_code_waits_for_the_new_graph(workflow: Declare) -> None:
    """No run has the new one yet, so the old code writes its own."""
    old, new = old_and_new(workflow)
    deployed = Aside()
    with transaction.atomic():
        definition_of(new)
        deployed.do(old.start)
        assert not WorkflowRun.objects.exists()
    deployed.end()
    assert WorkflowRun.objects.get().definition == WorkflowDefinition.objects.get()
    assert WorkflowDefinition.objects.get().graph == old.graph


def test_the_lock_of_a_definition_takes_no_further_statement(
    workflow: Declare, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    flow = workflow()
    flow.step(noop)
    flow.start()
    with django_assert_num_queries(7):  # a savepoint, the definition, the run, ids, COPY, the run
        flow.start()
