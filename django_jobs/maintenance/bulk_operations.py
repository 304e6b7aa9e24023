"""Carries out operations on all jobs that match, chunk by chunk.

A chunk is one transaction: it locks the operation's row, changes jobs, and writes the counts and
where the next chunk continues. So a worker that dies leaves nothing half done, two workers do not
take the same chunk, and a deploy in between changes nothing.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    router,
    transaction,
)

from ..conf import conf
from ..domain.bulk import Reasons
from ..domain.errors import ErrorReport
from ..domain.replay_plan import MOST_AWAITED, Outcome, ReplayPlan, remembered
from ..domain.states import BulkState
from ..lifecycle.operations import OperationResult, bulk
from ..lifecycle.operations.jobs import Actor
from ..models import BulkAction, BulkOperation, Job
from ..models.database import database_time, is_blocked
from ..signals import emit
from .bulk_actions import EXECUTE


def send_events(operation: BulkOperation, has_begun: bool) -> None:
    """Send the event of the begin, and that of the end if it has ended, after the commit."""
    asked = {"operation": operation.pk, "action": operation.action, "by": operation.actor_name}
    if has_begun:
        how_many = {"matched": operation.matched, "reason": operation.reason}
        emit("operation_started", logging.INFO, **asked, **how_many)
    if operation.is_unfinished:
        return
    counts = {"done": operation.done, "left": operation.left}
    if operation.action == BulkAction.REPLAY:
        counts |= {"succeeded": operation.succeeded, "failed": operation.failed}
    fields = {**asked, **counts, "seconds": _seconds(operation), "reason": operation.why}
    match operation.status:
        case BulkState.COMPLETED:
            emit("operation_completed", logging.INFO, **fields)
        case BulkState.STOPPED:
            emit("operation_stopped", logging.WARNING, **fields)
        case _:
            emit("operation_failed", logging.ERROR, **fields)


def _seconds(operation: BulkOperation) -> float | None:
    worked = operation.worked(operation.finished_at) if operation.finished_at else None
    return None if worked is None else worked.total_seconds()


def log_end(operation: BulkOperation) -> None:
    """In the history of the admin, if the role of the workers may write there."""
    if not (operation.actor_id and apps.is_installed("django.contrib.admin")):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    message = f"{operation.status}: {operation.done:,} done, {operation.left:,} left"
    if operation.why:
        message += f" ({operation.why})"
    with suppress(DatabaseError), transaction.atomic(using=router.db_for_write(LogEntry)):
        if not get_user_model()._default_manager.filter(pk=operation.actor_id).exists():
            return  # the constraint would fail the chunk
        LogEntry.objects.create(
            user_id=operation.actor_id,
            content_type=ContentType.objects.get_for_model(BulkOperation),
            object_id=str(operation.pk),
            object_repr=str(operation),
            action_flag=CHANGE,
            change_message=message,
        )


EVERY_SECONDS = 1.0
CHUNK, REPLAYED = 1_000, 100
"""Jobs of a chunk, and of one of replays, each of which takes several statements."""
REST = 9.0
"""How many times as long as a chunk took the operation then rests, if no rate paces it."""
LOCKED = "another session has locked it"
NO_MATCH = "it matches no longer"
MOST_TRIES = 5
"""How often to come back, at the end, to jobs that another session has locked."""
TRY_SECONDS = 1.0
POSTPONED_SECONDS = 5.0
MOST_AGAIN = 1_000
OUTCOME_SECONDS = 3_600.0
"""How long an operation whose jobs were all replayed waits for their outcomes."""
MOST_NAMED = 100
"""Jobs that failed again which an operation names: the last ones."""


def run_chunk() -> int:
    """Carry out the chunk that has been due for longest; return 1, 2 if the rate of its plan asks
    for another at once, or 0 if none was due."""
    operation: BulkOperation | None = None
    began = time.monotonic()
    try:
        with transaction.atomic(using=conf().database):
            operation = bulk.take()
            if operation is None:
                return 0
            chunk = Chunk(operation)
            chunk.execute()
            if not chunk.is_paced:
                operation.next_at += timedelta(seconds=REST * (time.monotonic() - began))
            bulk.store(operation)
    except (InterfaceError, OperationalError):
        if operation is not None:  # so that the others have their turn
            bulk.postpone(operation.pk, POSTPONED_SECONDS)
        raise
    except Exception as error:
        if operation is None:
            raise
        _fail(operation.pk, ErrorReport.of(error).summary)
        return 1
    send_events(operation, chunk.has_begun)
    return 2 if chunk.has_more else 1


class Chunk:
    def __init__(self, operation: BulkOperation) -> None:
        self.operation = operation
        self.progress: dict[str, Any] = operation.progress
        self.now = database_time()
        self.actor: Actor = None
        self.has_begun = self.is_paced = self.has_more = False

    def execute(self) -> None:
        operation = self.operation
        operation.next_at = self.now
        if operation.stop_requested_by:
            return self.end(BulkState.STOPPED, f"stopped by {operation.stop_requested_by}")
        try:
            self.actor = _actor_of(operation)
            bulk.demand_same(self.actor, operation)
        except PermissionDenied as error:
            return self.end(BulkState.FAILED, str(error))
        if operation.status == BulkState.PENDING:
            self.begin()
        if operation.plan is not None:
            self.replay_by_plan(ReplayPlan.from_json(operation.plan))
        elif operation.action == BulkAction.REPLAY:
            self.replay()
        elif not self.walk(CHUNK):
            self.end(BulkState.COMPLETED)
        return None

    def begin(self) -> None:
        """Count what matches, for the progress."""
        operation = self.operation
        self.has_begun = True
        operation.status = BulkState.RUNNING
        operation.started_at = operation.started_at or self.now
        if operation.matched is None:
            counted = bulk.count(operation.action, operation.terms, operation.max_id)
            operation.matched, self.progress["counted"] = counted.jobs, counted.is_exact

    def end(self, state: BulkState, why: str = "") -> None:
        self.operation.status, self.operation.why = state, why[:300]
        self.operation.finished_at = self.now
        log_end(self.operation)

    def replay(self) -> None:
        """Replay the next jobs, and look how the others ended."""
        self.judge()
        if not self.progress.get("all_sent"):
            self.progress["all_sent"] = not self.walk(REPLAYED)
            self.progress["sent_at"] = self.now.timestamp()
        if self.progress["all_sent"]:
            self.await_last()

    def replay_by_plan(self, plan: ReplayPlan) -> None:
        """Replay as many jobs as the outcomes of the others allow."""
        awaited = self.judge()
        sent = self.progress.get("sent", 0)
        complete = sent > plan.first + plan.then or not awaited
        if complete and (why := plan.problem(self.progress.get("outcomes", ""))):
            return self.end(BulkState.STOPPED, why)
        if self.progress.get("all_sent"):
            return self.await_last()
        last = self.progress.get("sent_at", 0.0)
        elapsed = self.now.timestamp() - last
        room = plan.may_send(sent, len(awaited), elapsed)
        if room:
            self.progress["all_sent"] = not self.walk(min(room, REPLAYED))
            now, new = self.now.timestamp(), self.progress.get("sent", 0) - sent
            self.progress["sent_at"] = now
            if plan.phase(sent) == "rest":
                self.progress.setdefault("rest_since", now)
                self.progress["sent_at"] = plan.paced(last, now, new)
                self.is_paced, self.has_more = new > 0, new == REPLAYED < room
        return None

    def judge(self) -> list[list[int]]:
        """Look at the runs of the replayed jobs; return those that have none yet."""
        awaited: list[list[int]] = self.progress.get("awaited", [])
        if awaited:
            known, awaited = bulk.outcomes(awaited, self.operation.started_at or self.now)
            failed = [job for job, outcome in known.items() if outcome is Outcome.FAILED]
            counts = Counter(known.values())
            self.operation.succeeded += counts[Outcome.SUCCEEDED]
            self.operation.failed += counts[Outcome.FAILED]
            self.operation.cancelled += counts[Outcome.CANCELLED]
            self.progress["failed"] = (self.progress.get("failed", []) + failed)[-MOST_NAMED:]
            outcomes = self.progress.get("outcomes", "")
            self.progress["outcomes"] = remembered(outcomes, known.values())
            self.progress["awaited"] = awaited
        return awaited

    def await_last(self) -> None:
        """All jobs were replayed: end when the outcomes are known of those that are awaited."""
        elapsed = self.now.timestamp() - self.progress.get("sent_at", 0.0)
        if self.progress.get("awaited") and elapsed <= OUTCOME_SECONDS:
            return
        unknown = self.operation.outcomes_unknown
        why = f"how {unknown} of the replayed jobs went is not known" if unknown else ""
        self.end(BulkState.COMPLETED, why)

    def walk(self, most: int) -> bool:
        """Change up to ``most`` matching jobs of a page. Returns whether there may be more."""
        operation = self.operation
        found = bulk.find(operation.action, operation.terms, operation.cursor, operation.max_id)
        ids, rest = found.ids[:most], found.ids[most:]
        operation.cursor = ids[-1] if rest else found.last
        self.change(ids)
        if rest or not found.is_last:
            return True
        return self.come_back(most - len(ids))

    def come_back(self, most: int) -> bool:
        """Try up to ``most`` of the jobs again that were locked, each once a round. Returns whether
        there may be some left."""
        again: list[int] = self.progress.pop("again", [])
        tries = self.progress.get("tries", 0)
        if not again:
            return False
        if tries >= MOST_TRIES:
            self.leave(dict.fromkeys(again, LOCKED))
            return False
        left = self.progress.get("round") or len(again)
        batch = again[: min(most, left)]
        self.progress["again"] = again[len(batch) :]
        self.change(batch)
        self.progress["round"] = left - len(batch)
        if left == len(batch):
            self.progress["tries"] = tries + 1
            self.operation.next_at = self.now + timedelta(seconds=TRY_SECONDS)
        return True

    def change(self, ids: list[int]) -> None:
        """Do it to these jobs, and count what was done and left. What another session has locked
        is put off, and not what has ended meanwhile."""
        locked = bulk.lock(ids) if ids else []
        self.put_off(self.matching(sorted(set(ids) - set(locked))))
        locked = self.matching(locked)
        if not locked:
            return
        jobs = Job.objects.using(conf().database).filter(pk__in=locked)
        attempts = dict(jobs.values_list("pk", "attempt"))
        result = self.apply(locked)
        self.operation.done += len(result.done)
        self.leave(result.refused)
        if self.operation.action == BulkAction.REPLAY:
            self.progress["sent"] = self.progress.get("sent", 0) + len(result.done)
            new = [[id_, attempts[id_]] for id_ in result.done]
            awaited = self.progress.get("awaited", []) + new
            most = MOST_AWAITED if self.operation.plan is None else None  # a plan waits for all
            self.progress["awaited"] = awaited[:most]

    def put_off(self, ids: list[int]) -> None:
        """Come back to these at the end."""
        if ids:
            again = self.progress.get("again", []) + ids
            self.progress["again"] = again[:MOST_AGAIN]
            self.leave(dict.fromkeys(again[MOST_AGAIN:], LOCKED))

    def matching(self, ids: list[int]) -> list[int]:
        """Those that still match: for good, if they are locked."""
        if not ids:
            return []
        operation = self.operation
        terms = {**operation.terms, "ids": ids}
        found = bulk.find(operation.action, terms, 0, operation.max_id, len(ids))
        self.leave(dict.fromkeys(sorted(set(ids).difference(found.ids)), NO_MATCH))
        return found.ids

    def apply(self, ids: list[int]) -> OperationResult:
        """Do it to these jobs. If PostgreSQL refuses a value, the one that has it is left. Steps
        whose run another session has locked are put off."""
        try:
            with transaction.atomic(using=conf().database):
                bulk.wait_a_second()
                return EXECUTE[self.operation.action](ids, self.operation, self.actor)
        except (DataError, IntegrityError) as error:
            if len(ids) == 1:
                why = f"PostgreSQL refuses it: {ErrorReport.of(error).summary}"
                return OperationResult(refused={ids[0]: why})
        except OperationalError as error:
            steps = bulk.of_locked_runs(ids) if is_blocked(error) else []
            if not steps:
                raise
            self.put_off(steps)
            others = sorted(set(ids).difference(steps))
            return self.apply(others) if others else OperationResult()
        middle = len(ids) // 2
        one, other = self.apply(ids[:middle]), self.apply(ids[middle:])
        return OperationResult(done=one.done + other.done, refused={**one.refused, **other.refused})

    def leave(self, refused: Mapping[int, str]) -> None:
        """Count jobs that were left, by the reason."""
        Reasons(self.operation.reasons).add(refused)
        self.operation.left += len(refused)


def _actor_of(operation: BulkOperation) -> Actor:
    """The user who asked for it, as of now; None for a command."""
    if not operation.actor_id:
        return None
    user = None
    with suppress(ValueError, ValidationError):
        user = get_user_model()._default_manager.filter(pk=operation.actor_id).first()
    if user is None or not user.is_active:
        raise PermissionDenied(f"{operation.actor_name} has no active account")
    return user


def _fail(pk: int, why: str) -> None:
    with transaction.atomic(using=conf().database):
        operation = bulk.take(pk)
        if operation is not None:
            Chunk(operation).end(BulkState.FAILED, why)
            bulk.store(operation)
    if operation is not None:
        send_events(operation, has_begun=False)
