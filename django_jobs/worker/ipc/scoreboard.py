"""A small table in shared memory: which jobs each worker process has in hand right now.

Written by the worker process, read by the supervisor and the heartbeat, also after the worker has
died: that distinguishes the jobs of a crash from those only prefetched, at no statement per job.

There is no lock. Each field has one writer at a time, and what others act on is written last. Times
are of ``time.monotonic()``; 0 is never, or no limit.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from ctypes import Structure, addressof, c_bool, c_double, c_int32, c_int64, c_uint8, memset, sizeof
from struct import Struct

from ...lifecycle.job_columns import Fence

FREE, STARTED, FINISHED = 0, 1, 2

SHORT_SECONDS = 3.0
"""For so long a connection that could not be opened counts as lacking: it is tried again sooner."""

CAPACITY = 2_048
"""Entries of one process: more than it ever holds started and not yet settled."""


class StartedJob(Structure):
    """A job that its process has started and not yet settled. ``progress_at`` is when it last
    reported progress, ``silence`` how many seconds it may go on without a report. ``alone``: it
    runs in a child, whose process id is ``child``.

    The heartbeat writes ``cancel_asked``, the worker the rest; or the child, while the worker waits
    for it.
    """

    _fields_ = (
        ("job", c_int64),
        ("worker", c_int64),
        ("started", c_double),
        ("deadline", c_double),
        ("silence", c_double),
        ("progress_at", c_double),
        ("attempt", c_int32),
        ("child", c_int32),
        ("cancel_asked", c_bool),
        ("alone", c_bool),
        ("state", c_uint8),
        ("index", c_int32),
    )
    job: int
    worker: int
    started: float
    deadline: float
    silence: float
    progress_at: float
    attempt: int
    child: int
    cancel_asked: bool
    alone: bool
    state: int
    index: int

    def bound(self, deadline: float, silence: float) -> None:
        """It may take so long from now on. The caller sees to it that it is watched."""
        self.deadline, self.silence = deadline, silence

    def begin(self, deadline: float, silence: float) -> None:
        """It begins now, in the child that runs it alone: its times count from here, and not from
        when the child was asked for."""
        self.started = self.progress_at = time.monotonic()
        self.bound(deadline, silence)

    def end_times(self) -> None:
        """It has no times any more, though it is still in hand: what it returned may yet crash its
        process."""
        self.bound(0.0, 0.0)

    def note_progress(self) -> None:
        """Its handler has reported something."""
        self.progress_at = time.monotonic()

    def finish(self) -> None:
        """Its handler has ended; only its settle is left."""
        self.state = FINISHED

    @property
    def finished(self) -> bool:
        """Whether its handler has ended; only its settle is left."""
        return self.state == FINISHED

    @property
    def fence(self) -> Fence:
        """What no other attempt has."""
        return self.job, self.attempt, self.worker


ALL_AT_ONCE = Struct("".join(kind._type_ for _, kind in StartedJob._fields_[:-1]))
"""Writes all of an entry but its index, in half the time that the fields take one by one."""


class TreeStatus(Structure):
    """What all processes of the tree share. The heartbeat process writes all but
    ``room_asked_at``."""

    _fields_ = (
        ("beat_at", c_double),
        ("schedules_seen_at", c_double),
        ("room_asked_at", c_double),
        ("is_connected", c_bool),
    )
    beat_at: float
    """When the heartbeat process last came round."""
    schedules_seen_at: float
    """When this tree last looked at the schedules."""
    room_asked_at: float
    """When a process of the tree last could not open its own connection."""
    is_connected: bool
    """Whether the heartbeat process has a connection, as far as its last try showed: without, no
    lease is renewed."""

    def beat(self) -> None:
        """Note that the heartbeat process comes round."""
        self.beat_at = time.monotonic()

    def ask_for_room(self) -> None:
        """Note that a connection of the tree's own could not be opened."""
        self.room_asked_at = time.monotonic()


class WorkerSlot(Structure):
    """The part of the scoreboard that one worker process writes."""

    _fields_ = (
        ("worker", c_int64),
        ("lease_until", c_double),
        ("lease_lost", c_bool),
        ("watched", c_bool),
        ("settles", c_bool),
        ("process", c_int32),
        ("_table", StartedJob * CAPACITY),
    )
    __slots__ = ("_free", "entries", "status")
    worker: int
    """The id of the worker's row; 0 where it has none."""
    lease_until: float
    """Until when the lease is known to hold."""
    lease_lost: bool
    """Whether a renewal was refused: the jobs of this worker are on their way to others."""
    watched: bool
    """Whether the supervisor has to look here often: some job may have to be ended."""
    settles: bool
    """Whether what settles in this process has a connection."""
    process: int
    """The id of the process that this slot is for."""

    status: TreeStatus
    entries: list[StartedJob]
    _free: deque[StartedJob]

    def open(self, status: TreeStatus) -> None:
        """Make an empty slot of this piece of memory."""
        self.status = status
        self.entries = list(self._table)  # once: to make such an object takes as long as a write
        for index, entry in enumerate(self.entries):
            entry.index = index
        self._free = deque(self.entries)

    def note_settling(self, connected: bool) -> None:
        """Note whether what settles in this process has a connection."""
        self.settles = connected

    @property
    def may_claim(self) -> bool:
        """Whether what renews and what settles has its connection: or handlers would run whose
        ends could not be written, and whose jobs would run again elsewhere."""
        return self.settles and self.status.is_connected

    @property
    def is_short(self) -> bool:
        """Whether that is for want of connections: the claimers and listeners close theirs."""
        return not self.may_claim and time.monotonic() < self.status.room_asked_at + SHORT_SECONDS

    def register(self, worker: int, lease_until: float) -> None:
        """Begin with a new row; 0 for none."""
        # In this order: see may_start.
        self.worker = worker
        self.lease_until = lease_until
        self.lease_lost = False

    def renewed(self, worker: int, lease_until: float) -> None:
        """Note a renewal, unless the process has got a new row meanwhile."""
        if self.worker == worker:
            self.lease_until = lease_until

    def lose_lease(self, worker: int) -> None:
        """Note that the renewal of ``worker`` was refused."""
        if self.worker == worker:
            self.lease_lost = True

    def fence_at(self, lease: float) -> float:
        """When what runs here has to be stopped, so that it is gone before the lease is. ``lease``
        is its length in seconds."""
        return self.lease_until - min(1.0, lease / 10)

    def is_safe(self, lease: float) -> bool:
        """Whether a claim made now would still be ours when it is written."""
        return time.monotonic() < self.fence_at(lease) and not self.lease_lost

    def may_start(self, worker: int, now: float) -> bool:
        """Whether a job that was claimed as ``worker`` is still ours to start."""
        # The worker is read last and written first: with the lease of a new one, it is new too.
        return not self.lease_lost and now < self.lease_until and self.worker == worker

    def start(
        self,
        job: int,
        attempt: int,
        worker: int,
        deadline: float = 0.0,
        alone: bool = False,
        silence: float = 0.0,
    ) -> StartedJob:
        """Put a job in hand."""
        entry = self._free.popleft()
        now = time.monotonic()
        ALL_AT_ONCE.pack_into(
            entry, 0, job, worker, now, deadline, silence, now, attempt, 0, False, alone, STARTED
        )
        if deadline or alone or silence:  # after the entry: see look
            self.watched = True
        return entry

    def free(self, entry: StartedJob) -> None:
        """It is settled."""
        entry.state = FREE
        self._free.append(entry)

    def processes(self) -> list[int]:
        """The ids of its process and of those that run its jobs alone."""
        children = [entry.child for entry in self.started_jobs()]
        return [pid for pid in (self.process, *children) if pid]

    def ask_cancel(self, job: int) -> None:
        """Note that a cancel of ``job`` was requested."""
        for entry in self.entries:
            if entry.state != FREE and entry.job == job and entry.worker == self.worker:
                entry.cancel_asked = True

    def look(self) -> list[StartedJob]:
        """What is started and not settled; notes whether it has to be looked at again soon."""
        # First the flag and then the entries, the other way round than the worker: what it starts
        # meanwhile is found here or sets the flag again.
        self.watched = False
        entries = self.started_jobs()
        if any(entry.deadline or entry.alone or entry.silence for entry in entries):
            self.watched = True
        return entries

    def started_jobs(self) -> list[StartedJob]:
        """Copies of what is started and not settled."""
        copies = [
            StartedJob.from_buffer_copy(entry) for entry in self.entries if entry.state != FREE
        ]
        # Between the look and the copy it may have been settled, and another be half written.
        return [copy for copy in copies if copy.state != FREE]

    def clear(self) -> None:
        """Empty the slot for the next process."""
        memset(addressof(self), 0, sizeof(self))
        self.open(self.status)


class Scoreboard:
    """The table: one :class:`WorkerSlot` for each worker process of the tree. Made before any
    fork."""

    def __init__(self, slots: int) -> None:
        memory = mmap.mmap(-1, sizeof(TreeStatus) + slots * sizeof(WorkerSlot))
        self.status = TreeStatus.from_buffer(memory)
        self.slots = list((WorkerSlot * slots).from_buffer(memory, sizeof(TreeStatus)))
        for slot in self.slots:
            slot.open(self.status)

    @property
    def is_short(self) -> bool:
        """Whether what renews, or what settles in a process with jobs, lacks a connection that it
        could not open: others of the tree close theirs for it."""
        return any(slot.worker and slot.is_short for slot in self.slots)
