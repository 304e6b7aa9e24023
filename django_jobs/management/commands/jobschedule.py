"""``manage.py jobschedule``: list, run, pause, resume and backfill schedules; make exceptions."""

from __future__ import annotations

from argparse import ArgumentParser

from ...domain.cron import DST_POLICIES
from .. import schedules
from ..base import ActionCommand, AddArgument, AddSubcommand, subcommands_of, whole


class Command(ActionCommand):
    help = "Show when schedules are due; run, pause, resume, skip, move or backfill them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        action = subcommands_of(parser)
        _add_views(action)
        for name, does, meaning in (
            ("run", schedules.run, "make one job of each schedule now"),
            ("pause", schedules.pause, "pause schedules until they are resumed"),
            ("resume", schedules.resume, "resume schedules, from now on"),
        ):
            add = action(name, does, meaning)
            add("names", nargs="+", metavar="NAME", help="names of schedules")
            if name == "pause":
                add("--reason", default="", help="stored with the schedule, with your user name")
        _add_exceptions(action)
        _add_backfill(action("backfill", schedules.backfill, "make the jobs of past due times"))


def _add_views(action: AddSubcommand) -> None:
    add = action("list", schedules.show, "list schedules and the outcome of the last due time")
    add("text", nargs="?", default="", metavar="TEXT", help="only names that contain this text")
    add("--failing", action="store_true", help="only schedules that need attention")
    most = schedules.MOST_LISTED
    add("--limit", type=whole, default=most, metavar="N", help=f"at most this number ({most:,})")
    add("--json", action="store_true", help="print one JSON object")
    add = action("next", schedules.times, "list the next due times of a schedule or an expression")
    add("name", nargs="?", metavar="NAME", help="name of a schedule")
    add("--count", type=whole, default=5, metavar="N", help="number of due times (5)")
    add("--cron", metavar="EXPRESSION", help="use this expression")
    add("--timezone", metavar="ZONE", help="with --cron: its time zone (UTC)")
    add("--dst", choices=DST_POLICIES, help="with --cron: the policy for clock changes (once)")


def _add_exceptions(action: AddSubcommand) -> None:
    for name, does, meaning in (
        ("skip", schedules.skip, "let a coming due time make no job"),
        ("move", schedules.move, "let a due time come at another time"),
        ("change", schedules.change, "give the job of a due time another payload"),
        ("restore", schedules.restore, "undo a skip, a move and a payload"),
    ):
        add = action(name, does, meaning)
        add("name", metavar="NAME", help="name of a schedule")
        add("due", metavar="TIME", help="the due time by its rule: an ISO time in its time zone")
        if name == "move":
            add("to", metavar="TO", help="the new time")
        if name == "change":
            add("payload", metavar="PAYLOAD", help="all arguments of the job, as JSON")
        if name != "restore":
            add("--reason", default="", help="stored with your user name, and shown in the tick")


def _add_backfill(add: AddArgument) -> None:
    add("name", nargs="?", metavar="NAME", help="name of a schedule")
    add("--from", dest="begin", metavar="WHEN", help="the first due time: an ISO date or time")
    add("--to", dest="end", metavar="WHEN", help="the last due time; a date includes its whole day")
    add("--dry-run", action="store_true", help="print the number of jobs without creating them")
    add("--yes", action="store_true", help="do not ask for confirmation")
    add("--cancel", type=int, metavar="ID", help="cancel the remaining jobs of this backfill")
