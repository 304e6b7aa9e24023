"""The account of the chaos test about partitions finds what is lost, doubled or left between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle import dropping, history
from tests.chaos import partitions
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    failure,
    register_worker,
    run_sql,
    settle_one,
)
from tests.workflows import start_graph

JOBS, RUNS = "django_jobs_job_20200101", "django_jobs_run_20200101"


class Here:
    """The tests' database."""

    @staticmethod
    def execute(sql: str) -> None:
        run_sql(sql)

    @staticmethod
    def fetch(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return run_sql(sql, parameters)


@pytest.fixture
def storm(db: None, tmp_path: Path) -> Path:
    """Jobs of a day, of which one failed and is dead, and of today; one partition was dropped."""
    partitions.make(Here())
    for table, name in (history.JOBS, JOBS), (history.RUNS, RUNS):
        run_sql(f"CREATE TABLE {name} (LIKE {table.default} INCLUDING ALL)")
        run_sql(
            f"ALTER TABLE {table.name} ATTACH PARTITION {name}"
            " FOR VALUES FROM ('2020-01-01') TO ('2020-01-02')"
        )
    for outcome in Succeeded(), Succeeded(), failure(final=True):
        held = enqueue_and_claim()
        settle_one(held, outcome)
        for name, column in ("django_jobs_job", "id"), ("django_jobs_run", "job_id"):
            run_sql(
                f"UPDATE {name} SET finished_at = '2020-01-01 12:00' WHERE {column} = {held.id}"
            )
    settle_one(enqueue_and_claim(), Succeeded())
    # What was moved here by hand has left the partition in which it was noted.
    for kind in "job", "run":
        run_sql(f"DELETE FROM accounts.ended_{kind} WHERE ({kind}).finished_at > '2020-01-02'"
                f" AND ({kind}).id IN (SELECT id FROM django_jobs_{kind}_20200101)")  # fmt: skip
    note(tmp_path)
    return tmp_path


def note(directory: Path, **found: Any) -> None:
    usual = {"counts": {"partitions dropped": 2}, "wrong": [], "slowest": 0.1, "archived": []}
    (directory / "partitions.json").write_text(json.dumps(usual | found))


def drop(*names: str) -> None:
    for name in names:
        (one,) = (
            one for table in history.TABLES for one in history.partitions(table) if one.name == name
        )
        assert dropping.drop(one)


def doubled(partition: str, default: str) -> str:
    return (
        f"CREATE TEMPORARY TABLE one ON COMMIT DROP AS SELECT * FROM {partition} LIMIT 1;"
        f"UPDATE one SET finished_at = now(); INSERT INTO {default} TABLE one"
    )


def found(directory: Path) -> list[str]:
    problems = list(partitions.problems(Here(), directory))
    assert {number for number, _ in problems} <= {17}
    return [text.split(":")[0] for _, text in problems]


def test_what_was_dropped_and_what_was_kept_balance(storm: Path):
    assert found(storm) == []
    drop(JOBS, RUNS)
    assert found(storm) == []
    counts = partitions.counted(Here(), storm)
    assert (counts["jobs dropped"], counts["runs dropped"], counts["runs kept"]) == (2, 3, 1)
    for name, count in {"job": 4, "run": 4}.items():
        ((all_of_them,),) = run_sql(f"SELECT count(DISTINCT id) FROM accounts.django_jobs_{name}")
        assert all_of_them == count
        assert run_sql(f"SELECT count(*) FROM accounts.django_jobs_{name}") == [(count,)]


@pytest.mark.parametrize(
    "fault, problem",
    [
        (
            f"DELETE FROM {JOBS} WHERE id = (SELECT min(id) FROM {JOBS})",
            "a job that ended and is neither there nor in a dropped partition",
        ),
        (
            f"DELETE FROM {RUNS} WHERE id = (SELECT min(id) FROM {RUNS})",
            "a run that is neither there nor in a dropped partition, and its job was not dropped",
        ),
        (doubled(JOBS, "django_jobs_job_history_default"), "a job that is there twice"),
        (doubled(RUNS, "django_jobs_run_default"), "a run that is there twice"),
        (
            f"{doubled(RUNS, 'django_jobs_run_default')}; DROP TABLE {JOBS}, {RUNS}",
            "a run in the default partition whose job was dropped",
        ),
        (f"DROP TABLE {RUNS}", "a job that is there and has lost runs"),
        (
            f"ALTER TABLE django_jobs_run DETACH PARTITION {RUNS}",
            "a partition that is neither attached nor dropped",
        ),
        (
            f"ALTER TABLE {JOBS} RENAME TO elsewhere",
            "a job that was dropped and is still there",
        ),
        (
            "DELETE FROM accounts.ended_run WHERE true",
            "a row that entered a partition without a note",
        ),
    ],
)
def test_each_row_lost_or_doubled_does_not_balance(storm: Path, fault: str, problem: str):
    run_sql(fault)
    assert problem in found(storm)


def test_a_step_of_a_workflow_is_kept_when_its_partition_is_dropped(storm: Path):
    start_graph({"a": ""})
    (held,) = claim_ready(register_worker())
    settle_one(held, Succeeded())
    for name, column in ("django_jobs_job", "id"), ("django_jobs_run", "job_id"):
        run_sql(f"UPDATE {name} SET finished_at = '2020-01-01 13:00' WHERE {column} = {held.id}")
    drop(JOBS, RUNS)
    assert partitions.counted(Here(), storm)["steps kept"] == 1
    assert run_sql(f"SELECT count(*) FROM accounts.django_jobs_job WHERE id = {held.id}") == [(1,)]
    run_sql(f"DELETE FROM django_jobs_job WHERE id = {held.id}")
    assert "a step that ended and is not there" in found(storm)


def test_a_drop_that_was_not_as_promised_does_not_balance(storm: Path):
    note(storm, wrong=["drop() was True, and it is there"])
    assert found(storm) == ["drop() was True, and it is there"]
    note(storm, slowest=60.0)
    assert found(storm) == ["a drop of a partition in use took 60.00 s"]
    note(storm, counts={})
    assert found(storm) == ["no partition was dropped, so nothing was tried"]


def test_a_job_that_was_dropped_and_is_in_no_file_does_not_balance(storm: Path):
    note(storm, archived=[JOBS])
    assert found(storm) == [f"{JOBS} was dropped from its file, which does not exist"]
    (storm / "archive").mkdir()
    file = storm / "archive" / f"{JOBS}.jsonl"
    ids = [id_ for (id_,) in run_sql(f"SELECT id FROM {JOBS} ORDER BY id")]
    assert len(ids) == 2
    for written, problems in ((ids, []), (ids[:1], [f"lacks [{ids[1]}]"])):
        lines = [json.dumps({"id": id_, "workflow_run_id": None}) for id_ in written]
        file.write_text("\n".join(lines))
        named = f"{JOBS} was dropped from its file, which "
        assert found(storm) == [f"{named}{problem}" for problem in problems]
