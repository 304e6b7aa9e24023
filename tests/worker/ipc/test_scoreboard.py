"""What a worker process has in hand, as the supervisor reads it."""

from __future__ import annotations

import time

import pytest

from django_jobs.worker.ipc.scoreboard import (
    CAPACITY,
    SHORT_SECONDS,
    Scoreboard,
    StartedJob,
    WorkerSlot,
)


@pytest.fixture
def slot() -> WorkerSlot:
    slot = Scoreboard(2).slots[1]
    slot.register(7, 100.0)
    return slot


def test_a_started_job_is_read_back(slot: WorkerSlot) -> None:
    started = slot.start(11, 3, 7, 5.0, False, 2.0)
    (entry,) = slot.started_jobs()
    assert slot.entries[entry.index] is started
    assert (entry.job, entry.attempt, entry.worker) == (11, 3, 7)
    assert (entry.deadline, entry.silence, entry.progress_at) == (5.0, 2.0, entry.started)
    assert not any([entry.finished, entry.alone, entry.cancel_asked])
    slot.ask_cancel(11)
    started.finish()
    (entry,) = slot.started_jobs()
    assert entry.finished
    assert entry.cancel_asked
    slot.free(started)
    assert slot.started_jobs() == []


def test_a_report_and_a_start_are_visible_to_all_processes(slot: WorkerSlot) -> None:
    started = slot.start(11, 1, 7, 0.0, True)
    before = started.progress_at
    started.note_progress()
    assert started.progress_at > before
    started.begin(50.0, 3.0)
    (entry,) = slot.started_jobs()
    assert (entry.deadline, entry.silence) == (50.0, 3.0)
    assert entry.started == entry.progress_at > before


@pytest.mark.parametrize(
    "times, watched",
    [((0.0, False, 0.0), False), ((5.0,), True), ((0.0, True), True), ((0.0, False, 3.0), True)],
)
def test_only_jobs_with_a_limit_are_watched(
    slot: WorkerSlot, times: tuple[float, ...], watched: bool
) -> None:
    started = slot.start(11, 1, 7, *times)
    assert slot.watched is watched
    slot.register(8, 200.0)
    assert slot.watched is watched
    slot.look()
    assert slot.watched is watched
    slot.free(started)
    slot.look()
    assert not slot.watched


def test_a_job_that_is_stopped_by_force_is_watched(slot: WorkerSlot) -> None:
    started, other = slot.start(11, 1, 7), slot.start(12, 1, 7)
    slot.ask_cancel(11)
    assert not any([slot.watched, slot.force_asked, started.forced_at])
    slot.ask_cancel(11, force=True)
    first = started.forced_at
    assert 0 < first <= time.monotonic()
    assert slot.force_asked
    slot.look()
    assert slot.watched
    slot.ask_cancel(11, force=True)
    assert (started.forced_at, other.forced_at) == (first, 0.0)
    started.end_times()
    slot.look()
    assert not slot.watched
    slot.free(started)
    assert not any(slot.start(number, 1, 7).forced_at for number in range(CAPACITY - 1))


def test_a_job_that_is_settled_while_it_is_read_is_not_read_back(
    slot: WorkerSlot, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot.start(10, 1, 7)
    settled = slot.start(11, 1, 7, 5.0)
    copy = StartedJob.from_buffer_copy

    def copy_late(entry: StartedJob) -> StartedJob:
        if entry is settled:
            slot.free(settled)
        return copy(entry)

    monkeypatch.setattr(StartedJob, "from_buffer_copy", copy_late)
    assert [entry.job for entry in slot.started_jobs()] == [10]


def test_the_slots_do_not_touch_each_other() -> None:
    first, second = Scoreboard(2).slots
    for number in range(CAPACITY):
        first.start(number, 1, 1, 1.0, True, 1.0)
    assert second.started_jobs() == []
    assert not second.watched
    second.register(2, 1.0)
    assert len(first.started_jobs()) == CAPACITY
    first.clear()
    assert second.worker == 2


def test_a_reused_entry_keeps_nothing_of_the_last_job(slot: WorkerSlot) -> None:
    first = slot.start(11, 1, 7, 5.0, True, 2.0)
    slot.ask_cancel(11)
    first.child = 71
    slot.process = 70
    assert slot.processes() == [70, 71]
    slot.free(first)
    for number in range(CAPACITY):
        slot.start(number, 1, 7)
    again = slot.entries[first.index]
    assert (again.deadline, again.silence, again.child) == (0.0, 0.0, 0)
    assert not any([again.finished, again.alone, again.cancel_asked])
    assert slot.processes() == [70]


def test_a_cleared_slot_is_empty(slot: WorkerSlot) -> None:
    slot.start(11, 3, 7, 5.0)
    slot.lose_lease(7)
    slot.note_settling(True)
    slot.clear()
    assert slot.started_jobs() == []
    assert (slot.worker, slot.lease_until) == (0, 0.0)
    assert not any([slot.lease_lost, slot.watched, slot.settles])
    assert [slot.start(number, 1, 8).index for number in range(3)] == [0, 1, 2]


def test_a_process_is_short_only_soon_after_a_try_to_connect_failed_and_until_it_may_claim() -> (
    None
):
    (slot,) = Scoreboard(1).slots
    assert not slot.is_short
    slot.status.ask_for_room()
    assert slot.is_short
    slot.status.is_connected = True
    slot.note_settling(True)
    assert not slot.is_short
    slot.note_settling(False)
    slot.status.room_asked_at -= SHORT_SECONDS
    assert not slot.is_short
