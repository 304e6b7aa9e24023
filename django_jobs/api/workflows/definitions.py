"""The stored definitions of workflows: one row for each version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from ... import registry
from ...conf import conf
from ...domain.graph import difference
from ...exceptions import WorkflowError
from ...models import WorkflowDefinition, WorkflowRun
from ...models.database import has_todays_columns

if TYPE_CHECKING:
    from .workflow import Workflow


HAS_RUNS = Exists(WorkflowRun.objects.filter(definition=OuterRef("pk")))


def definition_of(workflow: Workflow) -> int:
    """The id of the row of this version, which is written if it does not exist.

    A row without runs is brought up to date. Raises :class:`WorkflowError` if it has runs and
    another graph.
    """
    rows = WorkflowDefinition.objects.using(conf().database)
    ours = rows.filter(name=workflow.name, version=workflow.version)
    stored = {"graph": workflow.graph, "fingerprint": workflow.fingerprint}
    row = ours.first()
    if row is None:
        new = WorkflowDefinition(
            name=workflow.name, version=workflow.version, created_at=Now(), **stored
        )
        rows.bulk_create([new], ignore_conflicts=True)
        row = ours.get()
    if row.fingerprint == stored["fingerprint"] or ours.filter(~HAS_RUNS).update(**stored):
        return row.pk
    raise WorkflowError(_problem(workflow, row))


def synchronise(alias: str) -> None:
    """Write the definitions of all declared workflows. One that has runs and another graph stays;
    a system check reports it."""
    if not has_todays_columns(WorkflowDefinition, alias):
        return  # migrated back to before the table
    for workflow in registry.workflows():
        try:
            definition_of(workflow)
        except WorkflowError:
            continue


def changed_definitions() -> Iterator[str]:
    """A sentence for each declared workflow whose graph differs from the stored one that has
    runs."""
    rows = WorkflowDefinition.objects.using(conf().database).filter(HAS_RUNS)
    used = {(row.name, row.version): row for row in rows}
    for workflow in registry.workflows():
        row = used.get((workflow.name, workflow.version))
        if row is not None and row.fingerprint != workflow.fingerprint:
            yield _problem(workflow, row)


def _problem(workflow: Workflow, row: WorkflowDefinition) -> str:
    change = difference(row.graph, workflow.graph)
    return (
        f"{workflow}: its graph has changed and runs have the stored one ({change}); "
        f"declare it as a new version, such as version={workflow.version + 1}"
    )
