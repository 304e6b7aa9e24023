"""A column of a job is listed once: inserts, COPY and claims follow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.db import models

import django_jobs
from django_jobs import enqueue_many
from django_jobs.lifecycle import bulk_insert, claiming, enqueueing, replacing, unique_keys
from django_jobs.lifecycle.job_columns import CLAIMED, COMMON_COLUMNS, GATE_COLUMNS, NEW
from django_jobs.lifecycle.schedules import firing
from django_jobs.models import Job, Resource
from tests.app.gate_jobs import transfer_funds
from tests.app.jobs import add
from tests.factories import claim_ready, due_schedule, look, register_worker

PACKAGE = Path(django_jobs.__file__).parent
INSERTS = {
    "ENQUEUE": enqueueing.ENQUEUE,
    "ENQUEUE_PLAIN": enqueueing.ENQUEUE_PLAIN,
    "ENQUEUE_GATED": enqueueing.ENQUEUE_GATED,
    "ENQUEUE_KEYED": enqueueing.ENQUEUE_KEYED,
    "ENQUEUE_KEYED_GATED": enqueueing.ENQUEUE_KEYED_GATED,
    "ENQUEUE_UNIQUE": unique_keys.ENQUEUE_UNIQUE,
    "REPLACE": replacing.REPLACE,
    "REPLACE_UNIQUE": replacing.REPLACE_UNIQUE,
    "ENQUEUE_MANY_UNIQUE": unique_keys.ENQUEUE_MANY_UNIQUE,
    "COPY": bulk_insert.COPY,
    "COPY_GATED": bulk_insert.COPY_GATED,
    "INSERT_JOBS": firing.INSERT_JOBS,
}
FIELDS = {field.column: field for field in Job._meta.concrete_fields}


def columns_of(insert: str) -> list[str]:
    found = re.search(r"(?:INSERT INTO|COPY) django_jobs_job_live \(([\w\s,]+)\)", insert)
    assert found is not None
    return [name.strip() for name in found[1].split(",")]


def begins_by_itself(field: models.Field[Any, Any]) -> bool:
    return field.null or field.primary_key or field.has_db_default()


@pytest.mark.parametrize("name", INSERTS)
def test_an_insert_names_each_column_that_does_not_begin_by_itself(name: str) -> None:
    named = columns_of(INSERTS[name])
    assert len(named) == len(set(named))
    assert {column for column in FIELDS if not begins_by_itself(FIELDS[column])} <= set(named)
    assert set(COMMON_COLUMNS) <= set(named) <= set(FIELDS)


def test_each_column_that_the_database_fills_begins_as_the_model_says() -> None:
    filled = {
        field.attname: field._db_default_expression.value  # type: ignore[attr-defined]
        for field in FIELDS.values()
        if field.has_db_default()
    }
    assert {name: NEW[name] for name in filled} == filled


@pytest.mark.parametrize("word", ["INSERT INTO", "COPY"])
def test_no_statement_of_the_package_spells_the_columns_itself(word: str) -> None:
    spelt = re.compile(rf"{word}\s+django_jobs_job(_live)?\s*\(\s*[^\s{{]")
    for table in ("django_jobs_job", "django_jobs_job_live"):
        assert spelt.search(f"{word} {table} (\n    id, queue)")
    found = [path for path in PACKAGE.rglob("*.py") if spelt.search(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "statement", [claiming.CLAIM, claiming.CLAIM_WITHIN_BYTES, claiming.CLAIMED_BY]
)
def test_each_claim_returns_the_list_of_a_claimed_job(statement: str) -> None:
    assert CLAIMED in statement


@pytest.mark.django_db
def test_each_way_to_enqueue_writes_the_same_row() -> None:
    chosen = add.using(priority=7, max_attempts=9, headers={"trace": "a\tb\\"})
    ids = [
        chosen.enqueue(1).pk,
        chosen.using(idempotency_key="one").enqueue(1).pk,
        *chosen.enqueue_many([{"first": 1}]),
        *chosen.enqueue_many([{"first": 1}], idempotency_keys=["many"]),
        chosen.using(idempotency_key="unique", unique_for=60).enqueue(1).pk,
        *chosen.using(unique_for=60).enqueue_many([{"first": 1}], idempotency_keys=["uniques"]),
        chosen.using(idempotency_key="replace", on_duplicate="replace").enqueue(1).pk,
    ]
    rows = [Job.objects.filter(pk=id_).values().get() for id_ in ids]
    for row in rows:
        weight = row["available_at"].timestamp() - row["rank"]
        assert weight == pytest.approx(7 * 60, abs=1e-3)
        assert row["available_at"] == row["created_at"]
        for name in ("id", "rank", "available_at", "created_at", "idempotency_key"):
            del row[name]
    assert rows[1:] == rows[:1] * 6


@pytest.fixture
def _resources(db: None) -> None:
    Resource.objects.bulk_create([Resource(name="stripe"), Resource(name="ledger")])


@pytest.mark.usefixtures("_resources")
@pytest.mark.parametrize("delay", [0, 60])
def test_each_way_to_enqueue_writes_the_same_gates(delay: int) -> None:
    payload = {"account_id": 7, "tenant": "a\\b\"'☃"}
    chosen = transfer_funds.using(delay=delay)
    ids = [
        chosen.enqueue(**payload).pk,
        chosen.using(idempotency_key="one").enqueue(**payload).pk,
        *chosen.enqueue_many([payload]),
        *chosen.enqueue_many([payload], idempotency_keys=["many"]),
        *chosen.enqueue_many([payload] * 100, idempotency_keys=map(str, range(100))),
        chosen.using(idempotency_key="unique", unique_for=60).enqueue(**payload).pk,
        *chosen.using(unique_for=60).enqueue_many([payload], idempotency_keys=["uniques"]),
        chosen.using(idempotency_key="replace", on_duplicate="replace").enqueue(**payload).pk,
    ]
    rows = [Job.objects.filter(pk=id_).values().get() for id_ in ids]
    for row in rows:
        for name in ("id", "rank", "available_at", "created_at", "idempotency_key"):
            del row[name]
    assert rows[1:] == rows[:1] * 106
    assert rows[0]["status"] == ("scheduled" if delay else "blocked")
    assert {name for name in GATE_COLUMNS if rows[0][name] is None} == set()


@pytest.mark.django_db
def test_a_schedule_writes_the_row_that_an_enqueue_writes() -> None:
    due_schedule(job_type="app.add", payload={"first": 1}, priority=7)
    look()
    scheduled = Job.objects.values().get()
    (id_,) = enqueue_many("app.add", [{"first": 1}], priority=7)
    enqueued = Job.objects.filter(pk=id_).values().get()
    differ = {name for name in enqueued if scheduled[name] != enqueued[name]}
    assert differ == {
        *("id", "rank", "available_at", "created_at"),
        *("idempotency_key", "schedule_id", "scheduled_for"),
    }


@pytest.mark.usefixtures("_resources")
def test_a_schedule_writes_the_gates_that_an_enqueue_writes() -> None:
    payload = {"account_id": 7, "tenant": "a\\b\"'☃"}
    due_schedule(job_type="app.transfer_funds", payload=payload, queue="bulk")
    look()
    scheduled = Job.objects.values("status", *GATE_COLUMNS).get()
    (id_,) = enqueue_many("app.transfer_funds", [payload], queue="bulk")
    assert scheduled == Job.objects.filter(pk=id_).values("status", *GATE_COLUMNS).get()
    assert scheduled["status"] == "blocked"


@pytest.mark.django_db
def test_a_claimed_job_has_the_values_of_its_row() -> None:
    chosen = add.using(priority=7, idempotency_key="k", headers={"trace": "abc"})
    row = chosen.enqueue(1)
    (claimed,) = claim_ready(register_worker())
    for name in (
        "rank",
        "id",
        "queue",
        "job_type",
        "payload_version",
        "priority",
        "failures",
        "crashes",
        "max_attempts",
        "max_crashes",
        "timeout",
        "idempotency_key",
        "at_most_once",
    ):
        assert getattr(claimed, name) == getattr(row, name), name
    assert claimed.attempt == row.attempt + 1
    assert claimed.available_at == pytest.approx(row.available_at.timestamp())
    assert (claimed.payload, claimed.headers) == ('{"first": 1}', '{"trace": "abc"}')
    assert (claimed.expires_at, claimed.scheduled_for, claimed.backoff) == (None, None, None)
