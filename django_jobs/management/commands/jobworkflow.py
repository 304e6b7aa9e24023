"""``manage.py jobworkflow``: list, show, cancel, retry and signal runs of workflows."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from ...api import replay_problem
from ...conf import conf
from ...domain.workflows import WorkflowState
from ...lifecycle.operations import OperationResult, workflows
from ...models import Job
from ..base import OperatorCommand, count, operator, subcommands_of
from ..reports import render_run, render_runs, run_as_row, runs_as_rows


class Command(OperatorCommand):
    help = "List and show runs of workflows; cancel, retry or signal them, or skip a step."

    def add_arguments(self, parser: ArgumentParser) -> None:
        action = subcommands_of(parser)
        add = action("list", self._list, "list runs, the newest first")
        add("name", nargs="?", metavar="WORKFLOW", help="only runs of this workflow")
        add("--status", choices=[state.value for state in WorkflowState])
        add("--limit", type=count, default=50, metavar="N", help="at most this number (50)")
        add("--json", action="store_true", help="print one JSON array")
        add = action("show", self._show, "show a run and its steps")
        add("id", type=int, metavar="ID")
        add("--json", action="store_true", help="print one JSON object")
        for name, does, meaning in (
            ("cancel", self._cancel, "cancel runs; running steps are asked to stop"),
            ("retry", self._retry, "start failed steps again, and those skipped because of them"),
        ):
            add = action(name, does, meaning)
            add("ids", nargs="+", type=int, metavar="ID")
            add("--reason", default="", help="stored, with your user name")
        add = action("skip", self._skip, "skip a step; those after it continue")
        add("id", type=int, metavar="ID")
        add("step", metavar="STEP")
        add("--reason", required=True, help="stored, with your user name")
        add = action("signal", self._signal, "send a step the data for which it waits")
        add("id", type=int, metavar="ID")
        add("step", metavar="STEP")
        add("--data", default="null", metavar="JSON", help="what the step gets (null)")
        add("--name", help="the signal, for a handler that does not wait for it yet")
        add("--reason", default="", help="logged, with your user name")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            options["does"](**options)
        except ValueError as error:
            raise CommandError(str(error)) from None

    def _list(self, *, name: str | None, status: str | None, limit: int, **options: Any) -> None:
        rows = runs_as_rows(name=name, status=status, limit=limit)
        self.stdout.write(json.dumps(rows, indent=2) if options["json"] else render_runs(rows))

    def _show(self, *, id: int, **options: Any) -> None:
        row = run_as_row(id)
        self.stdout.write(json.dumps(row, indent=2) if options["json"] else render_run(row))

    def _cancel(self, *, ids: list[int], reason: str, **options: Any) -> None:
        result = workflows.cancel(ids, by=operator(), reason=reason)
        self._report(result, "cancelled", "its running steps are asked to stop")

    def _retry(self, *, ids: list[int], reason: str, **options: Any) -> None:
        result = workflows.retry(ids, check=replay_problem, by=operator(), reason=reason)
        self._report(result, "its failed steps start again")

    def _skip(self, *, id: int, step: str, reason: str, **options: Any) -> None:
        result = workflows.skip(id, step, by=operator(), reason=reason)
        self._report(result, f"step {step!r} is skipped")

    def _signal(
        self, *, id: int, step: str, data: str, name: str | None, reason: str, **options: Any
    ) -> None:
        try:
            value = json.loads(data)
        except ValueError as error:
            raise CommandError(f"--data is not JSON: {error}") from None
        waiting = Job.objects.using(conf().database).filter(workflow_run=id, step=step)
        waiting = waiting.filter(awaits=name) if name else waiting.exclude(awaits=None)
        early = "" if waiting.exists() else "; it does not wait for it yet"
        result = workflows.signal(id, step, value, name=name, by=operator(), reason=reason)
        self._report(result, f"step {step!r} has its signal{early}")

    def _report(self, result: OperationResult, done: str, asked: str = "") -> None:
        for id_ in result.done:
            self.stdout.write(f"run {id_}: {asked if id_ in result.asked else done}.")
        self.report_refused(result, "run")
