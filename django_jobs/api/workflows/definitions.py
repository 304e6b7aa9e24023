"""The stored definitions of workflows: one row for each version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from ... import registry
from ...conf import conf
from ...domain.graph import difference
from ...exceptions import WorkflowError
from ...models import WorkflowDefinition, WorkflowRun
from ...models.database import fetch, has_todays_columns

if TYPE_CHECKING:
    from .workflow import Workflow


# The lock lasts as long as the run is not committed, so that no other session takes the version for
# one without runs and changes its graph. A row with another graph is not locked.
LOCK_IF_SAME = """
SELECT id FROM django_jobs_workflowdefinition
WHERE name = %(name)s AND version = %(version)s AND fingerprint = %(fingerprint)s
FOR SHARE
"""

HAS_RUNS = Exists(WorkflowRun.objects.filter(definition=OuterRef("pk")))


def definition_of(workflow: Workflow, *, wait: bool = True) -> int:
    """The id of the row of this version, which is written if it does not exist. Its graph stays
    until the end of the transaction, in which the run has to begin.

    A row without runs is brought up to date. Raises :class:`WorkflowError` if it has runs and
    another graph; also, unless it is to ``wait`` for them, if runs may begin just now.
    """
    version = {"name": workflow.name, "version": workflow.version}
    stored = {"graph": workflow.graph, "fingerprint": workflow.fingerprint}
    for (id_,) in fetch(LOCK_IF_SAME, {**version, "fingerprint": workflow.fingerprint}):
        return int(id_)
    rows = WorkflowDefinition.objects.using(conf().database)
    ours = rows.filter(**version)
    locked = ours.select_for_update(no_key=True, skip_locked=not wait)
    row = locked.first()
    if row is None:
        new = WorkflowDefinition(created_at=Now(), **version, **stored)
        rows.bulk_create([new], ignore_conflicts=True)
        row = locked.first()
    if row is None:
        raise WorkflowError(f"{workflow}: runs with another graph may begin just now")
    # The second statement after the lock sees the runs for whose commit that has waited.
    if row.fingerprint == workflow.fingerprint or ours.filter(~HAS_RUNS).update(**stored):
        return row.pk
    raise WorkflowError(_problem(workflow, row))


def synchronise(alias: str) -> None:
    """Write the definitions of all declared workflows. One that has runs and another graph stays;
    a system check reports it. So does one whose runs begin just now: migrate does not wait for the
    transactions of others."""
    if not has_todays_columns(WorkflowDefinition, alias):
        return  # migrated back to before the table
    for workflow in registry.workflows():
        with suppress(WorkflowError), transaction.atomic(using=conf().database):
            definition_of(workflow, wait=False)


def changed_definitions() -> Iterator[str]:
    """A sentence for each declared workflow whose graph differs from a stored one that has runs."""
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
