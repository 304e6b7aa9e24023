"""A limit hits the handler that it was made for, and nothing else."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_jobs.domain.outcomes import Succeeded, TimedOut
from django_jobs.exceptions import TimeLimitExceeded
from django_jobs.worker.context.stop import StopHandler
from django_jobs.worker.ipc.scoreboard import Board, Slot
from django_jobs.worker.timeouts.limits import TOLD, TOUCHY_WAIT, Alarm, Clock, Interrupted, Limit
from django_jobs.worker.timeouts.threads import Timekeeper

SHORT = 0.002


@pytest.fixture
def slot() -> Slot:
    return Board(1).slots[0]


@pytest.fixture(params=[Timekeeper, Alarm])
def clock(request: pytest.FixtureRequest) -> Clock:
    clock: Clock = request.param()
    return clock


def limit_of(
    clock: Clock, slot: Slot, timeout: float | None, silence: float | None = None
) -> tuple[Limit, int]:
    index = slot.start(1, 1, 1, 0.0, False, silence or 0.0)
    started = time.monotonic()
    return Limit(clock, slot, index, started=started, timeout=timeout, silence=silence), index


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


def test_a_handler_in_time_returns_what_it_returns(clock: Clock, slot: Slot) -> None:
    limit, _ = limit_of(clock, slot, 60)
    assert limit.call(lambda first, second: first + second, {"first": 1, "second": 2}) == 3
    assert limit.ended is None


@pytest.mark.parametrize("error", [KeyError("one"), StopIteration(), SystemExit(3)])
def test_a_handler_in_time_raises_what_it_raises(
    clock: Clock, slot: Slot, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    limit, _ = limit_of(clock, slot, 60)
    with pytest.raises(type(error)) as raised:
        limit.call(fail, {})
    assert raised.value is error


def test_a_handler_that_is_late_is_interrupted_and_cleans_up(clock: Clock, slot: Slot) -> None:
    cleaned: list[type[BaseException]] = []

    def handler() -> None:
        try:
            until_told()
        except BaseException as error:
            cleaned.append(type(error))
            raise

    limit, _ = limit_of(clock, slot, 0.05)
    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.05)
    assert cleaned == [TimeLimitExceeded]
    (entry,) = slot.in_hand()
    assert (entry.deadline, entry.silence) == (0, 0)  # nor is it killed while it is settled
    assert not entry.finished  # and if that crashes its process, it is to blame


@pytest.mark.parametrize("error", [None, ValueError("instead"), SystemExit(1)])
def test_whatever_a_late_handler_does_then_it_has_timed_out(
    clock: Clock, slot: Slot, error: BaseException | None
) -> None:
    def handler() -> str:
        try:
            until_told()
        except TimeLimitExceeded:
            if error is not None:
                raise error from None
        return "went on"

    limit, _ = limit_of(clock, slot, 0.05)
    with pytest.raises(Interrupted):
        limit.call(handler, {})


def test_a_signal_ends_a_sleep(slot: Slot) -> None:
    limit, _ = limit_of(Alarm(), slot, 0.05)
    with pytest.raises(Interrupted):
        limit.call(sleep, {"seconds": 600})


def test_a_handler_that_is_told_is_stopped_and_what_it_does_then_is_its_own(slot: Slot) -> None:
    word: list[bool | None] = []

    def nap() -> None:
        word.append(None)  # it is being read
        os.kill(os.getpid(), TOLD)
        spin(3 * TOUCHY_WAIT)
        word.append(True)
        sleep(600)

    def return_all_the_same() -> str:
        try:
            nap()
        except StopHandler:
            return "done"
        return ""

    def told() -> bool | None:
        return word[-1] if word else False

    before = signal.getsignal(TOLD)
    with pytest.raises(StopHandler):
        limit_of(Alarm(told), slot, None)[0].call(nap, {})
    assert word == [None, True]
    word.clear()
    assert limit_of(Alarm(told), slot, 600)[0].call(return_all_the_same, {}) == "done"
    assert signal.getsignal(TOLD) == before
    os.kill(os.getpid(), TOLD)  # nobody listens, and nothing happens


def test_a_signal_alone_stops_nothing(slot: Slot) -> None:
    def signal_itself() -> str:
        os.kill(os.getpid(), TOLD)
        return "went on"

    assert limit_of(Alarm(), slot, None)[0].call(signal_itself, {}) == "went on"


def test_a_handler_that_was_told_to_stop_before_it_began_is_stopped_at_once(slot: Slot) -> None:
    limit, _ = limit_of(Alarm(lambda: True), slot, None)
    with pytest.raises(StopHandler):
        limit.call(sleep, {"seconds": 600})


def test_silence_counts_from_the_last_report(clock: Clock, slot: Slot) -> None:
    limit, index = limit_of(clock, slot, None, silence=0.5)

    def handler() -> None:
        for _ in range(100):
            slot.heard(index)
            time.sleep(0.001)
        reported.append(time.monotonic())
        slot.heard(index)
        until_told()

    reported: list[float] = []
    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.5, silent=True)
    assert reported == [] or time.monotonic() - reported[0] >= 0.5


def test_the_time_out_ends_a_handler_that_reports_for_ever(clock: Clock, slot: Slot) -> None:
    limit, index = limit_of(clock, slot, 0.2, silence=60)

    def handler() -> None:
        while True:
            slot.heard(index)

    with pytest.raises(Interrupted) as raised:
        limit.call(handler, {})
    assert raised.value.outcome == TimedOut(seconds=0.2)


def storm(clock: Clock, slot: Slot, calls: int, seed: int) -> tuple[int, int]:
    """Calls of about their limit, one after the other; how many were in time and how many not.

    An exception that came late would end this function, or the next call, and be seen.
    """
    chance = random.Random(seed)
    in_time = late = 0
    for _ in range(calls):
        how: Callable[[float], float] = chance.choice([spin, sleep])
        seconds = chance.choice([0.0, SHORT, chance.uniform(0.5 * SHORT, 1.5 * SHORT), 2 * SHORT])
        begun = time.monotonic()
        limit, index = limit_of(clock, slot, SHORT)
        try:
            assert limit.call(how, {"seconds": seconds}) == seconds
            assert limit.ended is None
            in_time += 1
        except Interrupted:
            assert limit.ended == TimedOut(seconds=SHORT)
            assert time.monotonic() - begun >= SHORT
            late += 1
        slot.free(index)
        for number in range(chance.randrange(50)):
            str(number)
    spin(2 * SHORT)
    return in_time, late


def test_a_storm_of_short_calls_on_many_threads_hits_no_other_code(slot: Slot) -> None:
    clock = Timekeeper()
    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(lambda number: storm(clock, slot, 250, number), range(8)))
    assert sum(in_time + late for in_time, late in counts) == 2_000
    assert sum(in_time for in_time, _ in counts) > 0
    assert sum(late for _, late in counts) > 0
    assert not clock._armed


def test_a_storm_of_short_calls_on_the_main_thread_hits_no_other_code(slot: Slot) -> None:
    in_time, late = storm(Alarm(), slot, 500, 1)
    assert in_time > 0
    assert late > 0


def test_a_storm_over_logging_handlers_leaves_no_lock_taken(
    clock: Clock, slot: Slot, caplog: pytest.LogCaptureFixture
) -> None:
    """Their locks are of the whole process, and are taken and given back in steps of Python."""
    logger = logging.getLogger("tests.worker.limits")
    logger.setLevel(logging.INFO)

    def talk(limit: Limit) -> None:
        while limit.ended is None:  # what is raised in a formatter, logging itself may swallow
            logger.info("still here")
            # Now and then for longer than a thread may run before others do: logging lets them
            # run at its locks, and there nothing is raised.
            spin(random.choice((0.0002, 0.0002, 0.03)))

    interrupted = 0
    for _ in range(40):
        limit, index = limit_of(clock, slot, SHORT)
        with pytest.raises(Interrupted):
            limit.call(talk, {"limit": limit})
        interrupted += 1
        slot.free(index)
        caplog.clear()
        with ThreadPoolExecutor(1) as elsewhere:
            elsewhere.submit(logger.info, "heard").result(60)
    assert interrupted == 40


def test_one_thread_keeps_the_time_of_all(slot: Slot) -> None:
    clock = Timekeeper()

    def call(number: int) -> Any:
        limit, _ = limit_of(clock, slot, 60)
        return limit.call(lambda: Succeeded(result=str(number)), {})

    before = keepers()
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(call, range(20)))) == 20
    assert keepers() == before + 1


def keepers() -> int:
    return sum(thread.name == "django_jobs-timekeeper" for thread in threading.enumerate())
