"""``manage.py jobstatus``: the queues and the workers at a glance."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError
from django.db import close_old_connections

from ...metrics.snapshot import Snapshot, take_snapshot
from ..base import DATABASE_ERRORS, OperatorCommand, database_problem
from ..glance import glance

CLEAR_SCREEN = "\x1b[2J\x1b[H"


class Command(OperatorCommand):
    """Print the queues, the workers that are alive, and jobs that none of them knows."""

    help = "Show all queues and the workers that are alive."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument(
            "--watch",
            nargs="?",
            const=2.0,
            type=float,
            metavar="SECONDS",
            help="show it again every so many seconds (2) until Ctrl-C",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        seconds = options["watch"]
        if seconds is None:
            self.stdout.write(_text(take_snapshot(), options["json"]))
            return
        if not 0.1 <= seconds <= 86_400:
            raise CommandError(f"--watch takes 0.1 to 86,400 seconds, not {seconds:g}")
        try:
            while True:
                self._show_again(options["json"])
                time.sleep(seconds)
        except KeyboardInterrupt:
            return

    def _show_again(self, as_json: bool) -> None:
        close_old_connections()
        try:
            text = _text(take_snapshot(), as_json)
        except DATABASE_ERRORS as error:
            self.stderr.write(database_problem(error) or str(error))
            return
        if self.stdout.isatty() and not as_json:
            text = CLEAR_SCREEN + text
        self.stdout.write(text)
        self.stdout.flush()


def _text(snapshot: Snapshot, as_json: bool) -> str:
    return json.dumps(asdict(snapshot)) if as_json else glance(snapshot)
