"""System checks of declared workflows.

E014 a version is declared twice with different graphs
E015 the graph of a version that has runs was changed (database check)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from .. import registry
from ..api.workflows.definitions import changed_definitions
from ..conf import conf
from ..domain.graph import difference
from ..models import WorkflowDefinition
from ..models.database import has_todays_columns
from .settings import TAG, check_settings, temporary_cursor


@register(TAG)
def check_workflows(**kwargs: Any) -> list[CheckMessage]:
    """Check that no version of a workflow is declared twice with different graphs."""
    return [
        Error(
            f"The {first} is declared twice with different steps ({change}).",
            hint="Give one of them another version.",
            id=f"{TAG}.E014",
        )
        for first, copy in registry.workflow_copies()
        if (change := difference(first.graph, copy.graph))
    ]


@register(Tags.database)
def check_definitions(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the graph of a version that has runs is still the stored one."""
    if not databases or any(message.is_serious() for message in check_settings()):
        return []
    alias = conf().database
    if alias not in databases or not registry.workflows():
        return []
    with temporary_cursor(alias):
        if not has_todays_columns(WorkflowDefinition, alias):
            return []
        return [
            Error(
                f"The {problem}.",
                hint="Runs keep the version with which they started; a new version may stand "
                "next to the old one until its runs have ended.",
                id=f"{TAG}.E015",
            )
            for problem in changed_definitions()
        ]
