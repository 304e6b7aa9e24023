"""What tests make again and again, as plain functions. All of it is real: rows, threads, claims."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, connections, transaction
from django.dispatch import Signal

from django_jobs import registry
from django_jobs.api import JobType, job
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Outcome
from django_jobs.lifecycle import notifying, workers
from django_jobs.lifecycle.claiming import claim
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, Settled, settle
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.maintenance.tasks import Folding
from django_jobs.models import Job, Schedule
from tests.patience import PATIENCE

from .app.jobs import noop

T = TypeVar("T")


def register_worker(
    name: str = "test",
    *,
    lease: float = 30.0,
    threads: int = 1,
    async_slots: int = 0,
    queues: Sequence[str] = ("default",),
    pools: Sequence[tuple[Sequence[str], int]] = (),
    job_types: Mapping[str, int] | None = None,
) -> int:
    """Register a worker that knows all job types, or those; return its id. A negative lease has
    run out."""
    return workers.register(
        workers.WorkerInfo(
            name=name,
            host="testhost",
            pid=4711,
            queues=queues,
            threads=threads,
            async_slots=async_slots,
            pools=pools,
            job_types=registry.versions() if job_types is None else job_types,
            lease=lease,
        )
    )


def claim_ready(
    worker: int, queue: str = "default", limit: int = 100, **options: Any
) -> list[ClaimedJob]:
    """Claim for ``worker`` what is ready in the queue."""
    options.setdefault("job_types", registry.versions())
    return claim(queue, worker=worker, limit=limit, **options)


def enqueue_and_claim(
    job_type: JobType[..., Any] = noop, *args: Any, worker: int | None = None, **options: Any
) -> ClaimedJob:
    """One job of ``job_type``, running. ``options`` are those of ``using``."""
    enqueued = job_type.using(**options).enqueue(*args)
    held = claim_ready(
        worker or register_worker(), enqueued.queue, limited=enqueued.queue == "emails"
    )
    return next(one for one in held if one.id == enqueued.pk)


def settle_one(held: ClaimedJob, outcome: Outcome, **options: Any) -> Settled:
    """End one attempt."""
    (settled,) = settle([Ending(held, outcome, **options)])
    return settled


def run_again(job: int, worker: int, outcome: Outcome) -> None:
    """Let a scheduled job take its next attempt."""
    job_operations.run_now([job])
    (held,) = claim_ready(worker)
    settle_one(held, outcome)


def failure(
    message: str = "boom", *, final: bool = False, kind: str = "ValueError", code: str = ""
) -> Failed:
    """A handler's exception."""
    return Failed(error=replace(ErrorReport.plain(kind, message), code=code), final=final)


def make_dead(job_type: JobType[..., Any] = noop, *args: Any, **options: Any) -> Job:
    """A dead letter."""
    held = enqueue_and_claim(job_type, *args, **options)
    settle_one(held, failure(final=True))
    return Job.objects.get(pk=held.id)


def copies_of(job: Job, count: int = 1, status: str = "ready") -> list[int]:
    """The ids of new rows with the queue and the gates of ``job``, in another status."""
    columns = [field.column for field in Job._meta.concrete_fields if not field.primary_key]
    values = ["%s" if column == "status" else column for column in columns]
    rows = run_sql(
        f"INSERT INTO django_jobs_job ({', '.join(columns)}) SELECT {', '.join(values)}"
        " FROM django_jobs_job, generate_series(1, %s) WHERE id = %s RETURNING id",
        [status, count, job.pk],
    )
    return [row for (row,) in rows]


def make_user(*permissions: str, name: str = "olga") -> Any:
    """A staff user with these permissions of django_jobs."""
    user = get_user_model().objects.create_user(name, is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="django_jobs", codename__in=permissions)
    )
    return user


def due_schedule(seconds_ago: float = 1.0, **fields: Any) -> Schedule:
    """A schedule of every hour that was due so long ago, for the first time."""
    ((at,),) = run_sql("SELECT now() - make_interval(secs => %s)", [seconds_ago])
    fields = {"name": "tick", "job_type": "app.noop", "every": 3600.0, "starts_at": at, **fields}
    schedule = Schedule.objects.create(**fields)
    run_sql(
        "UPDATE django_jobs_schedule SET stale = false, next_due_at = %s WHERE id = %s",
        [at, schedule.pk],
    )
    schedule.refresh_from_db()
    return schedule


def overdue(hours: float, **fields: Any) -> Schedule:
    """A schedule that nobody looked at for so long."""
    return due_schedule(hours * 3600, **fields)


def look() -> None:
    """Look at the schedules until there is nothing more to do at once."""
    scheduling = Scheduling()
    while scheduling.look() == 0.0:
        pass


def run_sql(sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run a statement on the jobs' database; return its rows, if it has any."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters or None)
        return cursor.fetchall() if cursor.description else []


def explain(sql: str, parameters: dict[str, Any] | tuple[Any, ...]) -> list[dict[str, Any]]:
    """All nodes of the plan that PostgreSQL has for a statement. Nothing is kept of its effects."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
        (plan,) = cursor.fetchone()
        transaction.set_rollback(True)
    return plan_nodes(plan)


def plan_nodes(plan: Any) -> list[dict[str, Any]]:
    """All nodes of what ``EXPLAIN (FORMAT JSON)`` returned."""
    return list(_nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))


def rows_read(node: dict[str, Any]) -> float:
    """The rows that a part of a plan read each time, those that it threw away included. Of a bitmap
    that a scan reads by alone, none: its index has entries of what other tests rolled back, and the
    scan counts the rows. Of several that are joined, the scan has only what is in all of them."""
    if node["Node Type"] == "Bitmap Index Scan" and node["Parent Relationship"] == "Outer":
        return 0.0
    thrown_away = "Rows Removed by Filter", "Rows Removed by Index Recheck"
    return sum(float(node.get(count, 0)) for count in ("Actual Rows", *thrown_away))


LEAVES = "SELECT relid::regclass::text FROM pg_partition_tree(%s::regclass) WHERE isleaf"


def leaves(table: str) -> list[str]:
    """The partitions of a partitioned table that hold rows."""
    return [name for (name,) in run_sql(LEAVES, [table])]


def empty_tables() -> None:
    """Leave nothing of what other tests wrote and rolled back. Dead rows and the pages of their
    index entries made the planner read 2,000 jobs from end to end, and choose another index."""
    run_sql(
        "TRUNCATE django_jobs_job, django_jobs_run, django_jobs_progress, django_jobs_receipt,"
        " django_jobs_uniquekey, django_jobs_tick, django_jobs_runtotal, django_jobs_errortotal"
    )


def analyze(*tables: str) -> None:
    """Keep statistics of these tables, and of the partitions of partitioned ones, as autovacuum
    does. It keeps none of a partitioned table; to do so took 10 s."""
    for name in itertools.chain.from_iterable(leaves(table) or [table] for table in tables):
        run_sql(f"ANALYZE {name}")


OLDER_SNAPSHOTS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
"""


def vacuum(command: str) -> None:
    """Run this VACUUM, after which no row is left of those that were deleted before.

    It leaves what an older snapshot of the database may see, such as that of an ANALYZE by
    autovacuum. A younger one sees none of it."""
    from tests.worker.processes import until

    until(lambda: not run_sql(OLDER_SNAPSHOTS), what="the end of older snapshots")
    run_sql(command)


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def in_threads(count: int, function: Callable[[int], T]) -> list[T]:
    """Call ``function(number)`` in so many threads that start together; return what they returned.

    Each has a connection of its own. The first exception is raised here.
    """
    barrier = threading.Barrier(count)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(PATIENCE)
            results[number] = function(number)
        except BaseException as error:
            errors.append(error)
            barrier.abort()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread does not come to an end"
    return [results[number] for number in range(count)]


@contextmanager
def another_connection() -> Iterator[Any]:
    """A second session of the same database, as another process would have."""
    other = connections["default"].copy()
    try:
        yield other
    finally:
        other.close()


@contextmanager
def open_elsewhere(statement: Any, parameters: Any = None) -> Iterator[Any]:
    """Another session has run this statement in a transaction: what it wrote is not committed, and
    its locks are held. It is rolled back at the end of the block, or by what the block gets."""
    with another_connection() as other:
        other.ensure_connection()
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(statement, parameters)
        yield other
        other.rollback()


def end_own_session(alias: str) -> int:
    """Use this thread's connection to ``alias``, and have its session ended by the server, as an
    outage does. Returns which session it was."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (session,) = cursor.fetchone()
    run_sql("SELECT pg_terminate_backend(%s, 60000)", [session])
    return int(session)


@contextmanager
def rows_in(zone: str) -> Iterator[None]:
    """As with ``TIME_ZONE`` in ``DATABASES``: Django reads the times of rows in this zone."""
    before = connection.settings_dict["TIME_ZONE"]

    def use(zone: str | None) -> None:
        connection.settings_dict["TIME_ZONE"] = zone
        for name in ("timezone", "timezone_name"):
            vars(connection).pop(name, None)
        connection.ensure_timezone()

    use(zone)
    try:
        yield
    finally:
        use(before)


@contextmanager
def listening() -> Iterator[Callable[[], list[str]]]:
    """Another session that listens; calling what it gives tells what came since the last call.

    Notifications come in the order of their commits, so one of its own, sent last, says that there
    are no more, however long the server takes. The throttle forgets what was sent before, which
    would swallow what is to be heard.
    """
    came: list[str] = []
    numbers = itertools.count()
    with another_connection() as other:
        other.ensure_connection()
        other.connection.add_notify_handler(lambda note: came.append(note.payload))
        other.connection.execute("LISTEN django_jobs")
        notifying._last_sent.clear()

        def notified() -> list[str]:
            last = f":last:{next(numbers)}"
            other.connection.execute("SELECT pg_notify('django_jobs', %s)", [last])
            while last not in came:
                other.connection.execute("SELECT 1")
            found = came[: came.index(last)]
            came.clear()
            return found

        yield notified


@contextmanager
def declared(function: Callable[..., Any], **options: Any) -> Iterator[JobType[..., Any]]:
    """A job type that is known inside the block only.

    If the name were taken, its owner would keep it, and lose it at the end of the block."""
    assert registry.find(options.get("name", "")) is None, f"{options['name']} is taken"
    job_type = job(**options)(function)
    try:
        yield job_type
    finally:
        registry.unregister(job_type.name)


@contextmanager
def heard(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """The keywords of every sending of ``signal`` inside the block, with its sender."""
    sent: list[dict[str, Any]] = []

    def receive(signal: Signal, sender: Any, **keywords: Any) -> None:
        sent.append({"sender": sender, **keywords})

    signal.connect(receive)
    try:
        yield sent
    finally:
        signal.disconnect(receive)


def fold_runs(folding: Folding | None = None) -> None:
    """Count all runs in the totals, however recently another worker did."""
    folding = folding or Folding()
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = reached_at - interval '1 min'")
    while folding.run_once():
        pass
