"""``jobarchive --drop``: what is dropped is in a file, whenever the command ends."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError
from django.db import connection
from pytest_django import Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import archiving, dropping
from django_jobs.lifecycle.history import Partition
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.management import archive_files
from django_jobs.management.commands import jobarchive
from django_jobs.models import Dependency, Job, Run
from tests.factories import (
    claim_ready,
    failure,
    make_dead,
    register_worker,
    run_again,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_pruning import finish
from tests.management.archives import (
    DAYS,
    FORMATS,
    Old,
    archive,
    ended,
    ids_in,
    names_in,
    start,
)
from tests.worker.processes import until
from tests.workflows import start_graph, states, step

pytestmark = pytest.mark.django_db(transaction=True)


def test_rows_that_change_before_the_drop_keep_the_partition(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, pruned = finish(1), old.ids[0]

    def change(directory: Path) -> None:
        old.put(late)
        run_sql(f"DELETE FROM {old.job} WHERE id = {pruned}")

    monkeypatch.setattr(archive_files, "_sync", change)
    problem = f"{old.job} was kept: its rows changed after they were written; run the command again"
    with pytest.raises(CommandError, match=problem):
        archive(tmp_path, "--drop")
    monkeypatch.undo()
    assert old.exist()[0]
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    archive(tmp_path, "--drop")
    assert ids_in(tmp_path / f"{old.job}.2.jsonl") == [*old.ids[1:], *late]
    assert old.exist() == [False, False]


@pytest.mark.parametrize("form", FORMATS)
def test_steps_are_in_the_file_and_stay_with_their_run(old: Old, tmp_path: Path, form: str) -> None:
    """Their runs too, although a later step of the workflow still waits."""
    run = start_graph({"a": "", "b": "a", "c": "b"})
    for _ in "ab":
        (held,) = claim_ready(register_worker())
        settle_one(held, Succeeded())
    ids = [step(run, name).pk for name in "ab"]
    old.put(ids)
    archive(tmp_path, "--format", form, "--drop")
    assert old.exist() == [False, False]
    jobs, runs = old.files(tmp_path, form)
    assert ids_in(jobs) == [*old.ids, *ids]
    assert len(ids_in(runs)) == len(old.ids) + len(ids)
    assert not Job.objects.filter(pk__in=old.ids).exists()
    assert states(run) == {"a": "succeeded", "b": "succeeded", "c": "ready"}
    assert list(Run.objects.values_list("job", flat=True).order_by("job")) == ids
    assert Dependency.objects.filter(workflow_run=run).count() == 2
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    run.refresh_from_db()
    assert run.status == "succeeded"


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_that_is_read_back_otherwise_is_removed(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: os.truncate(number, 500))
    with pytest.raises(CommandError, match=f"{old.job} was kept"):
        archive(tmp_path, "--format", form, "--drop")
    assert names_in(tmp_path) == []
    assert old.exist() == [True, True]


def test_two_commands_do_not_write_one_file(old: Old, tmp_path: Path) -> None:
    part = tmp_path / f"{old.job}.jsonl.part"
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CommandError, match=f"another process is writing {part}"):
            archive(tmp_path, "--drop")
    assert old.exist() == [True, True]
    archive(tmp_path, "--drop")
    assert names_in(tmp_path) == [path.name for path in old.files(tmp_path)]


FULL = """
import resource, sys
sys.dont_write_bytecode = True  # or a module is cached in part, for all that run after this one
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""


@pytest.mark.processes
def test_a_full_disk_leaves_the_partition_and_no_part_of_a_file(old: Old, tmp_path: Path) -> None:
    path, _ = old.files(tmp_path)
    code, errors = ended(start(tmp_path, "--drop", before=FULL))
    assert (code, errors) == (1, f"CommandError: {path}: File too large\n")
    assert names_in(tmp_path) == []
    assert old.exist() == [True, True]


KILL = """
import os, signal
from django_jobs.domain.retention import Period, start_of
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import archiving, dropping
from django_jobs.lifecycle.history import TABLES
from django_jobs.lifecycle.history import Partition
from django_jobs.management import archive_files
from django_jobs.management.commands import jobarchive
from django_jobs.management.commands import jobarchive
from django_jobs.management.commands import jobarchive

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

def after(function):
    return lambda *arguments, **options: kill(function(*arguments, **options))

copy_out = archive_files.copy_out
"""
STEPS = {
    "before a row": "archive_files.copy_out = kill",
    "after a row": (
        "archive_files.BUFFER = 0; "
        "archive_files.copy_out = lambda one, form, write: copy_out(one, form, after(write))"
    ),
    "before the file is on the disk": "os.fsync = kill",
    "before the file is read": "os.fsync = after(os.fsync)",
    "before the file has its name": "archive_files.Path.rename = kill",
    "after the file has its name": "archive_files.Path.rename = after(archive_files.Path.rename)",
    "before the drop": "jobarchive.drop_archived = kill",
    "after the drop": "jobarchive.drop_archived = after(jobarchive.drop_archived)",
}
WRITTEN = {"after the file has its name", "before the drop", "after the drop"}


@pytest.mark.processes
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_command_leaves_the_partition_or_its_file(
    old: Old, tmp_path: Path, step: str
) -> None:
    code, output = ended(start(tmp_path, "--drop", before=KILL + STEPS[step]))
    assert code == -signal.SIGKILL, output
    jobs, runs = old.files(tmp_path)
    assert old.exist() == [step != "after the drop", True]
    assert jobs.exists() is (step in WRITTEN)
    if step in WRITTEN:
        assert ids_in(jobs) == old.ids
    archive(tmp_path, "--drop")
    assert names_in(tmp_path) == [jobs.name, runs.name]
    assert ids_in(jobs) == old.ids
    assert old.exist() == [False, False]


@pytest.mark.parametrize("is_new", [True, False])
def test_file_and_name_are_on_the_disk_before_the_drop(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Also those of a command that was killed as soon as the file had its name."""
    if not is_new:
        archive(tmp_path)
    synchronised: list[int] = []
    fsync, drop = os.fsync, jobarchive.drop_archived

    def record(number: int) -> None:
        fsync(number)
        synchronised.append(os.fstat(number).st_ino)

    def check(partition: Partition, contents: archiving.Contents) -> str | None:
        (path,) = tmp_path.glob(f"{partition.name}.jsonl")
        assert synchronised[-2:] == [path.stat().st_ino, tmp_path.stat().st_ino]
        return drop(partition, contents)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(jobarchive, "drop_archived", check)
    archive(tmp_path, "--drop")
    assert old.exist() == [False, False]


@contextmanager
def reading(table: str) -> Iterator[None]:
    """A transaction of another session has read the table, and stays open."""
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute(f"SELECT count(*) FROM {table}".encode())
        yield


WAITING = """
SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{}'::regclass
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


@pytest.mark.processes
def test_a_command_killed_during_the_drop_leaves_its_file(old: Old, tmp_path: Path) -> None:
    with reading(old.job):
        process = start(tmp_path, "--drop")
        until(lambda: run_sql(WAITING.format(old.job)) != [(0,)])
        process.process.kill()
        ended(process)
        assert old.exist() == [True, True]
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    archive(tmp_path, "--drop")
    assert names_in(tmp_path) == [path.name for path in old.files(tmp_path)]
    assert old.exist() == [False, False]


def test_a_partition_in_use_is_kept_with_its_file(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archiving, "PATIENCE", 0.0)
    problem = f"{old.job} was kept: it was in use for 0 s; run the command again"
    with reading(old.job), pytest.raises(CommandError, match=problem) as kept:
        archive(tmp_path, "--drop")
    assert f"{old.run} was kept: {old.job} is there" in str(kept.value)
    assert old.exist() == [True, True]
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    archive(tmp_path, "--drop")
    assert old.exist() == [False, False]


@pytest.mark.processes
def test_a_partition_is_dropped_when_it_is_free_again(old: Old, tmp_path: Path) -> None:
    with reading(old.job):
        process = start(tmp_path, "--drop")
        until(lambda: run_sql(WAITING.format(old.job)) != [(0,)])
    assert ended(process) == (0, "")
    assert old.exist() == [False, False]


@pytest.mark.processes
@pytest.mark.parametrize("level", ["READ_COMMITTED", "SERIALIZABLE"])
def test_a_row_that_is_committed_while_the_drop_waits_is_not_lost(
    old: Old, tmp_path: Path, level: str
) -> None:
    (late,) = finish(1)
    moment = old.day + timedelta(hours=1)
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("UPDATE django_jobs_job SET finished_at = %s WHERE id = %s", [moment, late])
        process = start(tmp_path, "--drop", TEST_DATABASE_ISOLATION=level)
        until(lambda: run_sql(WAITING.format(old.job)) != [(0,)])
    problem = f"{old.job} was kept: its rows changed after they were written; run the command again"
    runs = f"{old.run} was kept: {old.job} is there, with the jobs of its time"
    assert ended(process) == (1, f"CommandError: {problem}; {runs}\n")
    assert old.exist() == [True, True]
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    assert Job.objects.filter(pk=late).exists()


def steps(old: Old) -> list[int]:
    """Three steps of a workflow run, of which the first failed once; all of it on that day."""
    start_graph({"a": "", "b": "a", "c": "b"})
    worker = register_worker()
    (first,) = claim_ready(worker)
    settle_one(first, failure())
    run_again(first.id, worker, Succeeded())
    for _ in range(2):
        (held,) = claim_ready(worker)
        settle_one(held, Succeeded())
    ids = list(Job.objects.filter(workflow_run__isnull=False).values_list("pk", flat=True))
    old.put(ids)
    return sorted(ids)


def test_all_runs_of_kept_steps_stay(old: Old, tmp_path: Path) -> None:
    ids = steps(old)
    archive(tmp_path, "--drop")
    assert old.exist() == [False, False]
    assert ids_in(old.files(tmp_path)[0]) == [*old.ids, *ids]
    assert list(Job.objects.order_by("id").values_list("id", flat=True)) == ids
    outcomes = Run.objects.order_by("id").values_list("job", "outcome")
    assert list(outcomes) == [
        (ids[0], "failed"),
        *((id_, "succeeded") for id_ in ids),
    ]


def test_a_partition_with_many_steps_says_so_and_keeps_its_runs(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    ids = steps(old)
    with pytest.raises(CommandError) as kept:
        archive(tmp_path, "--drop")
    assert str(kept.value) == (
        f"{old.job} was kept: it has too many steps of workflow runs that are kept; it can be "
        f"dropped once these have expired; {old.run} was kept: {old.job} is there, with the jobs "
        "of its time"
    )
    assert old.exist() == [True, True]
    assert ids_in(old.files(tmp_path)[0]) == [*old.ids, *ids]
    assert Run.objects.count() == 7


def test_a_partition_with_many_runs_of_dead_jobs_says_so(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropping, "MOST_KEPT", 2)
    old.put([make_dead().pk for _ in range(3)])
    with pytest.raises(CommandError, match=f"{old.run} was kept: it has too many runs of jobs"):
        archive(tmp_path, "--drop")
    assert old.exist() == [False, True]


@pytest.mark.parametrize("age", [None, "90d"])
def test_kept_runs_of_a_dead_job_go_with_it_once_it_has_ended(
    old: Old, younger: Old, tmp_path: Path, settings: Settings, age: str | None
) -> None:
    """With an age they go by it."""
    settings.DJANGO_JOBS = {"RETENTION": {"runs": age}}
    dead = make_dead()
    old.put([dead.pk])
    archive(tmp_path, "--drop", before=f"{DAYS - 1}d")
    assert younger.exist() == [True, True]
    kept = Run.objects.get(job=dead.pk)
    job_operations.replay([dead.pk], check=lambda job: None)
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    moment = younger.day + timedelta(hours=1)
    run_sql("UPDATE django_jobs_job SET finished_at = %s WHERE id = %s", [moment, dead.pk])
    archive(tmp_path, "--drop")
    assert ids_in(younger.files(tmp_path)[0]) == [*younger.ids, dead.pk]
    assert not Job.objects.exists()
    assert Run.objects.filter(pk=kept.pk).exists() is (age is not None)
