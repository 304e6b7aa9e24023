"""Old partitions, the command ``jobarchive``, and its files."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

from django_jobs.domain.retention import Period, start_of
from django_jobs.lifecycle.history import TABLES
from tests import forking
from tests.commands import printed
from tests.factories import run_sql
from tests.lifecycle.test_pruning import finish
from tests.worker.processes import COMMAND, PATIENCE, PROJECT, environment_of_tests

DAYS = 40
"""How long ago the partitions of a test are."""
FORMATS = ["jsonl", "csv"]


class Old:
    """The partitions of one day long ago, and the ids of jobs whose rows and runs are in them."""

    def __init__(self, days: int = DAYS) -> None:
        self.day = start_of(Period.DAY, datetime.now(UTC)) - timedelta(days=days)
        self.job, self.run = (f"{table.prefix}{self.day:%Y%m%d}" for table in TABLES)
        for table, name in zip(TABLES, (self.job, self.run), strict=True):
            run_sql(f"CREATE TABLE {name} (LIKE {table.default} INCLUDING ALL)")
            run_sql(
                f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
                f" FOR VALUES FROM ('{self.day}') TO ('{self.day + timedelta(days=1)}')"
            )
        self.ids = finish(3)
        self.put(self.ids)

    def put(self, ids: list[int]) -> None:
        """As if these jobs and their runs had ended on that day."""
        moment = self.day + timedelta(hours=1)
        run_sql("UPDATE django_jobs_job SET finished_at = %s WHERE id = ANY(%s)", [moment, ids])
        run_sql("UPDATE django_jobs_run SET finished_at = %s WHERE job_id = ANY(%s)", [moment, ids])

    def files(self, directory: Path, form: str = "jsonl") -> list[Path]:
        return [directory / f"{name}.{form}" for name in (self.job, self.run)]

    def exist(self) -> list[bool]:
        """Whether the partitions are there: of jobs, of runs."""
        return [there(name) for name in (self.job, self.run)]

    def drop(self) -> None:
        run_sql(f"DROP TABLE IF EXISTS {self.job}, {self.run}")


def there(table: str) -> bool:
    return run_sql(f"SELECT to_regclass('{table}')") != [(None,)]


def archive(directory: Path, *arguments: str, before: str = "30d") -> str:
    return printed("jobarchive", "--before", before, "--to", str(directory), *arguments).strip()


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def ids_in(path: Path) -> list[int]:
    """Of a complete file."""
    if path.suffix == ".jsonl":
        return sorted(json.loads(line)["id"] for line in lines_of(path))
    with path.open(newline="", encoding="utf-8") as file:
        return sorted(int(row["id"]) for row in csv.DictReader(file, strict=True))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@dataclass
class Archiving:
    """The command in a process."""

    process: Any
    errors: IO[bytes]


SAYS_ERRORS_ALONE = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"


def start(directory: Path, *arguments: str, before: str = "", **environment: str) -> Archiving:
    """The command in a process, after the Python of ``before``."""
    command = ["jobarchive", "--before", "30d", "--to", str(directory), *arguments]
    environment = {**environment_of_tests(), "PYTHONWARNINGS": "error", **environment}
    before = SAYS_ERRORS_ALONE + before
    errors = tempfile.TemporaryFile()  # noqa: SIM115 — ended() closes it
    if forking.IS_POSSIBLE:
        template = forking.template(PROJECT, environment)
        return Archiving(template.start(command, errors.fileno(), before=before), errors)
    whole = [sys.executable, "-c", COMMAND.format(before=before), *command]
    process = subprocess.Popen(whole, cwd=PROJECT, env=environment, stderr=errors)
    return Archiving(process, errors)


def ended(archiving: Archiving) -> tuple[int, str]:
    """Its exit code, and what it wrote to standard error."""
    with archiving.errors:
        code = archiving.process.wait(PATIENCE)
        archiving.errors.seek(0)
        return code, archiving.errors.read().decode()
