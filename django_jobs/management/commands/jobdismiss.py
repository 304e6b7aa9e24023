"""``manage.py jobdismiss``: cancel dead jobs that nobody will replay."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from ...lifecycle.operations.dead_letters import dismiss
from ..base import OperatorCommand
from ..dead_jobs import add_selectors, operate


class Command(OperatorCommand):
    help = (
        "Cancel dead jobs that nobody will replay. They are kept with their runs as long as other "
        "cancelled jobs. Exits with 1 if any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_selectors(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        operate(self, dismiss, options, ("dismiss", "Dismissed"))
