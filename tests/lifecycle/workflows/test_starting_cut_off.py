"""A start whose session the server ends at any of its statements leaves all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, connection

from django_jobs.lifecycle import step_insert
from django_jobs.models import Dependency, Job, WorkflowRun
from tests.workflows import start_graph, states

STATEMENTS = (
    "the run",
    "the ids",
    "the steps",
    "the dependencies",
    "the notification",
    "the run again",
    "the commit",
)
LOST = (DatabaseError, InterfaceError, psycopg.Error)


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


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", range(len(STATEMENTS)), ids=STATEMENTS)
def test_a_start_that_is_cut_off_leaves_nothing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, cut_off_before(number, patch), pytest.raises(LOST):
        start_graph({"a": "", "b": "a"}, key="k")
    connection.close()
    for model in (WorkflowRun, Job, Dependency):
        assert not model.objects.exists()
    run = start_graph({"a": "", "b": "a"}, key="k")
    assert states(run) == {"a": "ready", "b": "waiting"}


@pytest.mark.django_db(transaction=True)
def test_no_statement_of_a_start_follows_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, cut_off_before(len(STATEMENTS), patch):
        run = start_graph({"a": "", "b": "a"}, key="k")
    assert states(run) == {"a": "ready", "b": "waiting"}
