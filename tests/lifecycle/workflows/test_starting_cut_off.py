"""A start whose session the server ends at any of its statements leaves all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, connection

from django_jobs.lifecycle import step_insert
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Dependency, Job, WorkflowRun
from tests.workflows import states, steps_of

STATEMENTS = (
    "the run",
    "the ids",
    "the steps",
    "the dependencies",
    "the run again",
    "the commit",
)
LOST = (DatabaseError, InterfaceError, psycopg.Error)
RUN = NewRun(name="graph", idempotency_key="k")


@contextmanager
def cut_off_before(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server ends the session before its statement of this number."""
    connection.ensure_connection()
    session = connection.connection.info.backend_pid
    passed = iter(range(number))

    def note() -> None:
        if next(passed, None) is None:
            end_session(session)

    def execute(run: Any, *arguments: Any) -> Any:
        note()
        return run(*arguments)

    def written(around: Any) -> Any:
        def call(*arguments: Any) -> Any:
            note()
            return around(*arguments)

        return call

    monkeypatch.setattr(step_insert, "copy_rows", written(step_insert.copy_rows))
    monkeypatch.setattr(connection, "_commit", written(connection._commit))
    with connection.execute_wrapper(execute):
        yield


def end_session(pid: int) -> None:
    url = connection.get_connection_params()
    keys = {"host", "port", "user", "password", "dbname"}
    with psycopg.connect(**{key: url[key] for key in keys & url.keys()}) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


@pytest.fixture
def steps(transactional_db: None) -> Iterator[list[NewStep]]:
    yield steps_of({"a": "", "b": "a"})
    connection.close()


@pytest.mark.parametrize("number", range(len(STATEMENTS)), ids=STATEMENTS)
def test_a_start_that_is_cut_off_leaves_nothing(
    steps: list[NewStep], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, cut_off_before(number, patch), pytest.raises(LOST):
        start(RUN, steps)
    connection.close()
    for model in (WorkflowRun, Job, Dependency):
        assert not model.objects.exists()
    assert states(start(RUN, steps)) == {"a": "ready", "b": "waiting"}


def test_a_start_that_is_cut_off_before_it_notifies_is_there(
    steps: list[NewStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    number = len(STATEMENTS)
    with monkeypatch.context() as patch, cut_off_before(number, patch), suppress(*LOST):
        start(RUN, steps)
    connection.close()
    assert states(start(RUN, steps)) == {"a": "ready", "b": "waiting"}
    assert WorkflowRun.objects.count() == 1
