"""``manage.py jobdismiss``: cancel dead jobs that nobody will replay."""

from __future__ import annotations

from typing import Any

from ...lifecycle.operations.dead_letters import dismiss
from ..dead_jobs import DeadJobsCommand


class Command(DeadJobsCommand):
    help = (
        "Cancel dead jobs that nobody will replay. They are kept with their runs as long as other "
        "cancelled jobs. Exits with 1 if any was refused."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        self.operate(dismiss, options, ("dismiss", "Dismissed"))
