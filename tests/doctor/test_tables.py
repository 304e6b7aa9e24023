"""Dead rows, autovacuum and storage parameters, provoked on the real tables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_jobs.doctor import tables
from django_jobs.doctor.findings import Finding
from django_jobs.doctor.tables import PARAMETERS, examine_tables
from django_jobs.models.database import fetch
from tests.factories import run_sql, vacuum

from .finding import findings

DEAD = """
INSERT INTO django_jobs_uniquekey (queue, key, job_type, job_id, expires_at)
SELECT 'default', n, 'app.noop', n, now() FROM generate_series(1, 30000) AS n
"""


@pytest.fixture
def unvacuumed(transactional_db: None) -> Iterator[None]:
    """A table that autovacuum leaves alone, so that it cannot end the test's dead rows first. It
    has none of tests before."""
    run_sql("ALTER TABLE django_jobs_uniquekey SET (autovacuum_enabled = off)")
    vacuum("VACUUM django_jobs_uniquekey")
    yield
    run_sql("ALTER TABLE django_jobs_uniquekey RESET (autovacuum_enabled)")


def flush() -> None:
    run_sql("SELECT pg_stat_force_next_flush()")
    run_sql("SELECT 1")


def test_dead_rows_far_beyond_the_threshold_are_found_until_a_vacuum(unvacuumed: None) -> None:
    def found() -> list[Finding]:  # other tables may have dead rows of tests before
        flush()
        all_found = findings(examine_tables, "D101")
        return [one for one in all_found if one.facts["table"] == "django_jobs_uniquekey"]

    run_sql(DEAD)
    assert not found()
    run_sql("DELETE FROM django_jobs_uniquekey")
    (dead,) = found()
    assert dead.facts["dead"] == 30_000
    assert "30,000 dead rows" in dead.problem
    (command,) = dead.commands
    vacuum(command)
    assert not found()


@pytest.mark.django_db
@pytest.mark.parametrize("value", ["false", "OFF", "0", "no"])
def test_a_table_without_autovacuum_is_found_until_the_command_is_run(value: str) -> None:
    assert not findings(examine_tables, "D103")
    run_sql(f"ALTER TABLE django_jobs_job_live SET (autovacuum_enabled = {value})")
    (off,) = findings(examine_tables, "D103")
    assert off.facts == {"table": "django_jobs_job_live"}
    assert off.severity == "error"
    run_sql(*off.commands)
    assert not findings(examine_tables, "D103")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("table", "parameter"),
    [
        ("django_jobs_worker", "fillfactor"),
        ("django_jobs_job_live", "autovacuum_vacuum_scale_factor"),
    ],
)
def test_a_lost_storage_parameter_is_found_and_another_value_is_not(
    table: str, parameter: str
) -> None:
    run_sql(f"ALTER TABLE {table} SET ({parameter} = 10)")
    assert not findings(examine_tables, "D104")
    run_sql(f"ALTER TABLE {table} RESET ({parameter})")
    (lost,) = findings(examine_tables, "D104")
    assert (lost.facts["table"], len(lost.facts["lost"])) == (table, 1)
    run_sql(*lost.commands)
    assert not findings(examine_tables, "D104")


@pytest.mark.django_db
def test_the_parameters_are_those_that_migrate_sets() -> None:
    for table, parameters in PARAMETERS.items():
        ((options,),) = run_sql("SELECT reloptions FROM pg_class WHERE relname = %s", [table])
        assert sorted(options) == sorted(parameters)


@pytest.mark.django_db
def test_each_table_with_rows_is_examined() -> None:
    rows = fetch(tables.TABLES.sql, tables.TABLES.parameters())
    with_rows = run_sql(
        "SELECT relname::text FROM pg_class WHERE relname ^@ 'django_jobs_' AND relkind = 'r'"
    )
    assert {row[0] for row in rows} == {name for (name,) in with_rows}
