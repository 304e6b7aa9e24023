"""Fires due schedules. All workers may do so at once. One that fails does not stop the others."""

from __future__ import annotations

import logging
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    OperationalError,
    transaction,
)

from .. import registry
from ..api.schedules import Requests
from ..conf import conf
from ..domain.due_times import first_due, plan
from ..domain.errors import ErrorReport
from ..domain.numbers import NEVER
from ..domain.policies import Occurrence, Overlap, TickState
from ..domain.schedules import Admission, admit
from ..exceptions import HookError, QueueFull
from ..lifecycle.bulk_insert import RowsDropped
from ..lifecycle.history import WAIT_A_MOMENT
from ..lifecycle.notifying import emit_after_commit
from ..lifecycle.operations import jobs as job_operations
from ..lifecycle.schedules import due as due_schedules
from ..lifecycle.schedules.due import start_next_waiting
from ..lifecycle.schedules.firing import NewTick, advance, write_ticks
from ..models import Schedule
from ..models.database import execute, is_blocked

BATCH = 500
"""Schedules that one transaction fires."""

MOST_TICKS = 2_000
"""After this many ticks a transaction adds no further schedule, so that due times missed in an
outage are written in steps. Each step begins with the schedules that are on time."""

COMPARE_SECONDS = 3600.0
"""How often the next due times are compared with the time zone tables of this process: another one
with other tables may have computed them since."""

WAITING_PAUSE = 1.0
"""Seconds between looks while jobs wait for the one before them: its end sends no hint."""
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
"""Seconds between looks while another session locks due schedules: a worker or an editor."""


class Scheduling:
    """Looks at the schedules for one process, and remembers how long it paused last."""

    def __init__(self) -> None:
        self._pause = FIRST_PAUSE
        self._retried = False
        self._shuffled = False
        self._compare_at = 0.0
        self._compared = 0

    def look(self) -> float:
        """Fire up to 500 due schedules. Return the seconds to the next due time, or an hour, at
        most; 0 if there may be more to do.

        The first look also clears the errors of schedules whose job types this process has. It
        begins to compare the next due times with the time zone tables of this process, 500 in a
        look, and so does one an hour later. Raises what the database raises. If that is of some
        schedules, the others are fired before.
        """
        versions = registry.versions()
        if not self._retried:
            due_schedules.retry_errors(list(versions))
            self._retried = True
        done = 0
        left: list[Exception] = []
        if time.monotonic() >= self._compare_at:
            self._compare(left)
        horizon = due_schedules.horizon()
        if horizon.waiting:
            with transaction.atomic(using=conf().database):
                start_next_waiting()
        if horizon.stale:
            take = partial(due_schedules.take_stale, BATCH, shuffled=self._shuffled)
            done += work_on(take, arm, left)
        next_due_in = NEVER if horizon.next_due_in is None else horizon.next_due_in
        if horizon.waiting and next_due_in > 0:
            next_due_in = min(next_due_in, WAITING_PAUSE)
        if next_due_in <= 0:
            take = partial(due_schedules.take_due, versions, BATCH, shuffled=self._shuffled)
            done += work_on(take, fire, left)
        self._shuffled = bool(left)  # or a batch that is left would hide the others each time
        if left:
            raise left[0]
        if next_due_in > 0:
            return 0.0 if done or self._compared else min(next_due_in, COMPARE_SECONDS)
        self._pause = FIRST_PAUSE if done else min(2 * self._pause, LONGEST_PAUSE)
        if done or self._compared:
            return 0.0
        behind_in = NEVER if horizon.behind_in is None else horizon.behind_in
        return min(self._pause, max(behind_in, FIRST_PAUSE))

    def _compare(self, left: list[Exception]) -> None:
        """Compare the next 500 due times; after the last ones, begin again in an hour."""
        schedules = due_schedules.in_zones(self._compared, BATCH)
        if moved := [schedule.pk for schedule in schedules if _is_moved(schedule)]:
            work_on(partial(due_schedules.take_armed, moved), bring_forward, left)
        if len(schedules) == BATCH:
            self._compared = schedules[-1].pk
        else:
            self._compared, self._compare_at = 0, time.monotonic() + COMPARE_SECONDS


def bring_forward(schedules: Sequence[Schedule]) -> None:
    """Write the next due times that are earlier by the time zone tables of this process."""
    batch = _Batch()
    for schedule in schedules:
        if _is_moved(schedule):
            batch.moves[schedule.pk] = _first_due(schedule), None
    batch.write()


def _is_moved(schedule: Schedule) -> bool:
    try:
        return _first_due(schedule) != schedule.next_due_at
    except (ValueError, OverflowError):
        return False  # it gets an error when it is due


def _first_due(schedule: Schedule) -> datetime | None:
    if schedule.jobs_left == 0:
        return schedule.next_due_at
    last, since = schedule.last_due_at, schedule.resumed_at
    if last is None and since is None:
        since = schedule.created_at
    return first_due(schedule.rule, schedule.next_due_at, schedule.now, last=last, since=since)


def arm(schedules: Sequence[Schedule]) -> None:
    """Compute the next due times after ``schedule.now``. Those that passed before the rule was
    changed do not belong to the new rule."""
    batch = _Batch()
    for schedule in schedules:
        try:
            next_due = schedule.rule.next(schedule.now) if schedule.is_armed else None
        except Exception as error:
            batch.errors[schedule.pk] = ErrorReport.of(error).summary
        else:
            batch.moves[schedule.pk] = next_due, None
    batch.write()


def fire(schedules: Sequence[Schedule]) -> None:
    """Decide what the due times of these schedules do, up to ``schedule.now``, and write it."""
    batch = _Batch()
    live = due_schedules.live_jobs(
        [schedule.pk for schedule in schedules if _asks_for_live_jobs(schedule)]
    )
    ends = due_schedules.last_ends(schedules)
    for schedule in sorted(schedules, key=_due, reverse=True):
        if len(batch.ticks) >= MOST_TICKS:
            break  # the rest stay due
        try:
            if not _dies(schedule, ends.get(schedule.pk, []), batch):
                _decide(schedule, live.get(schedule.pk, []), batch)
        except Error:
            raise
        except Exception as error:
            batch.errors[schedule.pk] = ErrorReport.of(error).summary
    batch.write()


def _due(schedule: Schedule) -> datetime:
    assert schedule.next_due_at is not None
    return schedule.next_due_at


def _asks_for_live_jobs(schedule: Schedule) -> bool:
    return schedule.overlap != Overlap.ALLOW or schedule.overlap_limit is not None


@dataclass(slots=True)
class _Batch:
    """The writes of one transaction about several schedules."""

    ticks: list[NewTick] = field(default_factory=list)
    moves: dict[int, tuple[datetime | None, datetime | None]] = field(default_factory=dict)
    replaced: dict[int, list[int]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    dying: dict[int, str] = field(default_factory=dict)
    requests: Requests = field(default_factory=Requests)

    def write(self) -> None:
        """Write everything. A job is cancelled only if another was made in its place."""
        made = Counter(tick.schedule for tick, _ in write_ticks(self.ticks))
        replaced = [
            job for schedule, jobs in self.replaced.items() if schedule in made for job in jobs
        ]
        if replaced:
            # A job that another session has locked is left to the next due time, so that no
            # schedule waits for it.
            reason = "replaced by the next job of its schedule"
            job_operations.cancel(replaced, reason=reason, wait=False)
        advance(self.moves, made)
        for schedule, reason in self.dying.items():
            name = due_schedules.pause_of_itself(schedule, reason)
            emit_after_commit("schedule_paused", logging.WARNING, schedule=name, reason=reason)
        for schedule, reason in self.errors.items():
            mark_error(schedule, reason)


def _dies(schedule: Schedule, ends: Sequence[str], batch: _Batch) -> bool:
    """Whether the last ``pause_after_dead`` jobs of the schedule are all dead. Notes that it is to
    be paused."""
    limit = schedule.pause_after_dead
    if not limit or list(ends) != ["dead"] * limit:
        return False
    reason = f"its last {limit} jobs are dead" if limit > 1 else "its last job is dead"
    batch.dying[schedule.pk] = reason
    batch.ticks += [
        _not_fired(schedule, one, TickState.SUPPRESSED, reason)
        for one in schedule.rule.occurrences([_due(schedule)])
    ]
    return True


def _decide(schedule: Schedule, live: Sequence[tuple[int, bool]], batch: _Batch) -> None:
    first, rule = _first_due(schedule) or _due(schedule), schedule.rule
    due = plan(rule, first, schedule.now, schedule.catch_up, schedule.catch_up_limit)
    ticks = []
    if due.more_missed:
        reason = "the first of many that were missed and are not listed one by one"
        missed = rule.occurrences([first])[:1]
        ticks += [_not_fired(schedule, one, TickState.SUPPRESSED, reason) for one in missed]
    coming, seen = rule.occurrences(due.fire), rule.occurrences(due.late)
    seen += [one for one in coming if one.is_skipped]
    coming = [one for one in coming if not one.is_skipped]
    for one in seen:
        late = timedelta(seconds=round((schedule.now - one.at).total_seconds()))
        outcome, reason = TickState.SKIPPED_LATE, f"seen {late} late"
        if one.change is not None and one.is_skipped:
            outcome, reason = TickState.SKIPPED, one.change.text_in(schedule.zone)
        ticks.append(_not_fired(schedule, one, outcome, reason))
    try:
        fire = _admitted(schedule, coming, live, batch)
    except (QueueFull, HookError) as refused:
        reason = str(refused)
        fire = [_not_fired(schedule, one, TickState.SUPPRESSED, reason) for one in coming]
    batch.ticks += ticks + fire
    seen, beyond = [*seen, *coming[: len(fire)]], coming[len(fire) :]
    next_due = beyond[0].at if beyond else due.next_due
    batch.moves[schedule.pk] = next_due, max((one.at for one in seen), default=None)


def _admitted(
    schedule: Schedule,
    coming: Sequence[Occurrence],
    live: Sequence[tuple[int, bool]],
    batch: _Batch,
) -> list[NewTick]:
    """A tick for each due time that should make a job, if the live jobs permit it. Due times after
    the last job that the schedule may make get none."""
    ticks: list[NewTick] = []
    count, waiting = len(live), sum(waits for _, waits in live)
    for one in coming:
        if count - len(live) == schedule.jobs_left:
            break
        if schedule.overlap == Overlap.CANCEL and one is not coming[-1]:
            reason = "replaced by the due time behind it"
            ticks.append(_not_fired(schedule, one, TickState.SKIPPED_OVERLAP, reason))
            continue
        admission = admit(schedule.overlap, schedule.overlap_limit, count, waiting)
        if admission is Admission.SKIP:
            reason = f"{count} of its jobs had not ended"
            ticks.append(_not_fired(schedule, one, TickState.SKIPPED_OVERLAP, reason))
            continue
        if admission is Admission.REPLACE:
            batch.replaced[schedule.pk] = [job for job, _ in live]
        waits = admission is Admission.WAIT
        count, waiting = count + 1, waiting + waits
        ticks.append(
            NewTick(
                schedule=schedule.pk,
                due=one.due,
                reason="" if one.change is None else one.change.text_in(schedule.zone),
                moved_to=_moved(one),
                request=batch.requests.of(schedule, one.change),
                delay=_jitter(schedule, one.due),
                waits=waits,
            )
        )
    return ticks


def _not_fired(schedule: Schedule, one: Occurrence, outcome: TickState, reason: str) -> NewTick:
    return NewTick(
        schedule=schedule.pk, due=one.due, outcome=outcome, reason=reason, moved_to=_moved(one)
    )


def _moved(one: Occurrence) -> datetime | None:
    return None if one.at == one.due else one.at


def _jitter(schedule: Schedule, due: datetime) -> float:
    """Seconds after the due time: the same in every process, and spread over the schedules."""
    if not schedule.jitter_seconds:
        return 0.0
    share = zlib.crc32(f"{schedule.pk}/{due.isoformat()}".encode()) / 2**32
    return share * schedule.jitter_seconds


PARTING_SECONDS = 1.0
"""How long a batch in which a schedule fails is parted. What is left then is still due."""

Work = Callable[[Sequence[Schedule]], None]


def work_on(take: Callable[[], list[int]], work: Work, left: list[Exception]) -> int:
    """Lock a batch and process it in one transaction; return its size. Adds to ``left`` why some of
    it was left as it is."""
    with transaction.atomic(using=conf().database):
        taken = take()
        if taken:
            execute(WAIT_A_MOMENT, {})
            _do(taken, work, left, time.monotonic() + PARTING_SECONDS)
    return len(taken)


def _do(ids: Sequence[int], work: Work, left: list[Exception], until: float) -> None:
    """Process a batch. If it cannot be read or written as a whole, process its halves, so that a
    schedule that fails alone does not stop the others. It is marked with an error, or ``left`` if
    the cause is another one than its values, such as a lock of another session or a trigger."""
    try:
        with transaction.atomic(using=conf().database):
            work(due_schedules.read(ids))
    except Exception as refusal:
        blocker = None if isinstance(refusal, DataError | IntegrityError) else refusal
        if not isinstance(blocker, Error | RowsDropped):
            blocker = None
        elif _is_of_all(blocker):
            raise
        if blocker is not None and (len(ids) == 1 or time.monotonic() > until):
            left.append(blocker)
        elif len(ids) == 1:
            mark_error(ids[0], ErrorReport.of(refusal).summary)
        else:
            middle = len(ids) // 2
            halves = [ids[:middle], ids[middle:]]
            random.shuffle(halves)  # the time may be too short for both
            for half in halves:
                _do(half, work, left, until)


def _is_of_all(error: Exception) -> bool:
    """Whether an error of the database concerns the session, and not a schedule."""
    unusable = isinstance(error, InterfaceError | OperationalError)
    return unusable and not is_blocked(error)


def mark_error(schedule: int, reason: str) -> None:
    name = due_schedules.mark_error(schedule, reason)
    emit_after_commit("schedule_error", logging.ERROR, schedule=name, reason=reason)
