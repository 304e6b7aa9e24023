"""A limit hits the handler that it was made for, and nothing else."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_jobs.domain.outcomes import Succeeded, TimedOut
from django_jobs.exceptions import TimeLimitExceeded
from django_jobs.worker.context.attempt import StopHandler
from django_jobs.worker.ipc.scoreboard import Scoreboard, StartedJob, WorkerSlot
from django_jobs.worker.timeouts.limits import (
    STOP_SIGNAL,
    UNSAFE_WAIT,
    Interrupted,
    SignalTimeouts,
    ThreadTimeouts,
    TimeLimit,
    TimeoutSource,
)
from tests.patience import PATIENCE

SHORT = 0.002


@pytest.fixture
def slot() -> WorkerSlot:
    return Scoreboard(1).slots[0]


@pytest.fixture(params=[ThreadTimeouts, SignalTimeouts])
def timeouts(request: pytest.FixtureRequest) -> TimeoutSource:
    timeouts: TimeoutSource = request.param()
    return timeouts


def limit_of(
    timeouts: TimeoutSource, slot: WorkerSlot, timeout: float | None, silence: float | None = None
) -> tuple[TimeLimit, StartedJob]:
    entry = slot.start(1, 1, 1, 0.0, False, silence or 0.0)
    started = time.monotonic()
    return TimeLimit(
        timeouts, slot, entry, started=started, timeout=timeout, silence=silence
    ), entry


def spin(seconds: float) -> float:
    """Python code for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return seconds


def sleep(seconds: float) -> float:
    """A blocking call for so long."""
    time.sleep(seconds)
    return seconds


def until_told() -> None:
    """For ever, in small steps."""
    while True:
        time.sleep(0.001)


def test_the_result_of_a_handler_in_time_is_returned(
    timeouts: TimeoutSource, slot: WorkerSlot
) -> None:
    limit, _ = limit_of(timeouts, slot, 60)
    assert limit.call(lambda first, second: first + second, {"first": 1, "second": 2}) == 3
    assert limit.ended is None


@pytest.mark.parametrize("error", [KeyError("one"), StopIteration(), SystemExit(3)])
def test_an_exception_of_a_handler_in_time_is_raised(
    timeouts: TimeoutSource, slot: WorkerSlot, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    limit, _ = limit_of(timeouts, slot, 60)
    with pytest.raises(type(error)) as raised:
        limit.call(fail, {})
    assert raised.value is error


def test_a_handler_that_is_late_is_interrupted_and_cleans_up(
    timeouts: TimeoutSource, slot: WorkerSlot
) -> None:
    cleaned: list[type[BaseException]] = []

    def handler() -> None:
        try:
            until_told()
        except BaseException as error:
            cleaned.append(type(error))
            raise

    limit, _ = limit_of(timeouts, slot, 0.05)
    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.05)
    assert cleaned == [TimeLimitExceeded]
    (entry,) = slot.started_jobs()
    assert (entry.deadline, entry.silence) == (0, 0)  # nor is it killed while it is settled
    assert not entry.finished  # and if that crashes its process, it is to blame


@pytest.mark.parametrize("error", [None, ValueError("instead"), SystemExit(1)])
def test_a_late_handler_has_timed_out_regardless_of_its_reaction(
    timeouts: TimeoutSource, slot: WorkerSlot, error: BaseException | None
) -> None:
    def handler() -> str:
        try:
            until_told()
        except TimeLimitExceeded:
            if error is not None:
                raise error from None
        return "went on"

    limit, _ = limit_of(timeouts, slot, 0.05)
    with pytest.raises(Interrupted):
        limit.call(handler, {})


def test_a_signal_ends_the_wait_for_another_thread(slot: WorkerSlot) -> None:
    limit, _ = limit_of(SignalTimeouts(), slot, 0.05)
    woken = threading.Event()
    other = threading.Timer(30, woken.set)
    other.start()
    try:
        with pytest.raises(Interrupted):
            limit.call(woken.wait, {})
        assert not woken.is_set()
    finally:
        other.cancel()


def test_a_signal_ends_a_sleep(slot: WorkerSlot) -> None:
    limit, _ = limit_of(SignalTimeouts(), slot, 0.05)
    with pytest.raises(Interrupted):
        limit.call(sleep, {"seconds": 600})


def test_a_stop_request_is_reread_and_the_handler_may_still_return(
    slot: WorkerSlot,
) -> None:
    word: list[bool | None] = []

    def nap() -> None:
        word.append(None)  # it is being read
        os.kill(os.getpid(), STOP_SIGNAL)
        spin(3 * UNSAFE_WAIT)
        word.append(True)
        sleep(600)

    def return_all_the_same() -> str:
        try:
            nap()
        except StopHandler:
            return "done"
        return ""

    def stop_requested() -> bool | None:
        return word[-1] if word else False

    before = signal.getsignal(STOP_SIGNAL)
    with pytest.raises(StopHandler):
        limit_of(SignalTimeouts(stop_requested), slot, None)[0].call(nap, {})
    assert word == [None, True]
    word.clear()
    assert (
        limit_of(SignalTimeouts(stop_requested), slot, 600)[0].call(return_all_the_same, {})
        == "done"
    )
    assert signal.getsignal(STOP_SIGNAL) == before
    os.kill(os.getpid(), STOP_SIGNAL)  # nobody listens, and nothing happens


def test_a_signal_alone_stops_nothing(slot: WorkerSlot) -> None:
    def signal_itself() -> str:
        os.kill(os.getpid(), STOP_SIGNAL)
        return "went on"

    assert limit_of(SignalTimeouts(), slot, None)[0].call(signal_itself, {}) == "went on"


def test_a_handler_asked_to_stop_before_it_starts_is_stopped_at_once(
    slot: WorkerSlot,
) -> None:
    limit, _ = limit_of(SignalTimeouts(lambda: True), slot, None)
    with pytest.raises(StopHandler):
        limit.call(sleep, {"seconds": 600})


def test_silence_counts_from_the_last_report(timeouts: TimeoutSource, slot: WorkerSlot) -> None:
    limit, entry = limit_of(timeouts, slot, None, silence=0.5)

    def handler() -> None:
        for _ in range(100):
            entry.note_progress()
            time.sleep(0.001)
        reported.append(time.monotonic())
        entry.note_progress()
        until_told()

    reported: list[float] = []
    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.5, silent=True)
    assert reported == [] or time.monotonic() - reported[0] >= 0.5


def test_the_time_out_ends_a_handler_that_reports_for_ever(
    timeouts: TimeoutSource, slot: WorkerSlot
) -> None:
    limit, entry = limit_of(timeouts, slot, 0.2, silence=60)

    def handler() -> None:
        while True:
            entry.note_progress()

    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.2)


def storm(timeouts: TimeoutSource, slot: WorkerSlot, calls: int, seed: int) -> tuple[int, int]:
    """Calls of about their limit, one after the other; how many were in time and how many not.

    An exception that came late would end this function, or the next call, and be seen.
    """
    chance = random.Random(seed)
    in_time = late = 0
    for _ in range(calls):
        how: Callable[[float], float] = chance.choice([spin, sleep])
        seconds = chance.choice([0.0, SHORT, chance.uniform(0.5 * SHORT, 1.5 * SHORT), 2 * SHORT])
        begun = time.monotonic()
        limit, entry = limit_of(timeouts, slot, SHORT)
        try:
            assert limit.call(how, {"seconds": seconds}) == seconds
            assert limit.ended is None
            in_time += 1
        except Interrupted:
            assert limit.ended == TimedOut(seconds=SHORT)
            assert time.monotonic() - begun >= SHORT
            late += 1
        slot.free(entry)
        for number in range(chance.randrange(50)):
            str(number)
    spin(2 * SHORT)
    return in_time, late


def test_a_storm_of_short_calls_on_many_threads_hits_no_other_code(slot: WorkerSlot) -> None:
    timeouts = ThreadTimeouts()
    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(lambda number: storm(timeouts, slot, 250, number), range(8)))
    assert sum(in_time + late for in_time, late in counts) == 2_000
    assert sum(in_time for in_time, _ in counts) > 0
    assert sum(late for _, late in counts) > 0
    assert not timeouts._armed


def test_a_storm_of_short_calls_on_the_main_thread_hits_no_other_code(slot: WorkerSlot) -> None:
    in_time, late = storm(SignalTimeouts(), slot, 500, 1)
    assert in_time > 0
    assert late > 0


def test_a_storm_over_logging_handlers_leaves_no_lock_taken(
    timeouts: TimeoutSource, slot: WorkerSlot, caplog: pytest.LogCaptureFixture
) -> None:
    """Their locks are of the whole process, and are taken and given back in steps of Python."""
    logger = logging.getLogger("tests.worker.limits")
    logger.setLevel(logging.INFO)

    def talk(limit: TimeLimit) -> None:
        while limit.ended is None:  # what is raised in a formatter, logging itself may swallow
            logger.info("still here")
            # Now and then for longer than a thread may run before others do: logging lets them
            # run at its locks, and there nothing is raised.
            spin(random.choice((0.0002, 0.0002, 0.03)))

    interrupted = 0
    for _ in range(40):
        limit, entry = limit_of(timeouts, slot, SHORT)
        with pytest.raises(Interrupted):
            limit.call(talk, {"limit": limit})
        interrupted += 1
        slot.free(entry)
        caplog.clear()
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(logger.info, "heard").result(PATIENCE)
    assert interrupted == 40


def test_one_thread_times_all_handlers(slot: WorkerSlot) -> None:
    timeouts = ThreadTimeouts()

    def call(number: int) -> Any:
        limit, _ = limit_of(timeouts, slot, 60)
        return limit.call(lambda: Succeeded(result=str(number)), {})

    before = keepers()
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(call, range(20)))) == 20
    assert keepers() == before + 1


def keepers() -> int:
    return sum(thread.name == "django_jobs-timeouts" for thread in threading.enumerate())


LATE = """
import time

import django

django.setup()
from django_jobs.exceptions import TimeLimitExceeded
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.timeouts.limits import TimeLimit
from django_jobs.worker.timeouts.limits import ThreadTimeouts
from tests.calls import calls_of

timeouts, slot = ThreadTimeouts(), Scoreboard(1).slots[0]
now = time.monotonic()
limit = TimeLimit(timeouts, slot, slot.start(1, 1, 1, 0.0, False, 0.0), started=now, timeout=60)
timeouts.arm(limit)
limit.expire(limit.due())
timeouts.disarm(limit)
print(calls_of(lambda: None))
"""


def test_a_limit_that_has_ended_leaves_nothing_pending() -> None:
    """Under a profiler no call would return on CPython 3.11 as long as one is pending."""
    done = subprocess.run(
        [sys.executable, "-c", LATE], stderr=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
