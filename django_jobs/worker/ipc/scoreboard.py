"""A small table in shared memory: the started jobs of each worker process.

The worker process writes it. The supervisor and the heartbeat read it, even after the worker has
died: so the jobs of a crash differ from those that were only prefetched, without a statement per
job. There is no lock. Each field has one writer at a time, and the field that others act on is
written last. Times are of ``time.monotonic()``; 0 is never, or no limit.
"""

from __future__ import annotations

import mmap
import time
from collections import deque
from ctypes import (
    Structure,
    addressof,
    c_bool,
    c_double,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    memset,
    sizeof,
)
from struct import Struct
from typing import Annotated, Any, TypeVar, cast, get_type_hints

from ...lifecycle.job_columns import Fence

FREE, STARTED, FINISHED, FAILED = 0, 1, 2, 3

SHORT_SECONDS = 3.0
"""A connection that could not be opened is missing for this long. It is tried again sooner."""

CAPACITY = 4_096
"""Entries of one process: more than it ever has started and not settled."""

S = TypeVar("S", bound=Structure)
Id = Annotated[int, c_int64]
Number = Annotated[int, c_int32]
Seconds = Annotated[float, c_double]
Flag = Annotated[bool, c_bool]


def in_memory(kind: type[S]) -> type[S]:
    """Lay out the fields of a structure whose annotations say how, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    of_memory = ((name, getattr(hint, "__metadata__", ())) for name, hint in hints.items())
    kind._fields_ = [(name, *layout) for name, layout in of_memory if layout]
    return kind


@in_memory
class StartedJob(Structure):
    """A job that its process has started and not yet settled.

    ``progress_at`` is the time of its last report, and ``silence`` the seconds that it may run
    without one. ``alone``: it runs in a child, with the process id ``child``. The heartbeat writes
    ``cancel_asked`` and ``forced_at``, since when it is stopped by force, and the worker the rest;
    or the child, while the worker waits for it.
    """

    __slots__ = ()
    job: Id
    worker: Id
    started: Seconds
    deadline: Seconds
    silence: Seconds
    progress_at: Seconds
    forced_at: Seconds
    attempt: Number
    child: Number
    cancel_asked: Flag
    alone: Flag
    state: Annotated[int, c_uint8]
    index: Number

    def bound(self, deadline: float, silence: float) -> None:
        """Set its time limits, from now on. The caller ensures that it is watched."""
        self.deadline, self.silence = deadline, silence

    def begin(self, deadline: float, silence: float) -> None:
        """Start its time limits in the child that runs it: they do not count from the request."""
        self.started = self.progress_at = time.monotonic()
        self.bound(deadline, silence)

    def end_times(self) -> None:
        """Remove its time limits before it is settled: its result may still crash the process."""
        self.bound(0.0, 0.0)
        self.forced_at = 0.0

    def note_progress(self) -> None:
        self.progress_at = time.monotonic()

    def finish(self) -> None:
        """Note that its handler has ended. Only its settle is left."""
        self.state = FINISHED

    @property
    def finished(self) -> bool:
        """Whether its handler has ended and only its settle is left."""
        return self.state >= FINISHED

    def fail(self) -> None:
        """Note that the child which runs it has settled it, and that it failed."""
        self.state = FAILED

    @property
    def failed(self) -> bool:
        """Whether its child has settled it as failed."""
        return self.state == FAILED

    @property
    def fence(self) -> Fence:
        return self.job, self.attempt, self.worker


ALL_AT_ONCE = Struct("".join(kind._type_ for _, kind in cast(Any, StartedJob)._fields_[:-1]))
"""Writes all of an entry but its index, in half the time of writing each field."""


@in_memory
class TreeStatus(Structure):
    """The status that all processes of the tree share. Any of them writes ``room_asked_at`` and
    ``idle_asked_at``, the supervisor ``turned_at`` and ``draining``, and the heartbeat process the
    rest."""

    __slots__ = ()
    beat_at: Seconds
    """When the heartbeat process was last known to run."""
    schedules_seen_at: Seconds
    """When this tree last looked at the schedules."""
    room_asked_at: Seconds
    """When a process of the tree last could not open its own connection."""
    idle_asked_at: Seconds
    """When a handler of the tree last found no connection left."""
    turned_at: Seconds
    """When the supervisor was last known to run."""
    is_renewing: Flag
    """Whether the heartbeat process waits for the database."""
    draining: Flag
    """Whether the command drains."""
    is_connected: Flag
    """Whether the heartbeat process connected on its last try. Without that no lease is renewed."""

    def beat(self) -> None:
        self.beat_at = time.monotonic()

    def ask_for_room(self) -> None:
        """Note that a connection of the tree's own could not be opened."""
        self.room_asked_at = time.monotonic()

    def ask_for_idle(self) -> None:
        """Note that a connection of a handler could not be opened."""
        self.idle_asked_at = time.monotonic()


@in_memory
class WorkerSlot(Structure):
    """The part of the scoreboard that one worker process writes."""

    __slots__ = ("_free", "entries", "status")
    worker: Id
    """The id of the worker's row; 0 if it has none."""
    lease_until: Seconds
    """The end of the lease, as far as it is known."""
    lease_lost: Flag
    """Whether a renewal was refused: other workers may take over the jobs of this one."""
    watched: Flag
    """Whether the supervisor has to look here often, because a job may have to be ended."""
    settles: Flag
    """Whether the settler of this process has a connection."""
    draining: Flag
    """Whether this process has stopped claiming."""
    claim_failed: Flag
    """Whether the last round of the claimer failed."""
    claim_failures: Annotated[int, c_uint32]
    """How many rounds of it have failed."""
    runs: Id
    """How many attempts this process has settled."""
    failed_runs: Id
    """How many of them failed, or ran out of time."""
    listens: Flag
    """Whether this process receives notifications."""
    round_due: Seconds
    """When the next round of the claimer is due, by its last one that succeeded."""
    process: Number
    """The id of the process of this slot."""
    inspect_asked_at: Seconds
    """When a person last asked what a job of this process is doing."""
    force_asked: Flag
    """Whether a job was asked to be stopped by force since this process last looked."""
    empty_at: Seconds
    """When a renewal was last sent that found no job of this worker in the table."""

    _table: Annotated[Any, StartedJob * CAPACITY]
    status: TreeStatus
    entries: list[StartedJob]
    _free: deque[StartedJob]

    def open(self, status: TreeStatus) -> None:
        """Make an empty slot in this part of the memory."""
        self.status = status
        self.entries = list(self._table)  # once: making such an object takes as long as a write
        for index, entry in enumerate(self.entries):
            entry.index = index
        self._free = deque(self.entries)

    def note_settling(self, connected: bool) -> None:
        self.settles = connected

    @property
    def may_claim(self) -> bool:
        """Whether the heartbeat and the settler have their connections. Otherwise handlers would
        run whose outcome could not be written, and their jobs would run again elsewhere."""
        return self.settles and self.status.is_connected

    @property
    def is_short(self) -> bool:
        """Whether a limit denies them a connection: claimers and listeners then close theirs."""
        return not self.may_claim and time.monotonic() < self.status.room_asked_at + SHORT_SECONDS

    def register(self, worker: int, lease_until: float) -> None:
        """Start with a new row; 0 for none."""
        # In this order: see may_start.
        self.worker = worker
        self.lease_until = lease_until
        self.lease_lost = False

    def renewed(self, worker: int, lease_until: float) -> None:
        """Note a renewal, unless the process has a new row meanwhile."""
        if self.worker == worker:
            self.lease_until = lease_until

    def note_round(self, pause: float) -> float:
        """Note that a round of the claimer succeeded. The next one is due in ``pause`` seconds,
        which are returned."""
        self.round_due, self.claim_failed = time.monotonic() + pause, False
        return pause

    def note_failed_round(self) -> None:
        self.claim_failed = True
        self.claim_failures += 1

    def count(self, runs: int, failed: int) -> None:
        """Note how many attempts have ended, and how many of them failed."""
        self.runs, self.failed_runs = runs, failed

    def note_listening(self, works: bool) -> None:
        self.listens = works

    def lose_lease(self, worker: int) -> None:
        if self.worker == worker:
            self.lease_lost = True

    def fence_at(self, lease: float) -> float:
        """When the jobs of this process have to be stopped, so that none runs when the lease ends.
        ``lease`` is its length in seconds."""
        return self.lease_until - min(1.0, lease / 10)

    def is_safe(self, lease: float) -> bool:
        """Whether a claim made now will still be within the lease when it is written."""
        return time.monotonic() < self.fence_at(lease) and not self.lease_lost

    def may_start(self, worker: int, now: float) -> bool:
        """Whether a job that was claimed as ``worker`` may still be started."""
        # The worker is read last and written first, so a new lease implies the new worker.
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
        entry = self._free.popleft()
        now = time.monotonic()
        ALL_AT_ONCE.pack_into(
            entry,
            0,
            job,
            worker,
            now,
            deadline,
            silence,
            now,
            0.0,
            attempt,
            0,
            False,
            alone,
            STARTED,
        )
        if deadline or alone or silence:  # after the entry: see look
            self.watched = True
        return entry

    def free(self, entry: StartedJob) -> None:
        entry.state = FREE
        self._free.append(entry)

    def processes(self) -> list[int]:
        children = [entry.child for entry in self.started_jobs()]
        return [pid for pid in (self.process, *children) if pid]

    def ask_cancel(self, job: int, force: bool = False) -> None:
        for entry in self.entries:
            if entry.state != FREE and entry.job == job and entry.worker == self.worker:
                entry.cancel_asked = True
                if force and not entry.forced_at:
                    entry.forced_at = time.monotonic()
                    self.watched = self.force_asked = True  # after the entry: see look

    def ask_inspection(self) -> None:
        self.inspect_asked_at = time.monotonic()

    def look(self) -> list[StartedJob]:
        """The started jobs that are not settled. Notes whether to look at it again soon."""
        # First the flag and then the entries, in reverse of the worker: a job that it starts
        # meanwhile is found here or sets the flag again.
        self.watched = False
        entries = self.started_jobs()
        if any(one.deadline or one.alone or one.silence or one.forced_at for one in entries):
            self.watched = True
        return entries

    def started_jobs(self) -> list[StartedJob]:
        """Copies of the started jobs that are not settled."""
        copies = [
            StartedJob.from_buffer_copy(entry) for entry in self.entries if entry.state != FREE
        ]
        # It may be settled between the check and the copy, and another one half written.
        return [copy for copy in copies if copy.state != FREE]

    def clear(self) -> None:
        memset(addressof(self), 0, sizeof(self))
        self.open(self.status)


class Scoreboard:
    """One :class:`WorkerSlot` for each worker process of the tree. Made before any fork."""

    def __init__(self, slots: int) -> None:
        memory = mmap.mmap(-1, sizeof(TreeStatus) + slots * sizeof(WorkerSlot))
        self.status = TreeStatus.from_buffer(memory)
        self.slots = list((WorkerSlot * slots).from_buffer(memory, sizeof(TreeStatus)))
        for slot in self.slots:
            slot.open(self.status)

    @property
    def is_short(self) -> bool:
        """Whether the heartbeat, or the settler of a process with jobs, could not open its
        connection: then others of the tree close theirs."""
        return any(slot.worker and slot.is_short for slot in self.slots)
