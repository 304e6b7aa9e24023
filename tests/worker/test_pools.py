"""Thread pools of one worker process, with real processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from django_jobs import cancel, enqueue_many
from django_jobs.models import Job, Queue, Run, Worker
from django_jobs.worker.options import Options, PoolOptions, QueueShare, chosen_pools
from tests.app import jobs
from tests.worker.test_cancel import HOARDS

from .processes import BEATS_OFTEN, Start, let_go, until, until_marked

pytestmark = pytest.mark.processes


@pytest.fixture
def _queues(transactional_db: None) -> None:
    for name in ("heavy", "mail", "web"):
        Queue.objects.create(name=name)


def pool(names: str, threads: int) -> PoolOptions:
    return PoolOptions(
        queues=tuple(QueueShare(name=name) for name in names.split(",")), threads=threads
    )


def counts(queue: str) -> dict[str, int]:
    statuses = list(Job.objects.filter(queue=queue).values_list("status", flat=True))
    return {status: statuses.count(status) for status in set(statuses)}


@pytest.mark.usefixtures("_queues")
@pytest.mark.parametrize("arguments", [(), ("--no-fork",)])
def test_a_full_pool_takes_no_thread_of_another(
    start_worker: Start, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """More heavy jobs than all threads together, and first; then the others, in both queues."""
    path = str(tmp_path / "heavy")
    enqueue_many("app.hold", [{"path": path}] * 30, queue="heavy")
    start_worker("--pool", "heavy:2", "--pool", "mail,web:3", *arguments)
    until_marked(Path(path), 2)
    for queue in ("mail", "web"):
        enqueue_many("app.noop", [{}] * 500, queue=queue)
    until(lambda: Job.objects.filter(queue__in=["mail", "web"], status="succeeded").count() == 1000)
    assert counts("heavy") == {"running": 2, "ready": 28}  # nothing is hoarded
    worker = Worker.objects.get()
    assert (sorted(worker.queues), worker.threads) == (["heavy", "mail", "web"], 5)
    let_go(Path(path))
    until(lambda: counts("heavy") == {"succeeded": 30})


@pytest.mark.usefixtures("_queues")
def test_a_drain_lets_the_jobs_of_all_pools_end(start_worker: Start, tmp_path: Path) -> None:
    for queue in ("heavy", "mail"):
        enqueue_many("app.hold", [{"path": str(tmp_path / queue)}] * 10, queue=queue)
    worker = start_worker("--pool", "heavy:1", "--pool", "mail:2")
    until_marked(tmp_path / "heavy", 1)
    until_marked(tmp_path / "mail", 2)
    worker.signal(signal.SIGTERM)
    until(lambda: Worker.objects.filter(status="draining").exists())
    for queue in ("heavy", "mail"):
        let_go(tmp_path / queue)
    assert worker.wait() == 0
    assert counts("heavy") == {"succeeded": 1, "ready": 9}
    assert counts("mail") == {"succeeded": 2, "ready": 8}


@pytest.mark.usefixtures("_queues")
def test_a_forced_drain_stops_the_handlers_of_all_pools(
    start_worker: Start, tmp_path: Path
) -> None:
    for queue in ("heavy", "mail"):
        payload = {"path": str(tmp_path / queue), "seconds": 60}
        jobs.sleep_deaf.using(queue=queue).enqueue(**payload)
    worker = start_worker("--pool", "heavy:1", "--pool", "mail:2", "--drain-timeout", "0.1")
    for queue in ("heavy", "mail"):
        until_marked(tmp_path / queue)
    assert worker.drain() == 143
    assert counts("heavy") == counts("mail") == {"ready": 1}
    assert set(Run.objects.values_list("outcome", flat=True)) == {"released"}


@pytest.mark.usefixtures("_queues")
def test_a_burst_ends_when_all_pools_are_done(start_worker: Start) -> None:
    for queue in ("heavy", "mail", "web"):
        enqueue_many("app.noop", [{}] * 300, queue=queue)
    enqueue_many("app.nap", [{"seconds": 0.5}] * 2, queue="heavy")
    other = jobs.noop.enqueue()
    worker = start_worker("--pool", "heavy:1", "--pool", "mail,web:2", "--burst")
    assert worker.wait() == 0
    assert Run.objects.filter(outcome="succeeded").count() == 902
    assert Job.objects.get(pk=other.pk).status == "ready"  # of a queue in no pool


@pytest.mark.usefixtures("_queues")
def test_a_recycled_process_counts_the_jobs_of_all_pools(start_worker: Start) -> None:
    for queue in ("heavy", "mail"):
        enqueue_many("app.noop", [{}] * 30, queue=queue)
    worker = start_worker("--pool", "heavy:1", "--pool", "mail:2", "--max-jobs", "20")
    until(lambda: Run.objects.count() == 60)
    by_worker = list(Run.objects.values_list("worker_id", flat=True))
    assert max(by_worker.count(one) for one in set(by_worker)) <= 20
    assert worker.text().count("event=worker_recycled") >= 2


@pytest.mark.usefixtures("_queues")
def test_waiting_jobs_of_each_pool_are_cancelled(start_worker: Start, tmp_path: Path) -> None:
    """Quick jobs make both pools hoard; then each has one that holds its thread."""
    waiting = {}
    for queue in ("heavy", "mail"):
        enqueue_many("app.noop", [{}] * 400, queue=queue)
    start_worker("--pool", "heavy:1", "--pool", "mail:1", before=HOARDS)
    until(lambda: Run.objects.count() == 800)
    for queue in ("heavy", "mail"):
        payloads = [{"path": str(tmp_path / queue)}] * 3
        waiting[queue] = enqueue_many("app.hold", payloads, queue=queue)[1:]
    for queue, ids in waiting.items():
        until_marked(tmp_path / queue)
        until(lambda ids=ids: Job.objects.filter(pk__in=ids, status="running").count() == 2)
        assert all(cancel(job) for job in ids)
        until(lambda ids=ids: Job.objects.filter(pk__in=ids, status="cancelled").count() == 2)
    for queue in waiting:
        let_go(tmp_path / queue)
        until(lambda queue=queue: counts(queue) == {"succeeded": 401, "cancelled": 2})


@pytest.mark.usefixtures("_queues")
def test_all_pools_run_jobs_again_after_a_lost_lease(start_worker: Start, tmp_path: Path) -> None:
    for queue in ("heavy", "mail"):
        enqueue_many("app.hold", [{"path": str(tmp_path / queue)}] * 2, queue=queue)
    start_worker("--pool", "heavy:1", "--pool", "mail:1", TEST_DJANGO_JOBS=BEATS_OFTEN)
    for queue in ("heavy", "mail"):
        until_marked(tmp_path / queue)
    lost = Worker.objects.get().pk
    Worker.objects.filter(pk=lost).update(status="lost")
    for queue in ("heavy", "mail"):
        let_go(tmp_path / queue)
    other = Worker.objects.exclude(pk=lost)
    until(lambda: other.exists())
    for queue in ("heavy", "mail"):
        until(lambda queue=queue: counts(queue).get("succeeded", 0) >= 1)
    assert set(Run.objects.values_list("worker_id", flat=True)) <= {lost, other.get().pk}


@pytest.mark.usefixtures("_queues")
def test_strict_order_holds_in_each_pool(start_worker: Start) -> None:
    for queue in ("mail", "web", "heavy"):
        enqueue_many("app.nap", [{"seconds": 0.01}] * 40, queue=queue)
    worker = start_worker("--pool", "web,mail:1", "--pool", "heavy:1", "--strict", "--burst")
    assert worker.wait() == 0
    queues = dict(Job.objects.values_list("pk", "queue"))
    order = [
        queues[job] for job in Run.objects.order_by("started_at").values_list("job", flat=True)
    ]
    assert [queue for queue in order if queue != "heavy"] == ["web"] * 40 + ["mail"] * 40
    assert "heavy" in order[:40]


def test_pools_are_parsed_and_counted() -> None:
    pools = chosen_pools(["heavy:2", "mail,web:16"], ["heavy", "mail", "web"])
    assert pools == (pool("heavy", 2), pool("mail,web", 16))
    assert [str(one) for one in pools] == ["heavy:2", "mail,web:16"]
    shares = tuple(share for one in pools for share in one.queues)
    options = Options(queues=shares, threads=18, named_pools=pools, processes=2)
    assert options.connections == 2 + 2 * (4 + 18 + 18 + 1)  # there are async handlers
    assert Options(queues=shares).pools == (pool("heavy,mail,web", 4),)


@pytest.mark.django_db
@pytest.mark.usefixtures("_queues")
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (["--pool", "heavy"], "does not end with its number of threads"),
        (["--pool", "heavy:0"], "does not end with its number of threads"),
        (["--pool", ":2"], "names an empty queue"),
        (["--pool", "heavy:5,mail:1"], "without weights"),
        (["--pool", "heavy,heavy:1"], "named twice"),
        (["--pool", "heavy:1", "--pool", "mail,heavy:1"], "queue 'heavy' is in two pools"),
        (["--pool", "havy:1"], "no queue is named havy; known are: "),
        (["--pool", "heavy:1", "--queues", "mail"], "omit --queues and --threads"),
        (["--pool", "heavy:1", "--threads", "4"], "omit --queues and --threads"),
    ],
)
def test_an_invalid_pool_is_refused(arguments: list[str], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("jobworker", *arguments)
