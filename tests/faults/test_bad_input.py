"""Bad rows, bad handlers, bad loads: a worker goes on (B4, B5, B8 to B10, B12, B19)."""

from __future__ import annotations

import ast
import base64
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import transaction

import django_jobs
from django_jobs import PayloadError
from django_jobs.models import Job
from tests.app import database_jobs, jobs
from tests.worker.processes import Start, until_status


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (str(self.path), "w")


@pytest.mark.processes
def test_no_dotted_path_is_run_and_nothing_is_unpickled_from_a_row(
    start_worker: Start, tmp_path: Path
) -> None:
    bomb = base64.b64encode(pickle.dumps(Bomb(tmp_path / "pickled"))).decode()
    commands = {
        "os.system": {"command": f"touch {tmp_path}/system"},
        "subprocess.check_output": {"args": ["touch", f"{tmp_path}/subprocess"]},
        "builtins.open": {"file": f"{tmp_path}/open", "mode": "w"},
        "pathlib.Path.touch": {"self": f"{tmp_path}/path"},
        "__import__": {"name": "antigravity"},
    }
    rows = [jobs.noop.enqueue() for _ in commands]
    for row, (name, payload) in zip(rows, commands.items(), strict=True):
        Job.objects.filter(pk=row.pk).update(job_type=name, payload=payload)
    text = jobs.write_effect.enqueue(bomb[:200])
    start_worker("--burst").wait()
    assert Job.objects.get(pk=text.pk).status == "succeeded"
    assert set(Job.objects.exclude(pk=text.pk).values_list("status", "attempt")) == {("ready", 0)}
    assert list(tmp_path.glob("[!w]*")) == []  # but for the worker's log


def test_the_package_imports_nothing_that_unpickles_or_evaluates() -> None:
    forbidden = {"pickle", "marshal", "shelve", "dill", "yaml"}
    for path in Path(django_jobs.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not forbidden & {name.name.split(".")[0] for name in node.names}, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in forbidden, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path


def test_a_payload_of_a_hundred_megabytes_is_refused_before_encoding() -> None:
    huge = "x" * 100_000_000
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match="payload: larger than"):
            jobs.write_effect.enqueue(huge)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.django_db(transaction=True)
def test_an_on_commit_hook_that_raises_affects_no_job() -> None:
    def fail() -> None:
        raise RuntimeError("a hook of the project")

    def enqueue_behind_it() -> None:
        with transaction.atomic():
            transaction.on_commit(fail)
            jobs.noop.enqueue()

    with pytest.raises(RuntimeError, match="a hook"):
        enqueue_behind_it()
    assert Job.objects.filter(status="ready").count() == 1


LEFT_BEHIND = [
    *("search_path", "role", "function", "temporary", "advisory", "prepared"),
    *("closed", "translation", "time zone", "context"),
]


@pytest.mark.processes
def test_session_state_does_not_leak_into_the_next_job(start_worker: Start) -> None:
    """One thread runs all, and one job lies between two that leave something."""
    start_worker("--threads", "1")
    clean = until_status(database_jobs.tell_what_is_left.enqueue(), "succeeded").result
    assert clean is not None
    assert clean[3:6] == ["0", "0", "0"]
    found = {}
    for what in LEFT_BEHIND:
        left = database_jobs.leave_behind.enqueue(what)
        until_status(left, "succeeded")
        found[what] = until_status(database_jobs.tell_what_is_left.enqueue(), "succeeded").result
    assert found == dict.fromkeys(LEFT_BEHIND, clean)
