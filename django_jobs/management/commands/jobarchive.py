"""``manage.py jobarchive``: write old partitions of the history to files, and drop them."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError
from django.db import ProgrammingError

from ...conf import conf
from ...domain.retention import Period
from ...lifecycle.archiving import COPIES, drop_archived, ended_before
from ...lifecycle.history import Partition
from ...models.database import NO_TABLE, sqlstate_of
from ..archive_files import ArchiveFile, archived, demand_directory
from ..base import OperatorCommand, age_of, counted, demand_no_transaction

SHORTEST = {Period.DAY: 86_400, Period.WEEK: 7 * 86_400, Period.MONTH: 28 * 86_400}
"""Seconds of ``--before``, by the length of partitions."""
BY_WHOM = "by retention or by another jobarchive"


class Command(OperatorCommand):
    help = (
        "Write each partition of finished jobs, and of runs, that is older than an age to a file. "
        "With --drop, drop the partitions that are in files. Exits with 1 if one was kept."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--before",
            required=True,
            metavar="AGE",
            help="partitions whose whole range is at least this long ago (30d, 12w)",
        )
        add(
            "--to", required=True, metavar="DIR", help="the directory of the files; it has to exist"
        )
        add("--format", choices=sorted(COPIES), default="jsonl", help="of the files (jsonl)")
        add("--drop", action="store_true", help="drop each partition once its file is complete")

    def handle(self, *args: Any, **options: Any) -> None:
        age = _age(options["before"])
        directory = demand_directory(options["to"])
        demand_no_transaction("jobarchive")
        partitions = ended_before(age)
        if not partitions:
            self._print(options, f"Nothing to archive: no partition ended {options['before']} ago.")
        kept: list[str] = []
        for partition in partitions:
            try:
                problem = self._archive(partition, directory, options)
            except ProgrammingError as error:
                if sqlstate_of(error) != NO_TABLE:
                    raise
                self._print(options, f"{partition.name} was dropped meanwhile, {BY_WHOM}.")
                continue
            if problem is not None:
                kept.append(f"{partition.name} was kept: {problem}")
        if kept:
            raise CommandError("; ".join(kept))

    def _archive(
        self, partition: Partition, directory: Path, options: dict[str, Any]
    ) -> str | None:
        """Write and drop the partition; return why it was kept, if it should have been dropped."""
        file = archived(partition, directory, options["format"])
        self._report(options, partition, file)
        if not options["drop"]:
            return None
        problem = drop_archived(partition, file.contents)
        if problem is None:
            self._print(options, f"Dropped {partition.name}.")
        return problem

    def _report(self, options: dict[str, Any], partition: Partition, file: ArchiveFile) -> None:
        for other in file.others:
            self._print(options, f"{other} has other rows than {partition.name}, and was left.")
        what = f"{counted(file.contents.rows, 'row')}, {counted(file.size, 'byte')}"
        if file.is_new:
            self._print(options, f"Wrote {file.path}: {what}.")
        else:
            self._print(options, f"{file.path} was complete: {what}.")

    def _print(self, options: dict[str, Any], sentence: str) -> None:
        if options["verbosity"] > 0:
            self.stdout.write(sentence)


def _age(text: str) -> float:
    age = age_of(text, "--before")
    period = Period(conf().history["partition"])
    if age is None or age < SHORTEST[period]:
        raise CommandError(
            f"--before takes at least the time of a partition, which is a {period}, not {text!r}"
        )
    return age
