"""``manage.py jobreplay``: send dead jobs back to their queues."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...api import replay_problem
from ...lifecycle.operations.jobs import OperationResult, replay
from ..base import OperatorCommand
from ..dead_jobs import add_selectors, operate


class Command(OperatorCommand):
    """Replay dead jobs, chosen by id or by a filter."""

    help = (
        "Send dead jobs back to their queue with their counters at zero; their runs are kept. "
        "Exits with 1 if any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_selectors(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        operate(self, _replay, options, ("replay", "Replayed"))


def _replay(ids: list[int], by: str, reason: str) -> OperationResult:
    return replay(ids, check=replay_problem, by=by, reason=reason)
