"""What Celery's worker does around tasks, with real processes: its signals, and the hooks of tasks
that did not end themselves."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import VERSION

from django_jobs import registry
from django_jobs.models import Job
from tests.worker.processes import BEATS_OFTEN, JobWorker, until

FROM_5_7 = VERSION >= (5, 7)
"""Before it, Celery's worker calls no hooks after a time limit, and sends no signal for a task that
is rejected."""
pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("project", "transactional_db")]
SETTINGS = "tests.contrib.celery.project.settings"
CONNECT = "from tests.contrib.celery.project import told; told.connect()"


class Watched:
    """A worker of the project, and what was told in its processes. Celery writes tracebacks to its
    log, as it does with its own workers."""

    def __init__(
        self, folder: Path, *options: str, before: str = CONNECT, **variables: str
    ) -> None:
        self.told = folder / "told"
        self.told.touch()
        # Set in the forked process: in another environment, each would load the project by itself.
        own = {"PROJECT_EFFECTS": str(self.told), **variables}
        self.worker = JobWorker(
            *options,
            log=folder / "worker.log",
            before=f"import os; os.environ.update({own})\n{before}",
            DJANGO_SETTINGS_MODULE=SETTINGS,
            TEST_DJANGO_JOBS=BEATS_OFTEN,
            PYTHONWARNINGS="ignore",
        )

    def lines(self, *about: str) -> list[str]:
        """What was told, with each of these words in it."""
        lines = self.told.read_text().splitlines()
        return [line for line in lines if all(word in line for word in about)]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    started: list[Watched] = []

    def watch(*options: str, **more: str) -> Watched:
        started.append(Watched(tmp_path, *options, **more))
        return started[-1]

    yield watch
    for one in started:
        one.worker.end()
        print(one.worker.text(), one.told.read_text())


@pytest.fixture
def told() -> Iterator[Any]:
    """The tasks, for one test."""
    from django_jobs.contrib.celery.running.job_types import register
    from tests.contrib.celery.project import celery_app, told

    for task in told.TASKS:
        register(celery_app, task.name)
    yield told
    for task in told.TASKS:
        registry.unregister(task.name)


def has_ended(result: Any) -> bool:
    return bool(result.state in ("FAILURE", "REVOKED", "IGNORED", "SUCCESS"))


@pytest.mark.skipif(not FROM_5_7, reason="this version of Celery does not")
@pytest.mark.parametrize("options", [("--prefork", "1"), ("--threads", "2")])
@pytest.mark.parametrize("name", ["loop", "deaf"])
def test_hooks_and_signals_follow_a_time_limit(
    watch: Callable[..., Watched], told: Any, name: str, options: tuple[str, ...]
) -> None:
    """Once, as Celery calls them."""
    sent = getattr(told, name).delay("k")
    watched = watch(*options)
    until(lambda: watched.lines("task_failure"))
    watched.worker.signal(signal.SIGTERM)
    watched.worker.wait()
    assert sent.state == "FAILURE"
    hooks = [line for line in watched.lines(sent.id) if not line.startswith("task_")]
    assert hooks == [
        f"on_failure TimeLimitExceeded {sent.id} ['k'] {{}}",
        f"after_return FAILURE {sent.id}",
    ]
    assert watched.lines("task_failure") == [
        f"task_failure told.{name} {sent.id} TimeLimitExceeded"
    ]
    assert not watched.lines("an exception in the task")
    assert not watched.lines("task_retry")


def test_a_soft_time_limit_ends_a_sleep(watch: Callable[..., Watched], told: Any) -> None:
    sent = told.soft.delay("k")
    watch("--prefork", "1")
    until(lambda: has_ended(sent))
    assert sent.result == "cleaned up k"


def test_a_lost_process_is_a_failure_with_its_signal(
    watch: Callable[..., Watched], told: Any
) -> None:
    sent = told.die.delay("k")
    watched = watch("--prefork", "2")
    until(lambda: watched.lines("task_failure"))
    assert watched.lines("task_failure") == [f"task_failure told.die {sent.id} WorkerLostError"]
    assert not watched.lines("on_failure")  # nor in Celery
    assert sent.state == "FAILURE"


def test_each_end_is_told_once(watch: Callable[..., Watched], told: Any) -> None:
    late = told.fail.apply_async(("bug",), expires=0.001)
    sent = {name: getattr(told, name).delay("k") for name in ("reject", "ignore")}
    sent |= {key: told.fail.delay(key) for key in ("bug", "expected")}
    watched = watch("--prefork", "1", "--burst")
    watched.worker.wait()
    ends = {
        key: [line.split(f" {one.id}")[-1].strip() or line.split()[0] for line in lines]
        for key, one in sent.items()
        if (lines := watched.lines(one.id, "task_failure")) or True
    }
    assert ends == {
        "reject": ["Reject"] if FROM_5_7 else [],
        "ignore": [],
        "bug": ["ValueError"],
        "expected": ["LookupError"],
    }
    assert watched.lines(late.id) == [f"task_revoked told.fail {late.id} ['expired']"]
    for one in sent.values():
        assert len(watched.lines("task_received", one.id)) == 1


def test_a_revoked_task_is_told(watch: Callable[..., Watched], told: Any) -> None:
    sent = told.wait.delay("k")
    watched = watch("--prefork", "1")
    until(lambda: watched.lines("waits k"))
    sent.revoke(terminate=True)
    until(lambda: has_ended(sent))
    until(lambda: watched.lines("task_revoked"))
    assert watched.lines("task_revoked") == [f"task_revoked told.wait {sent.id} ['terminated']"]
    assert not watched.lines("on_failure")


def test_a_waiting_task_that_is_revoked_is_told_where_it_is(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from celery import signals

    seen = []

    def note(sender: Any, request: Any, **fields: Any) -> None:
        seen.append((sender.name, request.id, request.args, fields["terminated"]))

    signals.task_revoked.connect(note)
    sent = told.wait.delay("k")
    sent.revoke()
    sent.revoke()
    assert seen == [("told.wait", sent.id, ["k"], False)]
    assert Job.objects.get().status == "cancelled"


@pytest.mark.parametrize(
    ("options", "processes"), [(("--prefork", "2"), 2), (("--no-fork",), 1), ((), 1)]
)
def test_each_process_sends_the_signals_of_celerys(
    watch: Callable[..., Watched], told: Any, options: tuple[str, ...], processes: int
) -> None:
    watched = watch(*options)
    until(lambda: len(watched.lines("worker_process_init")) == processes)
    sent = told.fail.delay("bug")
    until(lambda: has_ended(sent))
    watched.worker.signal(signal.SIGTERM)
    assert watched.worker.wait() == 0
    of_the_worker = watched.lines("worker_")
    assert of_the_worker == [
        *("worker_init jobworker", "worker_ready jobworker"),
        *["worker_process_init"] * processes,
        *["worker_process_shutdown"] * processes,
        "worker_shutdown jobworker",
    ]
