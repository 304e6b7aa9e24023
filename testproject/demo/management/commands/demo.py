"""See django_jobs at work."""

from __future__ import annotations

import argparse
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from testproject.demo import work
from testproject.demo.live import run_live
from testproject.demo.once import run_once
from testproject.demo.running import DemoError, StopAsked


class Command(BaseCommand):
    """``manage.py demo``"""

    help = (
        "Start a database (DATABASE_URL, or an embedded PostgreSQL), the admin and a worker with "
        "real work. Earlier runs of the demo are forgotten. Ctrl-C stops all of it."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--once",
            action="store_true",
            help="Do the work once, check it, print a summary; exit 0 if all is right, else 1.",
        )
        parser.add_argument(
            "--port",
            type=int,
            default=8000,
            help="Port of the web server on 127.0.0.1; the next free one if in use. 0: any.",
        )
        parser.add_argument(
            "--time-limit", type=float, default=120.0, help="Seconds that --once may take."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with StopAsked() as stop:
            try:
                call_command("migrate", verbosity=0, interactive=False)
                if not work.take_database():
                    raise DemoError("another demo runs on this database; stop it first")
                work.forget_earlier_runs()
                if options["once"]:
                    if not run_once(self._say, stop, options["time_limit"]):
                        raise DemoError("not all is right; see above")
                else:
                    run_live(self._say, stop, options["port"])
            except DemoError as error:
                raise CommandError(str(error)) from None

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()
