"""``jobarchive``: write old partitions of the history to files."""

from __future__ import annotations

import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection, transaction
from pytest_django import Settings

from django_jobs.lifecycle import archiving
from django_jobs.management.commands import jobarchive
from django_jobs.models import Job, Run
from tests.app.jobs import noop
from tests.commands import printed
from tests.factories import make_dead, run_sql
from tests.lifecycle.test_pruning import finish
from tests.management.archives import (
    DAYS,
    FORMATS,
    Old,
    archive,
    ids_in,
    lines_of,
    names_in,
)

pytestmark = pytest.mark.django_db(transaction=True)

GONE = "{} was dropped meanwhile, by retention or by another jobarchive."

AWKWARD = (
    "line\nbreak\r\n\ttab \\ \\n \\\\ \"double\" 'single' , ; \x01\x02\x7f é 🦄 \u2028 \\. \\N"
)


@pytest.mark.parametrize("form", FORMATS)
def test_each_old_partition_is_written_to_a_file_and_kept(
    old: Old, tmp_path: Path, form: str
) -> None:
    jobs, runs = old.files(tmp_path, form)
    assert archive(tmp_path, "--format", form).splitlines() == [
        f"Wrote {path}: 3 rows, {path.stat().st_size} bytes." for path in (jobs, runs)
    ]
    assert names_in(tmp_path) == [jobs.name, runs.name]
    assert ids_in(jobs) == old.ids
    assert ids_in(runs) == sorted(Run.objects.values_list("pk", flat=True))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (jobs, runs)} == {0o600}
    assert old.exist() == [True, True]


def test_drop_removes_the_partitions_and_keeps_the_files(old: Old, tmp_path: Path) -> None:
    (young,) = finish(1)
    assert archive(tmp_path, "--drop").splitlines()[1::2] == [
        f"Dropped {old.job}.",
        f"Dropped {old.run}.",
    ]
    assert old.exist() == [False, False]
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    assert list(Job.objects.values_list("pk", flat=True)) == [young]
    assert list(Run.objects.values_list("job_id", flat=True)) == [young]


def make_awkward(old: Old) -> None:
    """Values that a file can lose: of a job and of its run."""
    payload = {"text": AWKWARD, AWKWARD: [None, 1.5, -0.0, 12345678901234567890, [[{}]]]}
    run_sql(
        f"UPDATE {old.job} SET payload = %s, reason = %s, available_at = 'infinity',"
        " expires_at = '-infinity', created_at = '0044-03-15 12:00+00 BC', rank = 0.1 + 0.2,"
        " idempotency_key = '' WHERE id = %s",
        [json.dumps(payload), AWKWARD, old.ids[0]],
    )
    run_sql(
        f"UPDATE {old.run} SET traceback = %s, error_type = '\\.', error_message = '\\N',"
        " available_at = '12026-01-01 00:00+00' WHERE job_id = %s",
        [AWKWARD * 10_000, old.ids[0]],
    )


READ = {
    "csv": "COPY archived FROM STDIN (FORMAT csv, HEADER)",
    "jsonl": "COPY lines FROM STDIN (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02')",
}
DIFFERENCES = """
(TABLE archived EXCEPT ALL TABLE {0}) UNION ALL (TABLE {0} EXCEPT ALL TABLE archived)
"""


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_gives_back_each_value(old: Old, tmp_path: Path, form: str) -> None:
    make_awkward(old)
    archive(tmp_path, "--format", form)
    for table, path in zip((old.job, old.run), old.files(tmp_path, form), strict=True):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL TimeZone = 'Asia/Kathmandu'")
            cursor.execute(f"CREATE TEMP TABLE archived (LIKE {table}) ON COMMIT DROP")
            cursor.execute("CREATE TEMP TABLE lines (line jsonb) ON COMMIT DROP")
            with cursor.copy(READ[form]) as copy:
                copy.write(path.read_bytes())
            cursor.execute(
                f"INSERT INTO archived SELECT was.* FROM lines,"
                f" jsonb_populate_record(NULL::{table}, line) AS was"
            )
            cursor.execute("SELECT count(*) FROM archived")
            assert cursor.fetchone() == (3,)
            cursor.execute(DIFFERENCES.format(table))
            assert cursor.fetchall() == []


def test_each_line_is_json_that_python_reads(old: Old, tmp_path: Path) -> None:
    make_awkward(old)
    archive(tmp_path)
    jobs, runs = old.files(tmp_path)
    by_id = {row["id"]: row for row in map(json.loads, lines_of(jobs))}
    awkward, job = by_id[old.ids[0]], Job.objects.get(pk=old.ids[0])
    assert (awkward["payload"], awkward["reason"]) == (job.payload, AWKWARD)
    assert (awkward["rank"], awkward["worker_id"]) == (job.rank, job.worker_id)
    assert (awkward["available_at"], awkward["expires_at"]) == ("infinity", "-infinity")
    assert by_id[old.ids[1]]["payload"] == {}
    tracebacks = {json.loads(line)["traceback"] for line in lines_of(runs)}
    assert tracebacks == {AWKWARD * 10_000, ""}


def test_a_second_run_writes_nothing_again(old: Old, tmp_path: Path) -> None:
    archive(tmp_path)
    before = [path.stat().st_mtime_ns for path in old.files(tmp_path)]
    printed = archive(tmp_path, "--drop").splitlines()
    jobs, runs = old.files(tmp_path)
    assert printed == [
        f"{jobs} was complete: 3 rows, {jobs.stat().st_size} bytes.",
        f"Dropped {old.job}.",
        f"{runs} was complete: 3 rows, {runs.stat().st_size} bytes.",
        f"Dropped {old.run}.",
    ]
    assert [path.stat().st_mtime_ns for path in old.files(tmp_path)] == before
    assert names_in(tmp_path) == [jobs.name, runs.name]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("lost", [0, 1, 100])
def test_a_file_with_other_rows_is_left_and_a_second_one_written(
    old: Old, tmp_path: Path, form: str, lost: int
) -> None:
    archive(tmp_path, "--format", form)
    path, _ = old.files(tmp_path, form)
    first = path.read_bytes()[: path.stat().st_size - lost]
    path.write_bytes(first)
    if not lost:
        old.put(finish(1))
    second = tmp_path / f"{old.job}.2.{form}"
    printed = archive(tmp_path, "--format", form, "--drop")
    assert f"{path} has other rows than {old.job}, and was left." in printed
    assert f"Wrote {second}: {3 if lost else 4} rows" in printed
    assert path.read_bytes() == first
    assert len(ids_in(second)) == (3 if lost else 4)
    assert old.exist() == [False, False]


def test_an_empty_partition_has_a_file_too(old: Old, tmp_path: Path) -> None:
    run_sql(f"TRUNCATE {old.job}, {old.run}")
    assert "csv: 0 rows" in archive(tmp_path, "--format", "csv", "--drop")
    assert [ids_in(path) for path in old.files(tmp_path, "csv")] == [[], []]
    assert old.exist() == [False, False]


def test_live_and_dead_jobs_and_young_partitions_are_not_archived(old: Old, tmp_path: Path) -> None:
    waiting, dead = noop.enqueue().pk, make_dead().pk
    run_sql(f"UPDATE django_jobs_job SET finished_at = '{old.day}' WHERE id = {dead}")
    assert archive(tmp_path, "--drop", before="50d") == (
        "Nothing to archive: no partition ended 50d ago."
    )
    archive(tmp_path, "--drop")
    assert ids_in(old.files(tmp_path)[0]) == old.ids
    assert set(Job.objects.values_list("pk", flat=True)) == {waiting, dead}


def test_runs_of_a_dead_job_are_in_the_file_and_stay(old: Old, tmp_path: Path) -> None:
    dead = make_dead().pk
    old.put([dead])
    archive(tmp_path, "--drop")
    jobs, runs = old.files(tmp_path)
    assert (dead in ids_in(jobs), old.exist()) == (False, [False, False])
    assert {json.loads(line)["job_id"] for line in lines_of(runs)} == {dead, *old.ids}
    assert list(Run.objects.values_list("job_id", flat=True)) == [dead]


def test_a_partition_that_retention_drops_meanwhile_is_left_out(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = archiving.ended_before(30 * 86_400.0)
    monkeypatch.setattr(jobarchive, "ended_before", lambda age: found)
    run_sql(f"DROP TABLE {old.job}")
    assert archive(tmp_path).splitlines()[0] == GONE.format(old.job)
    assert names_in(tmp_path) == [old.files(tmp_path)[1].name]


def test_a_partition_that_another_drops_after_its_file_was_written_stops_nothing(
    old: Old, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = jobarchive.archived

    def written_and_dropped(partition: Any, *given: Any) -> Any:
        file = write(partition, *given)
        run_sql(f"DROP TABLE IF EXISTS {old.job}")
        return file

    monkeypatch.setattr(jobarchive, "archived", written_and_dropped)
    said = archive(tmp_path, "--drop").splitlines()
    assert said[1] == GONE.format(old.job)
    assert said[3] == f"Dropped {old.run}."
    assert ids_in(old.files(tmp_path)[0]) == old.ids


def test_a_role_without_rights_gets_an_error_of_one_line(old: Old, tmp_path: Path) -> None:
    role = f"reader_{uuid.uuid4().hex[:8]}"
    run_sql(f"CREATE ROLE {role}; GRANT pg_read_all_data TO {role}; SET ROLE {role}")
    try:
        with pytest.raises(CommandError, match="the database 'default' refused: permission denied"):
            archive(tmp_path, "--drop")
    finally:
        run_sql(f"RESET ROLE; DROP ROLE {role}")
    assert old.exist() == [True, True]


def test_a_partition_is_old_when_its_whole_range_is(old: Old, tmp_path: Path) -> None:
    assert archive(tmp_path, before=f"{DAYS}d").startswith("Nothing")
    assert archive(tmp_path, before=f"{DAYS - 1}d").startswith("Wrote")


def test_verbosity_0_prints_nothing(old: Old, tmp_path: Path) -> None:
    assert archive(tmp_path, "--drop", "--verbosity", "0") == ""
    assert old.exist() == [False, False]


@pytest.mark.parametrize(
    "before, to, problem",
    [
        ("soon", ".", "--before: 'soon' is not a duration; write it as 90s"),
        ("30d", "missing", "--to: .*missing does not exist"),
        ("30d", "file", "--to: .*file is not a directory"),
        ("12h", ".", "--before takes at least the time of a partition, which is a day, not '12h'"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, before: str, to: str, problem: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CommandError, match=problem):
        archive(tmp_path / to, before=before)


@pytest.mark.parametrize("period, shortest", [("day", 1), ("week", 7), ("month", 28)])
def test_an_age_is_at_least_as_long_as_a_partition(
    tmp_path: Path, settings: Settings, period: str, shortest: int
) -> None:
    settings.DJANGO_JOBS = {"HISTORY": {"partition": period}}
    assert archive(tmp_path, before=f"{shortest}d").startswith("Nothing to archive")
    with pytest.raises(CommandError, match=f"which is a {period}, not '{shortest - 0.1}d'"):
        archive(tmp_path, before=f"{shortest - 0.1}d")


def test_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(CommandError, match="--to: '' does not exist"):
        printed("jobarchive", "--before", "30d", "--to", "")


def test_a_directory_without_the_right_to_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(CommandError, match="is not writable"):
        archive(tmp_path)


def test_a_transaction_is_refused(tmp_path: Path) -> None:
    with (
        transaction.atomic(),
        pytest.raises(CommandError, match=r"jobarchive cannot run inside transaction\.atomic"),
    ):
        archive(tmp_path)


def test_missing_tables_are_reported_with_the_command_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobarchive, "demand_no_transaction", lambda command: None)
    with transaction.atomic():
        run_sql("DROP TABLE django_jobs_job, django_jobs_run")
        with pytest.raises(CommandError, match="django_jobs has no tables in 'default': run"):
            archive(tmp_path)
        transaction.set_rollback(True)
