"""The verbs of ``manage.py jobs``: the other commands, and those that have no other name."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import Any

from django.apps import apps
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandError

from ..api.closing import KINDS, demand_known, pause, resume
from ..conf import conf
from ..domain.hints import hint
from ..lifecycle.operations import jobs
from ..lifecycle.pausing import NEWEST_PAUSES
from ..models import Worker
from ..models.database import fetch_named
from ..models.worker import NOT_ENDED
from .base import OperatorCommand, counted, json_text, operator, table, until, whole
from .roles import PREFIX, set_roles


class PauseCommand(OperatorCommand):
    help = "Pause queues, schedules, resources, tenants or job types."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_names(parser)
        parser.add_argument("--reason", default="", help="stored, with your user name")
        parser.add_argument(
            "--until", type=until, metavar="WHEN", help="an ISO date or time, or 2h from now"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        kind, names = options["kind"], dict.fromkeys(options["names"])
        for name in names:  # before any is changed
            demand_known(kind, name)
        for name in names:
            self.stdout.write(f"{name}: {self.change(kind, name, options)}")

    def change(self, kind: str, name: str, options: dict[str, Any]) -> str:
        given = {"reason": options["reason"], "until": options["until"], "by": operator()}
        try:
            is_new = pause(kind, name, **given)
        except ValueError as error:
            raise CommandError(f"--until: {error}") from None
        return "paused. Jobs that run are not affected." if is_new else "already paused."


class PausedCommand(OperatorCommand):
    help = "List what is paused: the newest 1,000 pauses, of all kinds."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON list")

    def handle(self, *args: Any, **options: Any) -> None:
        rows = fetch_named(NEWEST_PAUSES, {})
        if options["json"]:
            self.stdout.write(json_text(rows))
            return
        heads = ("KIND", "NAME", "SINCE", "UNTIL", "BY", "REASON")
        lines = [list(row.values()) for row in rows]
        self.stdout.write(table(heads, lines) if lines else "Nothing is paused.")


class ResumeCommand(PauseCommand):
    help = "Resume what is paused: queues, schedules, resources, tenants or job types."

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_names(parser)

    def change(self, kind: str, name: str, options: dict[str, Any]) -> str:
        return "resumed." if resume(kind, name) else "it was not paused."


class PriorityCommand(OperatorCommand):
    help = "Set the priority of jobs that have not begun. Exits with 1 if any was refused."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("priority", type=whole, metavar="PRIORITY", help="from -100 to 100")
        parser.add_argument("ids", nargs="+", type=whole, metavar="ID", help="ids of jobs")

    def handle(self, *args: Any, **options: Any) -> None:
        priority = options["priority"]
        result = jobs.reprioritize(options["ids"], priority)
        if result.done:
            self.stdout.write(f"The priority of {counted(len(result.done), 'job')} is {priority}.")
        self.report_refused(result, "job")


class DrainCommand(OperatorCommand):
    help = (
        "Ask workers to claim no more jobs, and to exit when theirs have ended. Exits with 1 if "
        "any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "workers", nargs="+", metavar="WORKER", help="ids or names of workers, of jobs status"
        )
        also = parser.add_mutually_exclusive_group()
        also.add_argument(
            "--command", action="store_true", help="all processes of their commands, which exit"
        )
        also.add_argument("--host", action="store_true", help="all commands on their hosts")

    def handle(self, *args: Any, **options: Any) -> None:
        drain = jobs.stop_hosts if options["host"] else jobs.stop_workers
        drain = jobs.stop_commands if options["command"] else drain
        result = drain(_ids_of(options["workers"]), by=operator())
        if result.done:
            done = counted(len(result.done), "worker")
            self.stdout.write(f"Asked {done} to drain, at the next heartbeat.")
        self.report_refused(result, "worker")


class RolesCommand(OperatorCommand):
    help = (
        "Make the groups jobs viewer, jobs operator and jobs admin, or give them the permissions "
        "of this version, as migrate does."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--prefix", default=PREFIX, help="of their names (%(default)r)")

    def handle(self, *args: Any, **options: Any) -> None:
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError("django.contrib.auth is not installed, so there are no groups")
        for change in set_roles(options["prefix"]):
            done = f"{'made, with' if change.is_new else 'has'} {counted(change.has, 'permission')}"
            if not change.is_new and (change.added or change.removed):
                done += f": {change.added} added, {change.removed} removed"
            self.stdout.write(f"{change.group}: {done}.")


def add_names(parser: ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("names", nargs="+", metavar="NAME", help="names of that kind")


def _ids_of(workers: list[str]) -> list[int]:
    """The ids of these workers that have not ended. Raises ``CommandError`` for unknown ones."""
    alive = Worker.objects.using(conf().database).filter(status__in=NOT_ENDED)
    ids: list[int] = []
    for text in dict.fromkeys(workers):
        of_name = list(alive.filter(name=text).order_by("pk").values_list("pk", flat=True))
        if not of_name and not (text.isascii() and text.isdigit() and len(text) < 19):
            raise CommandError(f"no worker is named {text!r}; jobs status lists them")
        ids += of_name or [int(text)]
    return ids


OF_COMMANDS = (
    *("archive", "cancel", "check", "dismiss", "doctor", "import", "inspect", "limit", "prune"),
    *("quarantine", "replay", "schedule", "status", "why", "workflow"),
)
"""The verbs that are commands too: ``jobstatus`` for ``jobs status``."""

OWN: dict[str, type[BaseCommand]] = {
    "drain": DrainCommand,
    "pause": PauseCommand,
    "paused": PausedCommand,
    "priority": PriorityCommand,
    "resume": ResumeCommand,
    "roles": RolesCommand,
}
VERBS = sorted([*OF_COMMANDS, *OWN])
FOREIGN_VERBS = {
    **dict.fromkeys(("worker", "work", "start", "run"), "manage.py jobworker runs jobs"),
    **dict.fromkeys(("retry", "requeue"), "write replay"),
    **dict.fromkeys(("revoke", "abort", "kill"), "write cancel"),
    **dict.fromkeys(("purge", "clear", "cleanup", "delete"), "write prune"),
    **dict.fromkeys(("list", "queues", "workers", "stats"), "write status"),
    **dict.fromkeys(("enqueue", "defer"), "write job_type.enqueue(...) in manage.py shell"),
}
"""Verbs of other job queues, each with what to write here."""


def known_command(text: str) -> str:
    """The verb. Raises ``ArgumentTypeError``, with the one that was probably meant."""
    if text in VERBS:
        return text
    end = hint(text, VERBS, f"known are: {', '.join(VERBS)}")
    if text in FOREIGN_VERBS:
        end = f"; {FOREIGN_VERBS[text]}"
    raise ArgumentTypeError(f"there is no verb {text!r}{end}")


def command_of(verb: str) -> BaseCommand:
    if verb in OWN:
        return OWN[verb]()
    return load_command_class("django_jobs", f"job{verb}")
