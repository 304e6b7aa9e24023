"""The subcommands of jobimport come from the sources of contrib."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from django.core.management import call_command

from django_jobs import contrib
from django_jobs.exceptions import EnqueueError
from tests.commands import refused


def add_options(add: Callable[..., Any]) -> None:
    add("--dry-run", action="store_true", help="write nothing")


def run(options: dict[str, Any]) -> Iterator[str]:
    yield f"dry run: {options['dry_run']}"
    raise EnqueueError("no queue is named 'mail'")


@pytest.fixture(autouse=True)
def _abacus(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("django_jobs.contrib.abacus")
    module.SOURCE = contrib.Source(meaning="import beads", add_options=add_options, run=run)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(contrib.MODULES, "abacus", "abacus")


def test_a_source_is_a_subcommand_with_its_options() -> None:
    assert (
        refused("jobimport", "abacus", "--dry-run", match="no queue is named 'mail'")
        == "dry run: True\n"
    )


def test_help_names_the_sources(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("jobimport", "--help")
    assert "import beads" in capsys.readouterr().out
