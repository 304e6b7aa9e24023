"""Fixtures of the tests with real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobs.worker.connections import close_idle
from tests.logs.schema import problems_in

from .attempts import Desk
from .handlers.threads import Handlers
from .processes import JobWorker, end_other_sessions
from .roles import Role


@pytest.fixture
def start_worker(transactional_db: None, tmp_path: Path) -> Iterator[Callable[..., JobWorker]]:
    """Start a worker; it is gone when the test ends, and logged no traceback of ours."""
    started: list[JobWorker] = []

    def start(*arguments: str, **environment: str) -> JobWorker:
        log = tmp_path / f"worker-{len(started)}.log"
        started.append(JobWorker(*arguments, log=log, **environment))
        return started[-1]

    yield start
    with contextlib.ExitStack() as ending:
        ending.callback(end_other_sessions)  # last; their locks would be in the way of the flush
        for worker in started:
            ending.callback(worker.end)  # each, also where one of them fails
    for worker in started:
        print(f"{worker.log.name}:\n{worker.text()}")  # shown with a test that failed
        assert "Traceback" not in worker.text(), worker.text()
        assert list(problems_in(worker.text())) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a handler says that it began, and waits until it is let go."""
    return tmp_path / "job"


@pytest.fixture
def role(transactional_db: None) -> Iterator[Role]:
    """A role for a worker; give its ``url`` as ``DATABASE_URL``."""
    made = Role()
    yield made
    made.drop()


@pytest.fixture
def other_database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """A second alias, as of a project that has its jobs in a database for themselves."""

    def connect(wrapper: BaseDatabaseWrapper) -> None:
        if wrapper.connection is None:
            wrapper.connect()

    settings = {**connections["default"].settings_dict, "CONN_MAX_AGE": 0}
    monkeypatch.setitem(connections.databases, "other", settings)
    # Django refuses the databases that a test has not declared before.
    monkeypatch.setattr(BaseDatabaseWrapper, "ensure_connection", connect)
    return "other"


@pytest.fixture
def desk(transactional_db: None) -> Iterator[Desk]:
    """Makes attempts in this process; its thread and connections are gone when the test ends."""
    made = Desk()
    yield made
    made.reporter.background.close()
    close_idle()  # of the calls of async handlers


@pytest.fixture
def handlers(transactional_db: None) -> Iterator[Handlers]:
    """Runs handlers in one thread, on the connections of that thread."""
    made = Handlers()
    yield made
    made.close()
