"""``jobimport celery`` without django-celery-beat: its tables alone are enough."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_jobs.contrib.celery.beat.crontabs import cron_of
from django_jobs.models import Queue, Schedule
from django_jobs.testing import run_jobs
from tests.commands import printed, refused
from tests.factories import declared, listening, run_sql

COLUMNS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")

THIRDS = ",".join(str(minute) for minute in range(45) if minute % 3 < 2)
"""Of which no range and no step says less."""

# As version 1.1 had them, of 2017.
TABLES = """
CREATE TABLE django_celery_beat_crontabschedule (id serial PRIMARY KEY, minute text, hour text,
    day_of_week text, day_of_month text, month_of_year text);
CREATE TABLE django_celery_beat_intervalschedule (id serial PRIMARY KEY, every integer,
    period text);
CREATE TABLE django_celery_beat_periodictask (id serial PRIMARY KEY, name text, task text,
    args text, kwargs text, queue text, exchange text, routing_key text, expires timestamptz,
    enabled boolean, last_run_at timestamptz, description text, crontab_id integer,
    interval_id integer, solar_id integer);
"""


def import_beat(*arguments: str) -> str:
    return printed("jobimport", "celery", *arguments)


def add_task(name: str, task: str = "proj.tasks.noop", **fields: Any) -> None:
    """A periodic task of every hour."""
    row = {"name": name, "task": task, "args": "[]", "kwargs": "{}", "enabled": True, **fields}
    row.setdefault("interval_id", 1)
    marks = ", ".join(["%s"] * len(row))
    run_sql(
        f"INSERT INTO django_celery_beat_periodictask ({', '.join(row)}) VALUES ({marks})",
        list(row.values()),
    )


@pytest.fixture
def _tables(db: None) -> None:
    run_sql(TABLES)
    run_sql("INSERT INTO django_celery_beat_intervalschedule (every, period) VALUES (1, 'hours')")


@pytest.fixture
def _two_of_a_name() -> Iterator[None]:
    def send() -> None: ...

    with declared(send, name="shop.send"), declared(send, name="mail.send"):
        yield


# Crontabs


@pytest.mark.parametrize(
    "celery, cron",
    [
        (("*", "*", "*", "*", "*"), "* * * * *"),
        (("0", "0", "1", "1", "*"), "0 0 1 1 *"),
        (("*/15", "8-18", "*", "*", "mon-fri"), "*/15 8-18 * * 1-5"),
        (("0,30", "1, 13", "*", "*", "Sunday,wed"), "0,30 1,13 * * 0,3"),
        (("0", "22-2", "*", "nov-feb", "*"), "0 0-2,22,23 * 1,2,11,12 *"),
        (("0", "12", "*", "*", "fri-mon"), "0 12 * * 0,1,5,6"),
        (("0", "12", "*", "*", "7"), "0 12 * * 0"),
        (("0", "12", "*", "*", "5-7"), "0 12 * * 0,5,6"),
        (("0", "12", "*", "*", "0-7"), "0 12 * * *"),
        (("*/60", "*/24", "*", "*", "*"), "0 0 * * *"),
        (("3-59/6", "0-23", "1-31", "1-12", "0-6"), "3-57/6 * * * *"),
        (("0", "9", "1-7", "*", "1"), "0 9 * * 1#1"),
        (("0", "9", "22-28", "*", "sat,sun"), "0 9 * * 0#4,6#4"),
        (("0", "9", "13", "*", "*/1"), "0 9 13 * *"),
    ],
)
def test_a_crontab_is_written_as_cron_reads_it(celery: tuple[str, ...], cron: str) -> None:
    assert cron_of(dict(zip(COLUMNS, celery, strict=True))) == cron


@pytest.mark.parametrize(
    "celery, problem",
    [
        (("60", "*", "*", "*", "*"), "minute '60': 60 is not between 0 and 59"),
        (("*/0", "*", "*", "*", "*"), "'\\*/0' is not valid in a crontab of Celery"),
        (("5/10", "*", "*", "*", "*"), "'5/10' is not valid in a crontab of Celery"),
        (("[1, 2]", "*", "*", "*", "*"), "is not valid in a crontab of Celery"),
        (("", "*", "*", "*", "*"), "'' is not valid in a crontab of Celery"),
        (("*", "noon", "*", "*", "*"), "hour 'noon': 'noo' is not a value"),
        (("0", "0", "13", "*", "5"), "Celery requires both to match"),
        (("0", "0", "2-8", "*", "1"), "Celery requires both to match"),
        (("0", "0", "29-31", "*", "1"), "Celery requires both to match"),
        (("0", "0", "31", "2", "*"), "never fires: no such month has that day"),
        (
            (THIRDS, "0,2,3,5,7,11,13,17,19,23", "*", "*", "*"),
            "at most 100 characters",
        ),
    ],
)
def test_a_crontab_that_cron_cannot_express_is_refused(
    celery: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        cron_of(dict(zip(COLUMNS, celery, strict=True)))


# Tables


@pytest.mark.django_db
def test_a_database_without_the_tables_is_reported() -> None:
    with pytest.raises(CommandError, match="'default' has no tables of django-celery-beat"):
        import_beat()


@pytest.mark.usefixtures("_tables")
def test_tables_of_an_early_version_are_read() -> None:
    def sum_up(first: int) -> None: ...

    add_task("every hour", kwargs='{"first": 1}', task="sum_up")
    with declared(sum_up, name="app.sum_up"):
        lines = import_beat().splitlines()
    assert lines[0] == "imported  every hour: app.sum_up every 1 h"
    assert lines[-1] == "Imported 1 schedule; 0 existed already and 0 cannot be imported."
    assert lines[-2].startswith("Rows that change are not followed: django_celery_beat is not in")
    made = Schedule.objects.get(name="every hour")
    assert (made.every, made.payload, made.declared) == (3600.0, {"first": 1}, False)


@pytest.mark.usefixtures("_tables", "_two_of_a_name")
def test_a_name_shared_by_several_job_types_must_be_mapped() -> None:
    add_task("mails", "proj.tasks.send")
    with pytest.raises(CommandError, match="1 of 1 task cannot be imported"):
        import_beat()
    import_beat("--map", "proj.tasks.send=mail.send")
    assert Schedule.objects.get(name="mails").job_type == "mail.send"


@pytest.mark.usefixtures("_tables", "_two_of_a_name")
def test_a_task_with_the_full_name_of_a_job_type_is_mapped_to_it() -> None:
    add_task("mails", "shop.send")
    import_beat()
    assert Schedule.objects.get(name="mails").job_type == "shop.send"


@pytest.mark.usefixtures("_tables")
def test_a_task_is_never_imported_as_code() -> None:
    add_task("antigravity", "antigravity.geohash")
    with pytest.raises(CommandError, match="1 of 1 task"):
        import_beat()
    assert "antigravity" not in sys.modules


@pytest.mark.usefixtures("_tables")
def test_a_full_queue_does_not_stop_the_import() -> None:
    Queue.objects.filter(name="default").update(max_backlog=0)
    add_task("every hour")
    import_beat()
    assert Schedule.objects.filter(name="every hour").exists()


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize(
    "fields, reason",
    [
        ({"interval_id": None}, "it has neither a crontab nor an interval"),
        ({"expires": "infinity"}, "expires is infinity, which is not a valid date"),
        ({"kwargs": "[1]"}, "args must be a JSON list"),
        ({"kwargs": '{"x": NaN}'}, "got x"),
        ({"name": "n" * 300}, "at most 200 characters"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_alone(fields: dict[str, Any], reason: str) -> None:
    add_task(**{"name": "strange", **fields})
    add_task("every hour")
    assert reason in refused("jobimport", "celery", match="1 of 2 tasks cannot be imported")
    assert Schedule.objects.filter(name="every hour").exists()


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--map", "proj.tasks.noop"), "--map takes two names such as old=new"),
        (("--queue", "=bulk"), "--queue takes two names such as old=new"),
        (("--map", "proj.tasks.noop=app.gone"), r"no job type is named 'app\.gone'"),
        (("--database", "elsewhere"), "invalid choice: 'elsewhere'"),
    ],
)
def test_bad_input_is_refused_with_valid_input(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        import_beat(*arguments)


@pytest.mark.usefixtures("_tables")
def test_a_mapping_of_an_unknown_task_is_reported() -> None:
    assert "--map proj.tasks.misspelt: no periodic task has this name." in import_beat(
        "--map", "proj.tasks.misspelt=app.noop"
    )


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_of_an_import_but_not_a_dry_run() -> None:
    run_sql(TABLES)
    try:
        with listening() as heard:
            import_beat("--dry-run")
            assert not heard()
            import_beat()
            assert heard()
    finally:
        tables = ("periodictask", "crontabschedule", "intervalschedule")
        run_sql(f"DROP TABLE {', '.join(f'django_celery_beat_{table}' for table in tables)}")


@pytest.mark.usefixtures("_tables")
@pytest.mark.parametrize(
    "weekday, noted",
    [("7", True), ("5-7", True), ("1,7", True), ("0-7/2", True), ("*/7", False), ("0-6", False)],
)
def test_a_weekday_that_beat_has_never_run_is_noted(weekday: str, noted: bool) -> None:
    ((crontab,),) = run_sql(
        "INSERT INTO django_celery_beat_crontabschedule (minute, hour, day_of_month,"
        " month_of_year, day_of_week) VALUES ('0', '3', '*', '*', %s)"
        " RETURNING id",
        [weekday],
    )
    add_task("weekly", interval_id=None, crontab_id=crontab)
    assert ("note: weekday 7 is a Sunday here" in import_beat()) is noted


# Rows of tasks


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def starred(*names: Any) -> list[Any]:
    return list(names)


def bound(self: Any, key: Any, *rest: Any) -> list[Any]:
    return [key, *rest]


def plain(key: Any, b: Any = 0) -> list[Any]:
    return [key, b]


def positional(key: Any, b: Any = 0, /) -> list[Any]:
    return [key, b]


def keyword(*, key: Any, **more: Any) -> list[Any]:
    return [key, more]


def dated(day: Any, deep: Any = None) -> list[str]:
    return [type(day).__name__, type(deep["at"][0]).__name__ if deep else ""]


DAY = {"__type__": "date", "__value__": "2026-03-29"}
CALLS: list[tuple[Any, list[Any], dict[str, Any], list[Any]]] = [
    (decorated(plain), [["a", "b"]], {}, [["a", "b"], 0]),
    (decorated(plain), ["report"], {}, ["report", 0]),
    (decorated(plain), ["report", 5], {}, ["report", 5]),
    (decorated(plain), [5], {}, [5, 0]),
    (decorated(plain), [], {"key": "x"}, ["x", 0]),
    (
        decorated(plain),
        [{"args": [1], "kwargs": {"b": 2}}],
        {},
        [{"args": [1], "kwargs": {"b": 2}}, 0],
    ),
    (decorated(plain), [], {"key": {"args": 1}, "b": [None]}, [{"args": 1}, [None]]),
    (starred, ["abc"], {}, ["abc"]),
    (starred, [5], {}, [5]),
    (starred, [[1, 2]], {}, [[1, 2]]),
    (starred, [1, 2, 3], {}, [1, 2, 3]),
    (starred, [], {}, []),
    (bound, ["u-17"], {}, ["u-17"]),
    (bound, ["u", {"a": [1]}], {}, ["u", {"a": [1]}]),
    (positional, ["x", "y"], {}, ["x", "y"]),
    (keyword, [], {"key": "x", "args": [1], "kwargs": 2}, ["x", {"args": [1], "kwargs": 2}]),
    (plain, ["x"], {"b": {"deep": [{"x": None}]}}, ["x", {"deep": [{"x": None}]}]),
    (dated, [DAY], {}, ["date", ""]),
    (dated, [], {"day": DAY, "deep": {"at": [DAY]}}, ["date", "date"]),
    (decorated(dated), [], {"day": DAY}, ["date", ""]),
]


@pytest.mark.skipif(find_spec("celery") is None, reason="Celery is not installed")
@pytest.mark.parametrize("function, args, kwargs, expected", CALLS)
@pytest.mark.usefixtures("_tables")
def test_a_row_calls_its_task_as_beat_does(
    declare: Callable[..., Any],
    function: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    expected: list[Any],
) -> None:
    from django_jobs.contrib.celery.beat.declared import schedule_of
    from tests.contrib.celery.project import celery_app

    task = declare(function, bind=function is bound)
    add_task("row", task.name, args=json.dumps(args), kwargs=json.dumps(kwargs))
    import_beat()
    call_command("jobschedule", "run", "row", stdout=StringIO())
    (run,) = run_jobs()
    assert run.job is not None
    assert run.job.result == expected
    entry = {"task": task.name, "schedule": 60, "args": args, "kwargs": kwargs}
    as_declared = schedule_of(celery_app, "row", entry)["payload"]
    assert Schedule.objects.get(name="row").payload == as_declared


@pytest.mark.skipif(find_spec("celery") is None, reason="Celery is not installed")
@pytest.mark.parametrize(
    "fields, problem",
    [
        ({"args": '["a", "b", "c"]'}, "too many positional arguments"),
        ({"args": '"text"'}, "args must be a JSON list"),
        ({"kwargs": '["key"]'}, "kwargs a JSON object"),
        ({"kwargs": '{"key": {"__type__": "date", "__value__": "x"}}'}, "kwargs is not JSON"),
        ({"routing_key": "nowhere"}, "no queue of task_queues is bound to"),
        ({"queue": "nowhere"}, "no queue is named 'nowhere'"),
    ],
)
@pytest.mark.usefixtures("_tables")
def test_a_row_that_a_task_cannot_have_is_refused(
    declare: Callable[..., Any], fields: dict[str, Any], problem: str
) -> None:
    add_task("row", declare(plain).name, **{"args": "[1]", **fields})
    assert problem in refused("jobimport", "celery", match="1 of 1 task cannot be imported")


@pytest.mark.skipif(find_spec("celery") is None, reason="Celery is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Celery, which may not be there
@pytest.mark.usefixtures("_tables")
def test_the_default_queue_and_the_priority_are_those_of_the_app(
    declare: Callable[..., Any],
) -> None:
    task = declare(plain, priority=3)
    add_task("row", task.name, args="[1]", queue="celery")
    import_beat()
    made = Schedule.objects.get(name="row")
    assert (made.queue, made.priority) == ("", 3)
