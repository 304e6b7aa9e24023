"""The forms of the admin have what tasks get: dates and the like, and not their encoding."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("celery")

from django_jobs import registry
from django_jobs.admin.editing.enqueue import EnqueueForm
from django_jobs.admin.editing.form import JobForm
from django_jobs.admin.forms.arguments import payload_of
from django_jobs.admin.schedules.form import form_for
from django_jobs.models import Job, Schedule
from django_jobs.testing import run_jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]

DAY = datetime.date(2025, 1, 2)
VALUES = {
    "day": (DAY, "2025-01-02", "2026-03-30", datetime.date(2026, 3, 30)),
    "at": (
        datetime.datetime(2025, 1, 2, 3, 4, tzinfo=datetime.UTC),
        "2025-01-02T03:04:00+00:00",
        "2026-03-30T02:30:00+01:00",
        datetime.datetime(2026, 3, 30, 1, 30, tzinfo=datetime.UTC),
    ),
    "hour": (datetime.time(2, 30), "02:30:00", "03:45", datetime.time(3, 45)),
    "key": (UUID(int=7), str(UUID(int=7)), str(UUID(int=8)), UUID(int=8)),
    "amount": (Decimal("1.10"), "1.10", "2.50", Decimal("2.50")),
}
GIVEN = {name: value for name, (value, *_) in VALUES.items()}
SHOWN = {name: text for name, (_, text, *_) in VALUES.items()}


def annotated(
    day: datetime.date,
    at: datetime.datetime | None,
    hour: datetime.time,
    key: UUID,
    amount: Decimal,
    n: int = 1,
) -> list[str]:
    return [type(one).__name__ for one in (day, at, hour, key, amount)]


def plain(day, at, hour, key, amount, n=1):  # type: ignore[no-untyped-def]
    return [type(one).__name__ for one in (day, at, hour, key, amount)]


def misleading(day: str, at: int, hour: bool, key: list[str], amount: int, n: int = 1) -> list[str]:
    return [type(one).__name__ for one in (day, at, hour, key, amount)]


FUNCTIONS = [annotated, plain, misleading]


def sent(form: Any, **changes: str) -> dict[str, str]:
    """What a browser sends of a form."""
    values = {name: form[name].value() for name in form.fields if name != "run_at"}
    texts = {name: "" if value is None else str(value) for name, value in values.items()}
    return texts | {f"argument_{name}": text for name, text in changes.items()}


def edited(job: Job, **changes: str) -> dict[str, Any]:
    """The payload of a job after its form was sent back."""
    job_type = registry.get(job.job_type)
    options: dict[str, Any] = {"stored": job.payload, "queue": "default", "priority": 0}
    form = JobForm(job_type, sent(JobForm(job_type, **options), **changes), **options)
    assert form.is_valid(), form.errors
    payload: dict[str, Any] = form.cleaned_data["payload"]
    return payload


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_shown_as_they_are_written(
    declare: Callable[..., Any], function: Callable[..., Any]
) -> None:
    declare(function).apply_async(kwargs=GIVEN, countdown=1000)
    job = Job.objects.get()
    form = JobForm(registry.get(job.job_type), stored=job.payload, queue="default")
    shown = {name: str(form[f"argument_{name}"].value()) for name in VALUES}
    assert shown == SHOWN


@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_was_left_alone_is_unchanged(
    declare: Callable[..., Any], function: Callable[..., Any]
) -> None:
    declare(function).apply_async(kwargs=GIVEN, countdown=1000)
    job = Job.objects.get()
    assert edited(job, n="5") == job.payload | {"n": 5}


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_changed_value_is_stored_as_by_delay(
    declare: Callable[..., Any], function: Callable[..., Any], name: str
) -> None:
    task = declare(function)
    task.apply_async(kwargs=GIVEN, countdown=1000)
    _, _, text, value = VALUES[name]
    payload = edited(Job.objects.get(), **{name: text})
    Job.objects.all().delete()
    task.delay(**{**GIVEN, name: value})
    job = Job.objects.get()
    assert {**payload, "at": None} == {**job.payload, "at": None}  # whose time zone may differ
    Job.objects.update(payload=payload)
    run_jobs(check=True)
    kinds = ["date", "datetime", "time", "UUID", "Decimal"]
    assert Job.objects.get().result == kinds


def test_a_job_is_enqueued_by_hand_as_by_delay(declare: Callable[..., Any]) -> None:
    task = declare(annotated)
    job_type = registry.get(task.name)
    form = EnqueueForm(job_type, sent(EnqueueForm(job_type), **SHOWN))
    assert form.is_valid(), form.errors
    task.delay(**GIVEN)
    assert form.cleaned_data["payload"] == Job.objects.get().payload


@pytest.mark.parametrize("text", ["tomorrow", "2026-02-30", "7"])
def test_what_is_no_date_is_refused(declare: Callable[..., Any], text: str) -> None:
    job_type = registry.get(declare(annotated).name)
    form = EnqueueForm(job_type, sent(EnqueueForm(job_type), **SHOWN | {"day": text}))
    assert list(form.errors) == ["argument_day"]


def test_a_default_is_shown_as_it_is_written(declare: Callable[..., Any]) -> None:
    def since(day: datetime.date = DAY) -> None: ...

    form = EnqueueForm(registry.get(declare(since).name))
    assert "Empty: 2025-01-02." in form.fields["argument_day"].help_text


@pytest.mark.parametrize("value", [{"__type__": "date", "__value__": "x"}, {"__type__": 1}, "x"])
def test_what_cannot_be_decoded_is_shown_even_so(declare: Callable[..., Any], value: Any) -> None:
    job_type = registry.get(declare(plain).name)
    form = JobForm(job_type, stored={"day": value}, queue="default")
    assert "x" in str(form["argument_day"].value()) or value == {"__type__": 1}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_schedule_keeps_and_shows_them_too(
    declare: Callable[..., Any], function: Callable[..., Any]
) -> None:
    task = declare(function)
    task.apply_async(kwargs=GIVEN, countdown=1000)
    payload = Job.objects.get().payload
    schedule = Schedule(name="daily", job_type=task.name, payload=payload, every=60)
    kind = form_for(registry.get(task.name), with_arguments=True)
    form = kind(instance=schedule)
    assert {name: str(form[f"argument_{name}"].value()) for name in VALUES} == SHOWN
    again = kind(sent(form, day="2026-03-30", n="5"), instance=schedule)
    again.is_valid()
    assert not [name for name in again.errors if name.startswith("argument_")]
    changed = {"day": payload["day"] | {"__value__": "2026-03-30"}, "n": 5}
    assert payload_of(again.arguments, again, again.stored) == payload | changed
