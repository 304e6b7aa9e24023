"""The forms of the admin have dates and the like in lists and objects as a person writes them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import pytest

pytest.importorskip("celery")

from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from django_jobs import registry
from django_jobs.admin.editing.difference import of_payload
from django_jobs.admin.editing.enqueue import EnqueueForm
from django_jobs.admin.editing.form import JobForm
from django_jobs.admin.forms.arguments import payload_of
from django_jobs.admin.schedules.form import form_for
from django_jobs.contrib.celery.messages.arguments import CODING
from django_jobs.models import Job, Schedule
from django_jobs.testing import run_jobs

from .test_forms import edited, sent

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]

DAY, OTHER = datetime.date(2025, 1, 2), datetime.date(2026, 3, 30)
KEY = UUID(int=7)
AT = datetime.datetime(2025, 1, 2, 3, 4, tzinfo=datetime.UTC)
MIXED = {
    "days": [DAY, OTHER],
    "rows": [{"at": AT, "amount": Decimal("1.10"), "text": "2025-01-02"}, "x", None, 7, True],
    "by_key": {"a": {"b": [[KEY], datetime.time(2, 30)]}, "raw": b"\xff\xfe"},
}
TEXTS = {
    "days": ["2025-01-02", "2026-03-30"],
    "rows": [
        {"at": "2025-01-02T03:04:00+00:00", "amount": "1.10", "text": "2025-01-02"},
        *("x", None, 7, True),
    ],
}


def mixed(days, rows, by_key, n=1):  # type: ignore[no-untyped-def]
    return repr([days, rows, by_key])


def keywords(**more):  # type: ignore[no-untyped-def]
    return repr(more)


def positions(*args, **kwargs):  # type: ignore[no-untyped-def]
    return repr([args, kwargs])


class Row(TypedDict):
    day: datetime.date
    note: str


def hinted(
    days: list[datetime.date],
    amounts: dict[str, Decimal] | None = None,
    pair: tuple[UUID, str] = (KEY, ""),
    rows: Sequence[Row] = (),
) -> str:
    return repr([days, amounts, pair, rows])


def stored_by(task: Any, *args: Any, **kwargs: Any) -> Any:
    """The payload of a job that ``delay()`` makes."""
    Job.objects.all().delete()
    task.delay(*args, **kwargs)
    return Job.objects.get().payload


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def json_of(job: Job, name: str) -> Any:
    form = JobForm(registry.get(job.job_type), stored=job.payload, queue="default")
    return json.loads(form[name].value())


def test_values_in_lists_and_objects_are_shown_as_they_are_written(
    declare: Callable[..., Any],
) -> None:
    declare(mixed).apply_async(kwargs=MIXED, countdown=1000)
    job = Job.objects.get()
    assert {name: json_of(job, f"argument_{name}") for name in TEXTS} == TEXTS
    assert json_of(job, "argument_by_key")["a"] == {"b": [[str(KEY)], "02:30:00"]}


@pytest.mark.parametrize(
    "function, args, kwargs",
    [
        (mixed, (), MIXED),
        (keywords, (), MIXED),
        (keywords, (), {"day": DAY, "key": KEY}),
        (positions, (DAY, [DAY]), MIXED),
        (hinted, ([DAY], {"a": Decimal("1.10")}, [KEY, "x"], [{"day": DAY, "note": "x"}]), {}),
    ],
)
def test_what_was_left_alone_is_unchanged_to_the_byte(
    declare: Callable[..., Any], function: Callable[..., Any], args: Any, kwargs: Any
) -> None:
    declare(function).apply_async(args, kwargs, countdown=1000)
    job = Job.objects.get()
    assert "__type__" in json.dumps(job.payload)
    assert canonical(edited(job)) == canonical(job.payload)


def test_the_rest_of_a_changed_list_is_unchanged(declare: Callable[..., Any]) -> None:
    task = declare(mixed)
    task.apply_async(kwargs=MIXED, countdown=1000)
    rows = [{"text": "new", "at": TEXTS["rows"][0]["at"], "amount": "1.10"}, *TEXTS["rows"][1:]]  # type: ignore[index]
    payload = edited(Job.objects.get(), rows=json.dumps(rows))
    changed = [{**MIXED["rows"][0], "text": "new"}, *MIXED["rows"][1:]]  # type: ignore[dict-item, index]
    assert payload == stored_by(task, **{**MIXED, "rows": changed})


@pytest.mark.parametrize(
    "typed, days",
    [
        (["2026-03-30"], [OTHER]),
        (["2026-03-30", "2025-01-02"], [OTHER, DAY]),
        (["2020-02-29", "2025-01-02", "2026-03-30"], [datetime.date(2020, 2, 29), DAY, OTHER]),
        (["2025-01-02", "2025-01-02"], [DAY, DAY]),
        ([], []),
        ([None, 7, ["x"]], [None, 7, ["x"]]),
    ],
)
def test_a_list_of_dates_stays_one(
    declare: Callable[..., Any], typed: list[Any], days: list[Any]
) -> None:
    task = declare(mixed)
    task.apply_async(kwargs=MIXED, countdown=1000)
    payload = edited(Job.objects.get(), days=json.dumps(typed))
    assert payload == stored_by(task, **{**MIXED, "days": days})


def test_a_text_that_looks_like_a_date_stays_a_text(declare: Callable[..., Any]) -> None:
    given = {**MIXED, "days": ["2025-01-02", DAY, "a"]}
    task = declare(mixed)
    task.apply_async(kwargs=given, countdown=1000)
    job = Job.objects.get()
    moved = edited(job, days='["a", "2025-01-02", "2025-01-02"]')
    kinds = [type(CODING.decoded(one)).__name__ for one in moved["days"]]
    assert kinds == ["str", "date", "str"]


@pytest.mark.parametrize(
    "name, typed, problem",
    [
        ("days", ["2025-01-02", "tomorrow"], "tomorrow: A date such as 2026-03-29."),
        ("rows", [{"at": "2025-01-02T03:04:00+00:00", "amount": "x"}], "x: Enter a number."),
        ("by_key", {"a": {"b": [["no"], "02:30:00"]}}, "no: Enter a valid UUID."),
        ("by_key", {"a": {"b": [[], "half past"]}}, "half past: A time of day such as 02:30."),
    ],
)
def test_what_is_none_is_refused(
    declare: Callable[..., Any], name: str, typed: Any, problem: str
) -> None:
    declare(mixed).apply_async(kwargs=MIXED, countdown=1000)
    job = Job.objects.get()
    job_type = registry.get(job.job_type)
    options: dict[str, Any] = {"stored": job.payload, "queue": "default", "priority": 0}
    typed_form = sent(JobForm(job_type, **options), **{name: json.dumps(typed)})
    form = JobForm(job_type, typed_form, **options)
    assert form.errors == {f"argument_{name}": [problem]}


def test_additional_arguments_have_them_too(declare: Callable[..., Any]) -> None:
    task = declare(keywords)
    task.apply_async(kwargs={"day": DAY, "days": [DAY], "n": 1}, countdown=1000)
    job = Job.objects.get()
    assert json_of(job, "more_arguments") == {"day": "2025-01-02", "days": ["2025-01-02"], "n": 1}
    options: dict[str, Any] = {"stored": job.payload, "queue": "default", "priority": 0}
    typed = sent(JobForm(registry.get(task.name), **options))
    typed["more_arguments"] = json.dumps({"day": "2026-03-30", "days": ["2025-01-02"], "note": "x"})
    form = JobForm(registry.get(task.name), typed, **options)
    assert form.is_valid(), form.errors
    assert form.cleaned_data["payload"] == stored_by(task, day=OTHER, days=[DAY], note="x")
    typed["more_arguments"] = json.dumps({"day": "x"})
    form = JobForm(registry.get(task.name), typed, **options)
    assert form.errors == {"more_arguments": ["x: A date such as 2026-03-29."]}


def test_annotations_say_what_a_new_job_gets(declare: Callable[..., Any]) -> None:
    task = declare(hinted)
    job_type = registry.get(task.name)
    typed = {
        "days": '["2025-01-02"]',
        "amounts": '{"a": "1.10", "b": 2.5, "c": 3}',
        "pair": f'["{KEY}", "2025-01-02"]',
        "rows": '[{"day": "2025-01-02", "note": "2025-01-02"}]',
    }
    form = EnqueueForm(job_type, sent(EnqueueForm(job_type), **typed))
    assert form.is_valid(), form.errors
    amounts = {"a": Decimal("1.10"), "b": Decimal("2.5"), "c": Decimal(3)}
    rows = [{"day": DAY, "note": "2025-01-02"}]
    expected = stored_by(task, days=[DAY], amounts=amounts, pair=[KEY, "2025-01-02"], rows=rows)
    assert form.cleaned_data["payload"] == expected
    run_jobs(check=True)


def test_what_no_annotation_says_can_be_typed_encoded(declare: Callable[..., Any]) -> None:
    task = declare(mixed)
    job_type = registry.get(task.name)
    days = stored_by(task, days=[DAY], rows=[], by_key={})["days"]
    typed = {"days": json.dumps(days), "rows": "[]", "by_key": "{}"}
    form = EnqueueForm(job_type, sent(EnqueueForm(job_type), **typed))
    assert form.is_valid(), form.errors
    assert form.cleaned_data["payload"]["days"] == days


def test_a_schedule_keeps_and_shows_them_too(declare: Callable[..., Any]) -> None:
    task = declare(mixed)
    payload = stored_by(task, **MIXED)
    schedule = Schedule(name="daily", job_type=task.name, payload=payload, every=60)
    kind = form_for(registry.get(task.name), with_arguments=True)
    form = kind(instance=schedule)
    assert json.loads(form["argument_days"].value()) == TEXTS["days"]
    again = kind(sent(form, n="5", days='["2026-03-30"]'), instance=schedule)
    again.is_valid()
    assert not [name for name in again.errors if name.startswith("argument_")]
    expected = payload | {"n": 5, "days": payload["days"][1:]}
    assert payload_of(again.arguments, again, again.stored) == expected


def test_a_list_where_a_date_is_declared_is_json(declare: Callable[..., Any]) -> None:
    def misleading(day: datetime.date, key: str = "") -> None: ...

    declare(misleading).apply_async(([DAY], [KEY]), countdown=1000)
    job = Job.objects.get()
    assert json_of(job, "argument_day") == ["2025-01-02"]
    assert json_of(job, "argument_key") == [str(KEY)]
    assert edited(job) == job.payload


def test_pages_show_them_as_they_are_written(
    declare: Callable[..., Any], client: Client, settings: Settings
) -> None:
    links = [{"label": "Day", "url": "https://shop.example/{payload.day}"}]
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "LINKS": links}

    def returns(day, rows):  # type: ignore[no-untyped-def]
        return {"day": day, "rows": rows}

    task = declare(returns)
    task.apply_async(kwargs={"day": DAY, "rows": MIXED["rows"]}, headers={"since": AT})
    run_jobs(check=True)
    job = Job.objects.get()
    Schedule.objects.create(name="daily", job_type=task.name, payload=job.payload, every=60)
    client.force_login(User.objects.create_superuser("ada"))
    for url in (
        f"/admin/django_jobs/job/{job.pk}/change/",
        f"/admin/django_jobs/schedule/{Schedule.objects.get().pk}/change/",
    ):
        page = client.get(url).content.decode()
        assert "2025-01-02" in page
        assert "__type__" not in page
        assert ("https://shop.example/2025-01-02" in page) == ("/job/" in url)


def test_a_difference_shows_them_as_they_are_written() -> None:
    before, after = ({"days": CODING.encode([day]), "n": 1} for day in (DAY, OTHER))
    (row,) = of_payload(before, after, CODING)
    assert (row["before"], row["after"]) == ('["2025-01-02"]', '["2026-03-30"]')
    (row,) = of_payload(before, {"days": ["2025-01-02"], "n": 1}, CODING)
    assert "__type__" in row["before"]
    assert row["after"] == '["2025-01-02"]'
