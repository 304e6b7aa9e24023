"""``manage.py jobstatus``: the state of queues, workers and schedules."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError
from django.db import close_old_connections

from ...metrics.schedules import MAX_LAG
from ...metrics.snapshot import Snapshot, take_snapshot
from ...models.database import DATABASE_ERRORS
from ..base import OperatorCommand, database_problem, json_text
from ..reports import cost_text, sizing_text
from ..status_check import NOT_CHECKED, demand, of_the_fleet
from ..status_text import render_status

CLEAR_SCREEN = "\x1b[2J\x1b[H"


class Command(OperatorCommand):
    help = (
        "Show all queues, the live workers and the state of the schedules. With --check, exit with "
        "1 if there is a problem."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("--json", action="store_true", help="print one JSON object")
        add(
            "--watch",
            nargs="?",
            const=2.0,
            type=float,
            metavar="SECONDS",
            help="repeat every SECONDS (2) until Ctrl-C",
        )
        add(
            "--check",
            nargs="?",
            const=True,
            default=False,
            metavar="CONDITIONS",
            help="print the problems, or which of conditions such as age<60,dead=0 are false",
        )
        add(
            "--max-lag",
            type=float,
            metavar="SECONDS",
            help=f"with --check: seconds that a schedule may be late or unchecked ({MAX_LAG:g})",
        )
        add(
            "--sizing",
            action="store_true",
            help="print how many threads and async slots each queue needs, by its last runs",
        )
        add("--cost", action="store_true", help="print which job types used most in the last hour")

    def handle(self, *args: Any, **options: Any) -> None:
        seconds = options["watch"]
        if options["sizing"] or options["cost"]:
            self._show_load(options)
            return
        if options["check"] is not False or options["max_lag"] is not None:
            demand(**options)
            self.stdout.write("OK")
            return
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

    def _show_load(self, options: dict[str, Any]) -> None:
        if (options["sizing"] and options["cost"]) or any(
            options[name] not in (None, False) for name in ("check", "max_lag", "watch")
        ):
            raise CommandError(
                "--sizing and --cost can only be combined with --json",
                returncode=NOT_CHECKED if isinstance(options["check"], str) else 1,
            )
        shown = sizing_text if options["sizing"] else cost_text
        self.stdout.write(shown(options["json"]))

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
    if as_json:
        return json_text(asdict(snapshot) | of_the_fleet(snapshot))
    return render_status(snapshot)
