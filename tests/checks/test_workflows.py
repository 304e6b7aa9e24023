"""System checks of declared workflows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.core.checks import run_checks

from django_jobs import Workflow, registry
from django_jobs.checks import TAG
from django_jobs.checks.project import check_definitions
from tests.app.jobs import noop


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    registry.forget_workflow("test.flow")


def declare(*names: str, version: int = 1) -> Workflow:
    flow = Workflow("test.flow", version=version)
    for name in names:
        flow.step(noop, name)
    return flow


def problems() -> list[str]:
    found = [message for message in run_checks(tags=[TAG]) if message.id == f"{TAG}.E014"]
    assert all(message.hint for message in found)
    return [message.msg for message in found]


def test_versions_with_different_steps_pass() -> None:
    declare("a")
    declare("a", "b", version=2)
    assert problems() == []


def test_a_module_imported_again_declares_the_same() -> None:
    declare("a")
    declare("a")
    assert problems() == []


def test_a_version_declared_twice_is_reported_with_the_difference() -> None:
    declare("a")
    declare("b")
    assert problems() == [
        "The workflow test.flow v1 is declared twice with different steps (added: b; removed: a)."
    ]


@pytest.mark.django_db
def test_a_changed_graph_with_runs_is_reported_if_the_database_is_checked() -> None:
    flow = declare("a")
    flow.start()
    assert check_definitions(["default"]) == []
    flow.step(noop, "b")
    assert check_definitions(None) == []
    assert check_definitions(["other"]) == []
    (message,) = check_definitions(["default"])
    assert message.id == f"{TAG}.E015"
    assert message.msg == (
        "The workflow test.flow v1: its graph has changed and runs have the stored one (added: b); "
        "declare it as a new version, such as version=2."
    )
