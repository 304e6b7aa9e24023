"""Dead jobs that a command is given: by id or by a filter."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import transaction

from ..api.closing import demand_known
from ..conf import conf
from ..domain.numbers import seconds_of
from ..lifecycle.operations import OperationResult
from ..models import Job
from ..models.database import database_time
from ..models.run import by_last_run
from .base import (
    OperatorCommand,
    counted,
    demand_fingerprint,
    demand_queue,
    operator,
    since,
    whole,
)

BATCH = 500
SELECTORS = ("queue", "type", "error", "error_code", "since")

Operation = Callable[..., OperationResult]
"""Called with ids, and with who asks as ``by`` and the ``reason``."""


class DeadJobsCommand(OperatorCommand):
    """Takes what chooses dead jobs, the reason and ``--dry-run``."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("ids", nargs="*", type=int, metavar="ID", help="ids of dead jobs")
        add("--queue", help="dead jobs of this queue")
        add("--type", metavar="JOB_TYPE", help="dead jobs of this job type")
        add("--error", metavar="FINGERPRINT", help="whose last error has this fingerprint")
        add("--error-code", metavar="CODE", help="whose last run has this code, such as 503")
        add("--since", metavar="WHEN", help="dead for at most this long (2h, 1d), or since a date")
        add("--limit", type=whole, help="at most this number, the oldest first")
        add("--reason", default="", help="stored with each job, with your user name and the time")
        add("--dry-run", action="store_true", help="change nothing; -v 2 lists the jobs")

    def operate(self, operation: Operation, options: dict[str, Any], verb: tuple[str, str]) -> None:
        """Run the operation on the chosen jobs, and print what was done; ``verb`` is such as
        ``("replay", "Replayed")``. Raises ``CommandError`` if a job was refused."""
        dry_run, reason = options["dry_run"], options["reason"]
        by = f"{operator()} (job{verb[0]})"
        chosen = _chosen(options)
        every = OperationResult()
        for start in range(0, len(chosen), BATCH):
            ids = chosen[start : start + BATCH]
            with transaction.atomic(using=conf().database) if dry_run else nullcontext():
                result = operation(ids, by=by, reason=reason)
                if dry_run:
                    transaction.set_rollback(True, using=conf().database)
            every.done += result.done
            every.refused |= result.refused
            if options["verbosity"] > 1:
                named = Job.objects.using(conf().database).filter(pk__in=result.done)
                for id_, job_type in named.order_by("pk").values_list("pk", "job_type"):
                    self.stdout.write(f"job {id_} {job_type}")
        done = counted(len(every.done), "job")
        self.stdout.write(f"{f'Would {verb[0]}' if dry_run else verb[1]} {done}.")
        self.report_refused(every, "job")


def terms_of(options: dict[str, Any]) -> dict[str, Any]:
    """The chosen jobs as the terms of an operation. Raises as ``operate`` does."""
    if options["limit"] is not None or options["dry_run"]:
        raise CommandError("--limit and --dry-run are not for jobs that the workers look for")
    _chosen({**options, "limit": 1})
    if options["ids"]:
        return {"ids": options["ids"]}
    names = {"queue": "queue", "type": "job_type", "error": "error", "error_code": "code"}
    terms = {term: options[name] for name, term in names.items() if options[name] is not None}
    if options["since"] is not None:
        moment = since(options["since"])
        if not isinstance(moment, datetime):  # an age, as an expression
            age = min(seconds_of(options["since"]) or 0.0, 1e10)
            moment = database_time() - timedelta(seconds=age)
        terms["finished_since"] = moment.isoformat()
    return terms


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
        demand_known("job_type", options["type"])
        dead = dead.filter(job_type=options["type"])
    if options["error"] is not None:
        demand_fingerprint(options["error"])
        dead = dead.filter(fingerprint=options["error"])
    if options["error_code"] is not None:
        if not options["error_code"]:
            raise CommandError("--error-code takes a code such as 503, not ''")
        dead = by_last_run(dead, error_code=options["error_code"])
    if options["since"] is not None:
        dead = dead.filter(finished_at__gte=since(options["since"]))
    return list(dead.values_list("pk", flat=True)[:limit])
