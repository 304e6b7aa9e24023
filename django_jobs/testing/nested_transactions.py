"""Lets a job commit inside the transaction of a test.

A ``TestCase`` runs each test in a transaction, which it rolls back. A handler in a worker is in
none: each of its statements is committed at once, the end of its ``atomic`` block commits, and runs
what waits ``on_commit``. Inside :func:`committing` the connections of the test behave so, with
savepoints in place of transactions. Connections that are in none are only observed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from .crash_points import AFTER_COMMIT, Observer, ProcessDied

Work = Callable[[], Any]

OUTSIDE: dict[str, Callable[[], Any]] = {
    "in_atomic_block": bool,
    "autocommit": lambda: True,
    "savepoint_ids": list,
    "atomic_blocks": list,
    "run_on_commit": list,
    "commit_on_exit": lambda: True,
    "needs_rollback": bool,
    "rollback_exc": lambda: None,
    "run_commit_hooks_on_set_autocommit_on": bool,
}
"""The attributes by which Django's connection is in a transaction, and their values outside."""

OVERRIDDEN = ("_set_autocommit", "_commit", "_rollback", "_savepoint_rollback")

WRITES = re.compile(r"[\s(]*(?:INSERT|UPDATE|DELETE|MERGE|WITH)\b", re.IGNORECASE)

# As a commit does. Django's own constraints are deferred, others that can be are so from here on.
CHECK = "SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED"

_numbers = count(1)


class Transactions:
    """The transactions of the handler on one connection; savepoints, if it is in one of a test."""

    def __init__(self, connection: BaseDatabaseWrapper, observer: Observer) -> None:
        self._connection: Any = connection
        self._observer = observer
        self._is_nested = connection.in_atomic_block
        self._base = f"django_jobs_{next(_numbers)}"
        self._savepoint = ""
        self._before: dict[str, Any] = {}
        self._apart: list[Work] = []
        self._is_partial = False

    def begin(self) -> None:
        """Put the connection outside of its transaction."""
        connection = self._connection
        if self._is_nested:
            self._run(f"SAVEPOINT {self._base}")
            self._before = {name: getattr(connection, name) for name in OUTSIDE}
            for name, initial in OUTSIDE.items():
                setattr(connection, name, initial())
            # The transaction of the test would be lost.
            connection.close = connection.close_if_unusable_or_obsolete = lambda: None
        for name in OVERRIDDEN:
            setattr(connection, name, getattr(self, name))
        connection.execute_wrappers.append(self._execute)

    def end(self) -> None:
        """Put the connection back into it. What was begun and not committed is rolled back."""
        connection = self._connection
        if connection.in_atomic_block:
            connection.in_atomic_block = False
            connection.rollback()
            connection.set_autocommit(True)
        connection.execute_wrappers.remove(self._execute)
        for name in OVERRIDDEN:
            delattr(connection, name)
        if self._is_nested:
            if connection.connection.info.transaction_status == TransactionStatus.INERROR:
                # By a statement that was not made through Django.
                self._run(f"ROLLBACK TO SAVEPOINT {self._base}")
            self._run(f"RELEASE SAVEPOINT {self._base}")
            del connection.close, connection.close_if_unusable_or_obsolete
            for name, value in self._before.items():
                setattr(connection, name, value)

    def keep(self, work: Work) -> None:
        """Repeat ``work``, which has just been done, if the transaction that it is part of is
        rolled back: a worker does it on another connection. Repeating it must do no harm."""
        if self._connection.in_atomic_block:
            self._apart.append(work)

    def _set_autocommit(self, autocommit: bool) -> None:
        if not self._is_nested:
            type(self._connection)._set_autocommit(self._connection, autocommit)
        elif not autocommit:
            self._savepoint = f"django_jobs_{next(_numbers)}"
            self._run(f"SAVEPOINT {self._savepoint}")

    def _commit(self) -> None:
        self._observer.raise_if_dead()
        if self._is_nested:
            with self._connection.wrap_database_errors:
                self._run(f"{CHECK}; RELEASE SAVEPOINT {self._savepoint}")
        else:
            type(self._connection)._commit(self._connection)
        self._end_transaction(is_lost=self._is_partial)
        try:
            self._observer.reach(AFTER_COMMIT)
        except ProcessDied:
            self._connection.run_on_commit = []
            raise

    def _rollback(self) -> None:
        if self._is_nested:
            name = self._savepoint
            self._run(f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}")
        else:
            type(self._connection)._rollback(self._connection)
        self._end_transaction(is_lost=True)

    def _savepoint_rollback(self, savepoint: str) -> None:
        self._is_partial = True
        type(self._connection)._savepoint_rollback(self._connection, savepoint)

    def _end_transaction(self, *, is_lost: bool) -> None:
        apart, self._apart, self._is_partial = self._apart, [], False
        # A dead process had already done it.
        with self._observer.unobserved():
            for work in apart if is_lost else ():
                with suppress(Exception):
                    work()
            if apart and is_lost and not self._is_nested:  # it began a transaction of its own
                type(self._connection)._commit(self._connection)

    def _execute(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        """Run one statement. Outside of a transaction it is one by itself."""
        self._observer.raise_if_dead(sql)
        if self._connection.in_atomic_block:
            return execute(sql, params, many, context)
        if not self._is_nested:
            result = execute(sql, params, many, context)
        else:
            name = f"django_jobs_{next(_numbers)}"
            self._run(f"SAVEPOINT {name}")
            try:
                result = execute(sql, params, many, context)
            except BaseException:
                self._run(f"ROLLBACK TO SAVEPOINT {name}; RELEASE SAVEPOINT {name}")
                raise
            self._run(f"RELEASE SAVEPOINT {name}")
        if WRITES.match(str(sql)):
            self._observer.reach(AFTER_COMMIT)
        return result

    def _run(self, sql: str) -> None:
        # Not through Django, whose log of queries is the test's.
        self._connection.connection.execute(sql, prepare=False)


@contextmanager
def committing(observer: Observer) -> Iterator[dict[str, Transactions]]:
    """Put all connections of this thread that are in a transaction outside of it. Returns the
    transactions of the connections by alias."""
    opened = {
        connection.alias: Transactions(connection, observer)
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None and connection.vendor == "postgresql"
    }
    with ExitStack() as ends:
        for one in opened.values():
            one.begin()
            ends.callback(one.end)
        yield opened
