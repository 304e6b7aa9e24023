"""Indexes that are missing, invalid, left over or bloated, provoked on the real tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import IntegrityError, connections
from pytest_django import Settings

from django_jobs.doctor import tables
from django_jobs.doctor.tables import declared_indexes, examine_indexes
from django_jobs.lifecycle.history import RUNS, partitions
from django_jobs.maintenance.history import make_due_partitions
from tests.app.jobs import noop
from tests.factories import run_sql, vacuum

from .finding import findings

BUILD = "CREATE UNIQUE INDEX CONCURRENTLY interrupted ON django_jobs_job_live (queue)"
FILL = """
INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)
SELECT 'default', lpad(n::text, 100, 'k'), 'app.noop', n, now()
FROM generate_series(1, 120000) AS n
"""


@pytest.fixture
def interrupted(transactional_db: None) -> Iterator[None]:
    """A build that PostgreSQL has given up, with what it leaves."""
    noop.enqueue_many([{}] * 2)
    with pytest.raises(IntegrityError):
        run_sql(BUILD)
    yield
    for name in ("interrupted", "interrupted_ccnew"):
        run_sql(f"DROP INDEX IF EXISTS {name}")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["django_jobs_ready", "django_jobs_run_crashed"])
def test_a_missing_index_is_found(name: str) -> None:
    assert not findings(examine_indexes, "D121")
    run_sql(f"DROP INDEX {name}")
    (missing,) = findings(examine_indexes, "D121")
    assert (missing.severity, missing.facts["index"]) == ("error", name)
    assert missing.commands == (f"manage.py sqlmigrate django_jobs 0001 | grep '\"{name}\"'",)


@pytest.mark.django_db
def test_the_statement_of_a_missing_index_is_that_of_the_jobs_database(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"DATABASE": "jobs"}
    connections["jobs"] = connections["default"]
    run_sql("DROP INDEX django_jobs_ready")
    try:
        (missing,) = findings(examine_indexes, "D121")
    finally:
        del connections["jobs"]
    assert "0001 --database=jobs |" in missing.commands[0]


def test_an_index_that_a_partition_of_a_day_lacks_is_found_until_it_is_built(
    transactional_db: None,
) -> None:
    make_due_partitions()
    assert not findings(examine_indexes, "D121")
    partition = partitions(RUNS)[-1].name
    ((index,),) = run_sql(
        "SELECT indexname FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%(job_id, %%'",
        [partition],
    )
    run_sql(f"ALTER TABLE {partition} DROP CONSTRAINT {index}")
    (missing,) = findings(examine_indexes, "D121")
    assert missing.facts == {"index": "django_jobs_run_attempt", "table": partition}
    run_sql(*missing.commands)
    assert not findings(examine_indexes, "D121")


def test_unique_keys_are_among_the_declared_indexes() -> None:
    names = {name for name, _, _ in declared_indexes()}
    assert {"django_jobs_live_key", "django_jobs_tick_due", "django_jobs_ready"} <= names
    assert "django_jobs_status" not in names  # a check needs no index


def test_an_invalid_index_is_found_until_it_is_built(interrupted: None) -> None:
    (invalid,) = findings(examine_indexes, "D122")
    assert invalid.facts["index"] == "interrupted"
    run_sql("TRUNCATE django_jobs_job")
    run_sql(*invalid.commands)
    assert not findings(examine_indexes, "D122")


def test_what_an_interrupted_reindex_leaves_is_found_until_it_is_dropped(
    interrupted: None,
) -> None:
    assert not findings(examine_indexes, "D123")
    with pytest.raises(IntegrityError):
        run_sql("REINDEX INDEX CONCURRENTLY interrupted")
    (left,) = findings(examine_indexes, "D123")
    assert left.facts["index"] == "interrupted_ccnew"
    run_sql(*left.commands)
    assert not findings(examine_indexes, "D123")


def test_a_bloated_index_is_found_until_it_is_built_again(transactional_db: None) -> None:
    run_sql(FILL)
    vacuum("VACUUM ANALYZE django_jobs_uniquekey")
    assert not findings(examine_indexes, "D124")
    run_sql("DELETE FROM django_jobs_uniquekey WHERE job_id % 20 <> 0")
    vacuum("VACUUM ANALYZE django_jobs_uniquekey")
    bloated = findings(examine_indexes, "D124")
    assert bloated
    assert {one.facts["table"] for one in bloated} == {"django_jobs_uniquekey"}
    for one in bloated:
        run_sql(*one.commands)
    assert not findings(examine_indexes, "D124")


def test_an_index_without_statistics_is_no_finding(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BLOATED_BYTES", 2**20)
    run_sql("ALTER TABLE django_jobs_uniquekey SET (autovacuum_enabled = off)")
    try:
        run_sql("TRUNCATE django_jobs_uniquekey")  # as a partition of a new day
        run_sql(FILL)
        bloated = [one.facts["table"] for one in findings(examine_indexes, "D124")]
        assert "django_jobs_uniquekey" not in bloated  # others may have rows of tests before
    finally:
        run_sql("ALTER TABLE django_jobs_uniquekey RESET (autovacuum_enabled)")
