"""``manage.py jobreplay``: send dead jobs back to their queues."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from ...api import replay_problem
from ...conf import conf
from ...lifecycle.operations import jobs as job_operations
from ...models import Job
from ...models.run import by_last_run
from ..arguments import since
from ..base import (
    OperatorCommand,
    counted,
    demand_fingerprint,
    demand_job_type,
    demand_queue,
    operator,
)

BATCH = 500
SELECTORS = ("queue", "type", "error", "error_code", "since")


class Command(OperatorCommand):
    """Replay dead jobs, chosen by id or by a filter."""

    help = (
        "Send dead jobs back to their queue with their counters at zero; their runs are kept. "
        "Exits with 1 if any was refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("ids", nargs="*", type=int, metavar="ID", help="ids of dead jobs")
        parser.add_argument("--queue", help="dead jobs of this queue")
        parser.add_argument("--type", metavar="JOB_TYPE", help="dead jobs of this job type")
        parser.add_argument(
            "--error", metavar="FINGERPRINT", help="dead jobs whose last run has this fingerprint"
        )
        parser.add_argument(
            "--error-code",
            metavar="CODE",
            help="dead jobs whose last run has this code, such as 503",
        )
        parser.add_argument(
            "--since", metavar="WHEN", help="dead for at most this long (2h, 1d), or since a date"
        )
        parser.add_argument("--limit", type=int, help="at most this number, the oldest first")
        parser.add_argument(
            "--reason", default="", help="stored with each job, with your user name and the time"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="change nothing; -v 2 lists the jobs"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        ids = _chosen(options)
        done = refused = 0
        for start in range(0, len(ids), BATCH):
            report = _replay(ids[start : start + BATCH], options["reason"], options["dry_run"])
            done += len(report.done)
            refused += len(report.refused)
            if options["verbosity"] > 1:
                named = Job.objects.using(conf().database).filter(pk__in=report.done)
                for id_, job_type in named.order_by("pk").values_list("pk", "job_type"):
                    self.stdout.write(f"job {id_} {job_type}")
            for id_, why in report.refused.items():
                self.stderr.write(f"job {id_} was refused: {why}")
        verb = "Would replay" if options["dry_run"] else "Replayed"
        self.stdout.write(f"{verb} {counted(done, 'job')}.")
        if refused:
            was = "was" if refused == 1 else "were"
            raise CommandError(f"{refused} of {len(ids)} {was} refused")


def _replay(ids: list[int], reason: str, dry_run: bool) -> job_operations.OperationResult:
    alias, by = conf().database, f"{operator()} (jobreplay)"
    if not dry_run:
        return job_operations.replay(ids, check=replay_problem, by=by, reason=reason)
    with transaction.atomic(using=alias):
        report = job_operations.replay(ids, check=replay_problem, by=by, reason=reason)
        transaction.set_rollback(True, using=alias)
    return report


def _chosen(options: dict[str, Any]) -> list[int]:
    limit = options["limit"]
    if limit is not None and limit < 1:
        raise CommandError(f"--limit takes 1 or more, not {limit}")
    filtered = any(options[name] is not None for name in SELECTORS)
    if options["ids"]:
        if filtered:
            raise CommandError("give ids or a filter, not both")
        return list(dict.fromkeys(options["ids"]))[:limit]
    if not filtered:
        raise CommandError(
            "give ids, or at least one of --queue, --type, --error, --error-code and --since"
        )
    dead = Job.objects.using(conf().database).dead().order_by("pk")
    if options["queue"] is not None:
        demand_queue(options["queue"])
        dead = dead.filter(queue=options["queue"])
    if options["type"] is not None:
        demand_job_type(options["type"])
        dead = dead.filter(job_type=options["type"])
    if options["error"] is not None:
        demand_fingerprint(options["error"])
        dead = by_last_run(dead, fingerprint=options["error"])
    if options["error_code"] is not None:
        dead = by_last_run(dead, error_code=options["error_code"])
    if options["since"] is not None:
        dead = dead.filter(finished_at__gte=since(options["since"]))
    return list(dead.values_list("pk", flat=True)[:limit])
