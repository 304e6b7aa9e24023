"""Handlers that work in parallel, in processes which they start."""

from __future__ import annotations

import multiprocessing
import os
import pdb
import signal
import subprocess
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection

from django.db import connection, transaction

from django_jobs import current_run, job
from tests.patience import PATIENCE

from .fault_jobs import wait_for
from .marks import mark, mark_and_wait
from .models import Effect

PROGRAM = 'echo $$ 0 >> "$1.started"; while [ ! -e "$1.go" ]; do sleep 0.05; done'


def square(number: int) -> int:
    """What a process computes."""
    return number**2


def write(path: str) -> None:
    """Write a row in a process of the handler's, and wait until the test lets it go."""
    Effect.objects.create(note="child")
    mark(f"{path}.started")
    wait_for(path)


def use_pool(path: str) -> None:
    """As in the manual of ``multiprocessing``."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(write, [path, path])


def use_executor(path: str) -> None:
    """As in the manual of ``concurrent.futures``."""
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as executor:
        list(executor.map(write, [path, path]))


def run_program(path: str) -> None:
    """A program that starts programs."""
    subprocess.run(["sh", "-c", PROGRAM, "sh", path], check=True)


def spawn(path: str) -> None:
    """Processes that share nothing with the handler's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(mark_and_wait, [path])


WAYS: dict[str, Callable[[str], None]] = {
    "pool": use_pool,
    "executor": use_executor,
    "program": run_program,
    "spawn": spawn,
}


def work(path: str, way: str) -> None:
    """Have processes work while a transaction is open here, which holds a lock."""
    mark(path)
    # Python 3.12 warns of a fork among threads.
    with warnings.catch_warnings(), transaction.atomic():
        warnings.simplefilter("ignore")
        run = current_run()
        Effect.objects.create(note="parent", job_id=run.job_id if run else None)
        WAYS[way](path)


@job(max_attempts=1)
def work_in_parallel(path: str, way: str) -> None:
    """In a thread."""
    work(path, way)


@job(max_attempts=1, isolated=True)
def work_in_parallel_alone(path: str, way: str) -> None:
    """In a process of its own."""
    work(path, way)


@job(max_attempts=1, timeout=1)
def work_too_long(path: str, way: str) -> None:
    """In a thread, with a limit."""
    work(path, way)


@job(max_attempts=1, timeout=1, isolated=True)
def work_too_long_alone(path: str, way: str) -> None:
    """In a process of its own, with a limit."""
    work(path, way)


def _make_pools() -> int:
    total = 0
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(15):
            with context.Pool(4) as pool:
                total += sum(pool.map(square, range(10)))
    return total


@job(max_attempts=1)
def make_pools() -> int:
    """One pool after the other, as a handler of images does."""
    return _make_pools()


@job(max_attempts=1, isolated=True)
def make_pools_alone() -> int:
    """The same in a process of its own."""
    return _make_pools()


def look(answers: Connection[str, str]) -> None:
    """What a process sees that a handler forked."""
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    usual = handlers == [signal.SIG_DFL, signal.default_int_handler]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend,) = cursor.fetchone()
    answers.send(f"{usual} {connection.in_atomic_block} {backend}")


def _look_from_a_fork() -> list[object]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with warnings.catch_warnings(), transaction.atomic():
        warnings.simplefilter("ignore")
        Effect.objects.create(note="kept")
        child = context.Process(target=look, args=(theirs,))
        child.start()
        child.join()
        with connection.cursor() as cursor:  # which the child has not harmed
            cursor.execute("SELECT pg_backend_pid()")
            (backend,) = cursor.fetchone()
    usual, in_transaction, other = ours.recv().split()
    sleeper = context.Process(target=signal.pause)
    sleeper.start()
    sleeper.terminate()
    sleeper.join(PATIENCE)
    return [usual, in_transaction, int(other) != backend, sleeper.exitcode]


@job(max_attempts=1)
def look_from_a_fork() -> list[object]:
    """Signals and connections of what a handler forks."""
    return _look_from_a_fork()


@job(max_attempts=1, isolated=True)
def look_from_a_fork_alone() -> list[object]:
    """The same in a process of its own."""
    return _look_from_a_fork()


@job(max_attempts=1)
def debug() -> str:
    """Stops in the debugger, where somebody sets the answer."""
    answer = "nobody came"
    pdb.Pdb(nosigint=True).set_trace()
    return answer


@job
def leave_program() -> int:
    """Starts a program and does not wait for it."""
    return os.posix_spawnp("sleep", ["sleep", "600"], os.environ)


@job(isolated=True)
def leave_program_alone() -> int:
    """The same in a process of its own."""
    return leave_program()
