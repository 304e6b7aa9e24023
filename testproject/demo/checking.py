"""Checks the results of the demo."""

from __future__ import annotations

import ast
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from django.conf import settings
from django.db.models import Count, F, Max, Q, Sum

from django_jobs.models import DeadLetter, Job, JobStatus, Run, RunOutcome
from django_jobs.models.querysets import JobQuerySet

from .models import Module, Package
from .receiver import RETRY_AFTER, Receiver, Script
from .sources import LEFT_OUT, ignore_parse_warnings

BAD = ("demo.always_fails", "demo.kills_its_process")


@dataclass(frozen=True, slots=True)
class Check:
    """A condition, whether it holds, and what was found."""

    name: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True)
class Totals:
    """What an index comes to."""

    files: int
    unreadable: int
    lines: int
    functions: int
    classes: int

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, field.name):,} {field.name}" for field in fields(self))


def demo_jobs() -> JobQuerySet:
    """The jobs of this demo, without those of its schedules, which come when they are due."""
    return Job.objects.filter(job_type__startswith="demo.", schedule=None)


def check_everything(receiver: Receiver, deliveries: Mapping[str, Script]) -> list[Check]:
    """All checks of a finished ``demo --once``, in the order of the output."""
    return [
        *check_index(),
        check_webhooks(receiver, deliveries),
        check_retry_after(),
        check_dead_letters(),
        check_replay(),
        check_all_others_succeeded(),
        check_ledger(),
    ]


def check_index() -> Iterator[Check]:
    """The rows, and the totals of the packages, against a count that uses none of their code."""
    direct = count_directly(Path(settings.DEMO_SOURCES))
    rows = Totals(
        **Module.objects.aggregate(
            files=Count("pk"),
            unreadable=Count("pk", filter=~Q(error="")),
            lines=Sum("lines", default=0),
            functions=Sum("functions", default=0),
            classes=Sum("classes", default=0),
        )
    )
    summed = Package.objects.aggregate(
        **{field.name: Sum(field.name, default=0) for field in fields(Totals)}
    )
    yield Check("index = direct count", rows == direct, _difference(rows, direct))
    totals = Totals(**summed)
    yield Check("package totals = direct count", totals == direct, _difference(totals, direct))


def check_webhooks(receiver: Receiver, deliveries: Mapping[str, Script]) -> Check:
    """Each delivery was accepted by the receiver at least once."""
    arrived = [id_ for id_ in deliveries if receiver.accepted[id_]]
    requests = sum(receiver.requests[id_] for id_ in deliveries)
    twice = sum(receiver.accepted[id_] > 1 for id_ in deliveries)
    return Check(
        "every webhook arrived",
        len(arrived) == len(deliveries),
        f"{len(arrived)} of {len(deliveries)} in {requests} requests, {twice} more than once",
    )


def check_retry_after() -> Check:
    """A receiver that asked for a pause was given it, though the backoff is shorter."""
    asked = Run.objects.filter(job__job_type="demo.deliver_webhook", error_code="429")
    pauses = [
        (after.available_at - run.finished_at).total_seconds()
        for run in asked
        for after in Run.objects.filter(job=run.job_id, attempt=run.attempt + 1)
    ]
    shortest = min(pauses, default=0.0)
    return Check(
        "Retry-After was honoured",
        bool(pauses) and shortest > RETRY_AFTER - 0.1,
        f"{len(pauses)} pauses, the shortest {shortest:.2f} s where {RETRY_AFTER} s were asked for",
    )


def check_dead_letters() -> Check:
    """The two bad jobs are dead, and no other is."""
    dead = sorted(DeadLetter.objects.filter(job_type__startswith="demo.").values_list("job_type"))
    names = [name for (name,) in dead]
    return Check("the two bad jobs alone are dead", names == list(BAD), ", ".join(names) or "none")


def check_replay() -> Check:
    """The label that could not be printed was, once the printer had paper and it was replayed."""
    (label,) = Job.objects.filter(job_type="demo.print_label")
    outcomes = list(Run.objects.filter(job=label.pk).order_by("attempt").values_list("outcome"))
    failed, mended = (RunOutcome.FAILED,), (RunOutcome.SUCCEEDED,)
    passed = failed in outcomes and outcomes[-1:] == [mended]
    return Check("a replay mended the label", passed, str(label.result))


def check_all_others_succeeded() -> Check:
    """All jobs but the two bad ones succeeded."""
    others = Counter(demo_jobs().exclude(job_type__in=BAD).values_list("status", flat=True))
    return Check(
        "all other jobs succeeded",
        set(others) == {JobStatus.SUCCEEDED},
        ", ".join(f"{count} {status}" for status, count in sorted(others.items())),
    )


def check_ledger() -> Check:
    """Every attempt has its Run: as many as attempts, numbered to the last."""
    counted = demo_jobs().annotate(runs_kept=Count("runs"), last_run=Max("runs__attempt"))
    wrong = counted.exclude(runs_kept=F("attempt"), last_run=F("attempt")).count()
    return Check(
        "every attempt has its Run",
        wrong == 0,
        f"{Run.objects.filter(job__job_type__startswith='demo.').count()} runs, "
        f"{wrong} jobs with too few or too many",
    )


def summary() -> Iterator[str]:
    """The lines about the outcomes of the jobs."""
    yield "jobs          " + describe(demo_jobs())
    runs = Run.objects.filter(job__job_type__startswith="demo.")
    yield "runs          " + _counts(runs.values_list("outcome"), RunOutcome.values)
    neighbours = runs.filter(outcome=RunOutcome.LOST).exclude(job__job_type__in=BAD)
    cleared = neighbours.filter(job__status=JobStatus.SUCCEEDED).count()
    yield f"neighbours    {neighbours.count()} lost with a killed process, {cleared} cleared"
    for letter in DeadLetter.objects.filter(job_type__startswith="demo.").order_by("job_type"):
        yield f"dead letter   {letter}: {letter.reason}"


def describe(jobs: JobQuerySet) -> str:
    """How many jobs there are in each status."""
    return _counts(jobs.values_list("status"), JobStatus.values)


def count_directly(root: Path) -> Totals:
    """Count the sources in one pass of one process."""
    ignore_parse_warnings()
    files = unreadable = lines = functions = classes = 0
    for directory, below, names in os.walk(root):
        if Path(directory) == root:
            below[:] = [name for name in below if name not in LEFT_OUT]
        for path in (Path(directory, name) for name in names if name.endswith(".py")):
            if not path.is_file():
                continue
            files += 1
            try:
                with path.open("rb") as source:
                    lines += sum(1 for _ in source)
                kinds = Counter(map(type, ast.walk(ast.parse(path.read_bytes()))))
            except (OSError, SyntaxError, ValueError, RecursionError):
                unreadable += 1
                continue
            functions += kinds[ast.FunctionDef] + kinds[ast.AsyncFunctionDef]
            classes += kinds[ast.ClassDef]
    return Totals(files, unreadable, lines, functions, classes)


def _difference(found: Totals, wanted: Totals) -> str:
    if astuple(found) == astuple(wanted):
        return str(found)
    return f"{found}; counted directly: {wanted}"


def _counts(values: Iterable[tuple[str]], order: Iterable[str]) -> str:
    counts = Counter(value for (value,) in values)
    return ", ".join(f"{counts[name]} {name}" for name in order if counts[name]) or "none"
