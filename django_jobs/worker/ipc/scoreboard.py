"""A small table in shared memory: which jobs each worker process has in hand right now.

Written by the worker process, read by the supervisor and the heartbeat, also after the worker has
died: that distinguishes the jobs of a crash from those only prefetched, at no statement per job.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections import deque
from dataclasses import dataclass

from ...lifecycle.job_columns import Fence

# worker id, lease valid until, lease lost, watched; process id; whether it can settle
HEADER = struct.Struct("=qdii16x")
LEASE = struct.Struct("=qdi")
WATCHED_AT, PROCESS_AT, SETTLES_AT = 20, 24, 28
# job, worker, started, deadline, silence, progress_at, attempt; state, cancel, alone; process id of
# that
ENTRY = struct.Struct("=qqddddiBBBx4x")
TIMES = struct.Struct("=dddd")
TIMES_AT, PROGRESS_AT = 16, 40
BOUNDS = struct.Struct("=dd")  # deadline, silence
BOUNDS_AT = 24
MOMENT = struct.Struct("=d")
NUMBER = struct.Struct("=i")
FREE, STARTED, FINISHED = 0, 1, 2
STATE_AT, CANCEL_AT, CHILD_AT = 52, 53, 56
"""Offsets in an entry. One writer each: the heartbeat writes cancel, the worker the rest; or the
child that runs the job alone, while the worker waits for it."""

BEAT = struct.Struct("=d")
SCHEDULES = struct.Struct("=d")
CONNECTED_AT = BEAT.size + SCHEDULES.size
ROOM_AT = CONNECTED_AT + 8
FRONT = ROOM_AT + MOMENT.size

SHORT_SECONDS = 3.0
"""For so long a connection that could not be opened counts as lacking: it is tried again sooner."""

CAPACITY = 2_048
"""Entries of one process: more than it ever holds started and not yet settled."""


@dataclass(frozen=True, slots=True)
class StartedJob:
    """A job that its process has started and not yet settled. ``started``, ``deadline`` and
    ``progress_at`` (when it last reported progress) are of ``time.monotonic()``; ``silence`` is how
    many seconds it may go on without a report. 0 is no deadline, and any silence."""

    index: int
    job: int
    worker: int
    attempt: int
    started: float
    deadline: float
    silence: float
    progress_at: float
    finished: bool
    cancel_asked: bool
    alone: bool

    @property
    def fence(self) -> Fence:
        """What no other attempt has."""
        return self.job, self.attempt, self.worker


class Scoreboard:
    """The table: one :class:`WorkerSlot` for each worker process of the tree. Made before any
    fork."""

    def __init__(self, slots: int, capacity: int = CAPACITY) -> None:
        size = HEADER.size + capacity * ENTRY.size
        self._memory = mmap.mmap(-1, FRONT + size * slots)
        self.slots = [
            WorkerSlot(self._memory, FRONT + index * size, capacity) for index in range(slots)
        ]

    @property
    def beat_at(self) -> float:
        """When the heartbeat process last came round, of ``time.monotonic()``."""
        return float(BEAT.unpack_from(self._memory, 0)[0])

    def beat(self) -> None:
        """Note that the heartbeat process comes round."""
        BEAT.pack_into(self._memory, 0, time.monotonic())

    @property
    def is_connected(self) -> bool:
        """Whether the heartbeat process has a connection, as far as its last try showed."""
        return self._memory[CONNECTED_AT] == 1

    def note_connection(self, connected: bool) -> None:
        """Note whether the heartbeat process has a connection: without, no lease is renewed."""
        self._memory[CONNECTED_AT] = connected

    def ask_for_room(self) -> None:
        """Note that a connection of the tree's own could not be opened."""
        MOMENT.pack_into(self._memory, ROOM_AT, time.monotonic())

    @property
    def is_short(self) -> bool:
        """Whether what renews, or what settles in a process with jobs, lacks a connection that it
        could not open: others of the tree close theirs for it."""
        return any(slot.worker and slot.is_short for slot in self.slots)

    @property
    def schedules_seen_at(self) -> float:
        """When this tree last looked at the schedules, of ``time.monotonic()``; 0 for never."""
        return float(SCHEDULES.unpack_from(self._memory, BEAT.size)[0])

    def note_schedules(self) -> None:
        """Note a look at the schedules."""
        SCHEDULES.pack_into(self._memory, BEAT.size, time.monotonic())


class WorkerSlot:
    """The part of the scoreboard that one worker process writes."""

    def __init__(self, memory: mmap.mmap, offset: int, capacity: int) -> None:
        self._memory = memory
        self._offset = offset
        self._first = offset + HEADER.size
        self._end = self._first + capacity * ENTRY.size
        self._free = deque(range(self._first, self._end, ENTRY.size))

    @property
    def worker(self) -> int:
        """The id of the worker's row; 0 where it has none."""
        return int(HEADER.unpack_from(self._memory, self._offset)[0])

    @property
    def may_claim(self) -> bool:
        """Whether what renews and what settles has its connection: or handlers would run whose
        ends could not be written, and whose jobs would run again elsewhere."""
        settles = self._memory[self._offset + SETTLES_AT] == 1
        return settles and self._memory[CONNECTED_AT] == 1

    @property
    def is_short(self) -> bool:
        """Whether that is for want of connections: the claimers and listeners close theirs."""
        return not self.may_claim and time.monotonic() < self.room_asked_at + SHORT_SECONDS

    def note_settling(self, connected: bool) -> None:
        """Note whether what settles in this process has a connection."""
        self._memory[self._offset + SETTLES_AT] = connected

    @property
    def room_asked_at(self) -> float:
        """When a process of the tree last could not open its own connection, of
        ``time.monotonic()``; 0 for never."""
        return float(MOMENT.unpack_from(self._memory, ROOM_AT)[0])

    def ask_for_room(self) -> None:
        """Note that a connection of the tree's own could not be opened."""
        MOMENT.pack_into(self._memory, ROOM_AT, time.monotonic())

    @property
    def lease_until(self) -> float:
        """Until when the lease is known to hold, of ``time.monotonic()``."""
        return float(HEADER.unpack_from(self._memory, self._offset)[1])

    @property
    def lease_lost(self) -> bool:
        """Whether a renewal was refused: the jobs of this worker are on their way to others."""
        return bool(HEADER.unpack_from(self._memory, self._offset)[2])

    @property
    def watched(self) -> bool:
        """Whether the supervisor has to look here often: some job may have to be ended."""
        return bool(HEADER.unpack_from(self._memory, self._offset)[3])

    def register(self, worker: int, lease_until: float) -> None:
        """Begin with a new row; 0 for none."""
        LEASE.pack_into(self._memory, self._offset, worker, lease_until, 0)

    def renewed(self, worker: int, lease_until: float) -> None:
        """Note a renewal, unless the process has got a new row meanwhile."""
        if self.worker == worker:
            struct.pack_into("=d", self._memory, self._offset + 8, lease_until)

    def lose_lease(self, worker: int) -> None:
        """Note that the renewal of ``worker`` was refused."""
        if self.worker == worker:
            struct.pack_into("=i", self._memory, self._offset + 16, 1)

    def begin_process(self, pid: int) -> None:
        """The process that this slot is for has begun."""
        NUMBER.pack_into(self._memory, self._offset + PROCESS_AT, pid)

    def begin_child(self, index: int, pid: int) -> None:
        """The process that runs the job at ``index`` alone has begun."""
        NUMBER.pack_into(self._memory, index + CHILD_AT, pid)

    def processes(self) -> list[int]:
        """The ids of its process and of those that run its jobs alone."""
        places = [self._offset + PROCESS_AT] + [one.index + CHILD_AT for one in self.started_jobs()]
        pids = [int(NUMBER.unpack_from(self._memory, place)[0]) for place in places]
        return [pid for pid in pids if pid]

    def may_start(self, worker: int, now: float) -> bool:
        """Whether a job that was claimed as ``worker`` is still ours to start."""
        mine, lease_until, lost, _ = HEADER.unpack_from(self._memory, self._offset)
        return bool(mine == worker and now < lease_until and not lost)

    def start(
        self,
        job: int,
        attempt: int,
        worker: int,
        deadline: float = 0.0,
        alone: bool = False,
        silence: float = 0.0,
    ) -> int:
        """Put a job in hand; returns its index. ``deadline`` 0 is none, ``silence`` 0 is any."""
        index = self._free.popleft()
        now = time.monotonic()
        ENTRY.pack_into(
            self._memory,
            index,
            job,
            worker,
            now,
            deadline,
            silence,
            now,
            attempt,
            STARTED,
            0,
            alone,
        )
        if deadline or alone or silence:  # after the entry: see look
            self._set_watched(1)
        return index

    def begin(self, index: int, deadline: float, silence: float) -> None:
        """The job at ``index`` begins now, in the child that runs it alone: its times count from
        here, and not from when the child was asked for."""
        now = time.monotonic()
        TIMES.pack_into(self._memory, index + TIMES_AT, now, deadline, silence, now)

    def bound(self, index: int, deadline: float, silence: float) -> None:
        """The job at ``index`` has these times again."""
        BOUNDS.pack_into(self._memory, index + BOUNDS_AT, deadline, silence)
        self._set_watched(1)

    def end_times(self, index: int) -> None:
        """The job at ``index`` has no times any more, though it is still in hand: what it returned
        may yet crash its process."""
        BOUNDS.pack_into(self._memory, index + BOUNDS_AT, 0.0, 0.0)

    def note_progress(self, index: int) -> None:
        """The handler of the job at ``index`` has reported something."""
        MOMENT.pack_into(self._memory, index + PROGRESS_AT, time.monotonic())

    def progress_at(self, index: int) -> float:
        """When the handler of the job at ``index`` last reported something, or began."""
        return float(MOMENT.unpack_from(self._memory, index + PROGRESS_AT)[0])

    def finish(self, index: int) -> None:
        """Its handler has ended; only its settle is left."""
        self._memory[index + STATE_AT] = FINISHED

    def free(self, index: int) -> None:
        """It is settled."""
        self._memory[index + STATE_AT] = FREE
        self._free.append(index)

    def ask_cancel(self, job: int) -> None:
        """Note that a cancel of ``job`` was requested."""
        for entry in self.started_jobs():
            if entry.job == job and entry.worker == self.worker:
                self._memory[entry.index + CANCEL_AT] = 1

    def cancel_asked(self, index: int) -> bool:
        """Whether a cancel of the job at ``index`` was requested."""
        return self._memory[index + CANCEL_AT] == 1

    def look(self) -> list[StartedJob]:
        """What is started and not settled; notes whether it has to be looked at again soon."""
        # First the flag and then the entries, the other way round than the worker: what it starts
        # meanwhile is found here or sets the flag again.
        self._set_watched(0)
        entries = self.started_jobs()
        if any(entry.deadline or entry.alone or entry.silence for entry in entries):
            self._set_watched(1)
        return entries

    def started_jobs(self) -> list[StartedJob]:
        """What is started and not settled."""
        found: list[StartedJob] = []
        memory = self._memory[self._first : self._end]
        for place in range(STATE_AT, len(memory), ENTRY.size):
            if memory[place] != FREE:
                at = place - STATE_AT
                (
                    job,
                    worker,
                    started,
                    deadline,
                    silence,
                    progress_at,
                    attempt,
                    state,
                    cancel,
                    alone,
                ) = ENTRY.unpack_from(memory, at)
                found.append(
                    StartedJob(
                        index=self._first + at,
                        job=job,
                        worker=worker,
                        attempt=attempt,
                        started=started,
                        deadline=deadline,
                        silence=silence,
                        progress_at=progress_at,
                        finished=state == FINISHED,
                        cancel_asked=bool(cancel),
                        alone=bool(alone),
                    )
                )
        return found

    def clear(self) -> None:
        """Empty the slot for the next process."""
        self._memory[self._offset : self._end] = bytes(self._end - self._offset)
        self._free = deque(range(self._first, self._end, ENTRY.size))

    def _set_watched(self, flag: int) -> None:
        NUMBER.pack_into(self._memory, self._offset + WATCHED_AT, flag)
