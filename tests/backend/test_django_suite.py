"""Django's own tests of Tasks pass with JobsBackend."""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import TestCase

from django_jobs.backend import declared
from tests.sdists import downloaded

from .suite import VERSION, unpack

OF_IMMEDIATE = "test_immediate_backend"
MODULES = ("test_tasks", "test_dummy_backend", OF_IMMEDIATE)
"""Not ``test_custom_backend``: in it Django tests its base classes with backends of the test."""

IN_A_COROUTINE = "calls a method for plain code in a coroutine, where Django refuses queries"
OF_THE_DUMMY = "changes the object in the memory of DummyBackend"
NOT_IMMEDIATE = "asks for an error where ImmediateBackend cannot do what this backend does"
EXCEPTIONS = {
    "test_tasks.TaskTestCase.test_enqueue_task_async": IN_A_COROUTINE,
    "test_tasks.TaskTestCase.test_get_missing_result": IN_A_COROUTINE,
    "test_tasks.TaskTestCase.test_refresh_result": IN_A_COROUTINE,
    "DummyBackendTestCase.test_enqueue_task_async": IN_A_COROUTINE,
    "DummyBackendTestCase.test_get_missing_result": IN_A_COROUTINE,
    "DummyBackendTestCase.test_refresh_result": OF_THE_DUMMY,
    "DummyBackendTestCase.test_refresh_result_async": OF_THE_DUMMY,
    "ImmediateBackendTestCase.test_cannot_get_result": NOT_IMMEDIATE,
    "ImmediateBackendTestCase.test_cannot_pass_run_after": NOT_IMMEDIATE,
    "ImmediateBackendTestCase.test_cannot_refresh_result": NOT_IMMEDIATE,
    "ImmediateBackendTestCase.test_catches_exception": (
        "reads the traceback in the log line: task_finished is sent after the commit, outside of "
        "the except block. The errors of results have it: test_jobs_backend.py"
    ),
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "a KeyboardInterrupt that a Task raises is its failure, and does not end the worker"
    ),
}
"""Tests that are not run, by the end of their id, and why."""

OF_THE_COMMIT = {
    "TransactionTestCase.test_doesnt_wait_until_transaction_commit_by_default": (
        "a job that runs at once is a row of the transaction too, and starts after its commit"
    )
}

CHOSEN = {"6.0": 59, "6.1": 64}
"""How many tests are run at least, by the version of Django that they are of. A patch release may
add some."""

OF = VERSION.rpartition(".")[0]
AT_ONCE = 14
"""How many of them are of the immediate backend."""


@pytest.fixture
def suite(
    request: pytest.FixtureRequest, tmp_path: Path, transactional_db: None
) -> Iterator[unittest.TestSuite]:
    """Without a transaction: Django's TestCase begins its own, and closes the connection. Its
    parameter are the backends, and the modules of tests."""
    path = str(tmp_path)
    backends, names = request.param
    source = downloaded(f"django=={VERSION}", "tests/tasks", request)
    unpack(source, tmp_path, f"tests.backend.{backends}")
    sys.path.insert(0, path)
    try:
        loader = unittest.TestLoader()
        modules = [importlib.import_module(f"tasks.{name}") for name in names]
        yield unittest.TestSuite(map(loader.loadTestsFromModule, modules))
    finally:
        sys.path.remove(path)
        for name in [name for name in sys.modules if name.partition(".")[0] == "tasks"]:
            del sys.modules[name]
        declared.forget_module("tasks.tasks")


def flattened(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from flattened(one)
        else:
            assert isinstance(one, unittest.TestCase)
            yield one


@pytest.mark.parametrize(
    "suite, at_least",
    [
        (("suite_backends", MODULES), CHOSEN[OF]),
        (("suite_at_once", [OF_IMMEDIATE]), AT_ONCE),
    ],
    indirect=["suite"],
)
def test_they_pass(suite: unittest.TestSuite, at_least: int) -> None:
    tests = list(flattened(suite))
    ids = [test.id() for test in tests]
    result = unittest.TestResult()
    skipped = EXCEPTIONS if "dummy" in "".join(ids) else EXCEPTIONS | OF_THE_COMMIT
    chosen = [test for test in tests if not test.id().endswith(tuple(skipped))]
    chosen.sort(key=lambda test: not isinstance(test, TestCase))  # those that commit, last
    unittest.TestSuite(chosen).run(result)
    failed = (*result.failures, *result.errors)
    assert not failed, "\n".join(f"{test.id()}: {text[-400:]}" for test, text in failed)
    assert len(chosen) >= at_least
    missed = [name for name in skipped if not any(one.endswith(name) for one in ids)]
    assert missed == [] or skipped is not EXCEPTIONS
