"""Insert new jobs, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.base import ModelState
from django.db.models.signals import post_init

from ..conf import conf
from ..domain.gates import Gates
from ..exceptions import QueueFull
from ..models import Job
from ..models.database import fetch, jobs_connection
from ..models.fields import read_floats
from .bulk_insert import (
    IDS,
    Item,
    Meanwhile,
    ReadAhead,
    copy_in,
    insert,
    not_written,
    nothing,
    rows_dropped,
)
from .job_columns import (
    COMMON,
    DUE,
    GATE_COLUMNS,
    NOW,
    NewJobs,
    gate_values,
    text_array,
    timing,
)
from .notifying import blocked_hint, notify_after_commit

LIVE = "status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')"
IF_HELD = f"""ON CONFLICT (queue, idempotency_key)
    WHERE idempotency_key IS NOT NULL
      AND {LIVE}"""
UNLESS_HELD = f"""{IF_HELD}
    DO NOTHING"""

# As epoch seconds a time is read in half a microsecond, by Django's loader in ten.
TIMES = {
    name: f"date_part('epoch', {name})" for name in ("available_at", "expires_at", "created_at")
}
RETURNED = {"id": "id", "status": "status", "rank": "rank", **TIMES}
"""The columns of a new job that the database computes, each with its expression."""
RETURNING = f"RETURNING {', '.join(RETURNED.values())}"

ONE = {**COMMON, **timing(NOW, DUE), "payload": "%(payload)s", "idempotency_key": "%(key)s"}
ENQUEUE = f"""
{insert(ONE)}
{UNLESS_HELD}
{RETURNING}
"""

# For a job that may start at once and has neither a key nor a maximum age, like nearly every job.
# Leaving out those parts saves 250 of the 480 microseconds that PostgreSQL takes to plan the
# statement above. It returns only what the others follow from, and what jobs have in common is part
# of its text: about 15 microseconds less of the client's processor time.
PLAIN = {
    **COMMON,
    **timing(NOW, NOW),
    "status": "'ready'",
    "expires_at": "NULL",
    "payload": "%(payload)s",
}
ENQUEUE_PLAIN = f"""
{insert(PLAIN)}
RETURNING id, {TIMES["created_at"]}
"""

# For a job with gates. It is never ready at once: only an admission counts what is taken.
GATED = {**ONE, **timing(NOW, DUE, "'blocked'"), **{name: f"%({name})s" for name in GATE_COLUMNS}}
ENQUEUE_GATED = f"""
{insert(GATED)}
{UNLESS_HELD}
{RETURNING}
"""

# In a constant array the planner would look at each key: 1.4 ms for 5,000, and 0.2 so.
HELD = f"""
SELECT EXISTS (
    SELECT 1 FROM django_jobs_job_live
    WHERE queue = %(queue)s
      AND idempotency_key = ANY(ARRAY(SELECT unnest(%(keys)s::text[])))
      AND {LIVE})
"""

# For jobs with idempotency keys, of which some are held: COPY has no ON CONFLICT. Rows are
# inserted in the order of their keys, so that two requests for the same keys do not wait for each
# other. Ids follow the order of the request, in which the jobs start.
KEYED = {
    "id": "item.id",
    **COMMON,
    **timing("due.now", "due.at"),
    "payload": "item.payload::jsonb",
    "idempotency_key": "item.key",
}


def items_of(arrays: Mapping[str, str]) -> str:
    """The begin of a statement about many items: their times, and a row with an id for each.
    ``arrays`` has the parameter for each value of an item."""
    return f"""
WITH due AS MATERIALIZED (
    SELECT {NOW} AS now, {DUE} AS at
), {IDS}, item AS MATERIALIZED (
    SELECT nextval(ids.sequence) AS id, {", ".join(f"input.{name}" for name in arrays)}
    FROM ids, unnest({", ".join(f"%({array})s::text[]" for array in arrays.values())})
        WITH ORDINALITY AS input ({", ".join(arrays)}, place)
    ORDER BY input.place
)"""


def _keyed(columns: Mapping[str, str], arrays: Mapping[str, str]) -> str:
    return f"""{items_of(arrays)}
{insert(columns, "FROM due, item")}
ORDER BY item.key COLLATE "C", item.id
{UNLESS_HELD}
RETURNING id, idempotency_key
"""


ARRAYS = {"payload": "payloads", "key": "keys"}
ENQUEUE_KEYED = _keyed(KEYED, ARRAYS)

KEYED_GATED = {
    **KEYED,
    **timing("due.now", "due.at", "CASE WHEN item.gates IS NULL THEN 'ready' ELSE 'blocked' END"),
    **{name: f"item.{name}" for name in GATE_COLUMNS},
    "resources": "item.resources::jsonb",
}
ARRAYS_GATED = ARRAYS | {name: name for name in GATE_COLUMNS}
ENQUEUE_KEYED_GATED = _keyed(KEYED_GATED, ARRAYS_GATED)

WORTH_A_COPY = 100
"""Jobs with keys from which on the three round trips of COPY are faster than one INSERT."""

BATCH = 5_000
"""Rows per statement of a bulk enqueue. Beyond 2,000 the rate is flat, and memory grows."""

KEY_ATTEMPTS = 5
"""How often to try if the holder of a key ended between the insert and the lookup. Then it raises
:class:`EnqueueError`, and at once if a trigger dropped a row, as all that insert jobs do."""


class KeyRule(NamedTuple):
    """Who holds an idempotency key. ``insert`` writes a job for each item whose key is free, and
    returns its ``(id, key)``; ``holders`` returns ``(key, id)`` of the jobs that hold some of the
    keys. Jobs whose keys are free of live jobs may be written by COPY if the rule ``copies``."""

    insert: Callable[[NewJobs, Sequence[Item]], list[tuple[Any, ...]]]
    holders: Callable[[str, Sequence[str]], Iterable[tuple[str, int]]]
    copies: bool = False


def enqueue_one(
    new: NewJobs, payload: dict[str, Any], text: str, key: str | None, gates: Gates | None = None
) -> Job:
    """Insert one job, or return the live job that holds ``key``, marked as ``deduplicated``.
    ``text`` is the payload as JSON."""
    if gates is None and key is None and not new.is_delayed and new.max_age is None:
        return _enqueue_plain(new, payload, text)
    statement = ENQUEUE
    parameters = {**new.parameters, "payload": text, "key": key}
    if gates is not None:
        statement = ENQUEUE_GATED
        parameters.update(gate_values(gates))
    connection = jobs_connection()
    for _ in range(KEY_ATTEMPTS):
        with connection.cursor() as cursor:
            read_floats(cursor)
            cursor.execute(statement, parameters)
            row = cursor.fetchone()
        if row is not None:
            hint = new.queue if gates is None else blocked_hint(new.queue, gates.alone)
            notify_after_commit(hint, connection)
            return as_job(connection, new, payload, key, gates, row)
        if key is None:
            raise rows_dropped()
        holder = Job.objects.using(conf().database).holding_key(new.queue, key).first()
        if holder is not None:
            holder.deduplicated = True
            return holder
    raise not_written(f"the key {key!r} in queue {new.queue!r}")


def _enqueue_plain(new: NewJobs, payload: dict[str, Any], text: str) -> Job:
    connection = jobs_connection()
    with connection.cursor() as cursor:
        cursor.execute(new.filled(ENQUEUE_PLAIN), {"payload": text})
        row = cursor.fetchone()
    if row is None:
        raise rows_dropped()
    id_, now = row[0], float(row[1])  # a project may read numbers as Decimal
    notify_after_commit(new.queue, connection)
    row = id_, "ready", now - new.priority * new.weight, now, None, now
    return as_job(connection, new, payload, None, None, row)


def enqueue_many(new: NewJobs, items: ReadAhead[Any, Item], rule: KeyRule) -> list[int]:
    """Insert a job for each item, 5,000 per statement; return their ids in order.

    Where a job holds the key by ``rule``, its id takes the place of a new one. Raises
    :class:`QueueFull` if there is no room for all jobs of a statement; then, and after an
    :class:`EnqueueError`, none of the statement is written.
    """
    ids: list[int] = []
    while batch := items.take(BATCH):
        if _has_keys(batch) and not jobs_connection().get_autocommit():
            while more := items.take(BATCH):
                batch += more
            return ids + _enqueue_by_keys(new, batch, rule)
        items.read(BATCH)
        ids += _enqueue_within_limit(new, batch, rule, items.make)
        notify_after_commit(new.queue)  # for each batch: a later one may be refused
    return ids


def _enqueue_by_keys(new: NewJobs, items: Sequence[Item], rule: KeyRule) -> list[int]:
    """Insert the batches of one transaction in the order of their keys as well. Python sorts
    strings as the collation ``C`` does."""
    order = sorted(range(len(items)), key=lambda at: (items[at][1] is None, items[at][1] or ""))
    ids = [0] * len(items)
    for start in range(0, len(order), BATCH):
        places = sorted(order[start : start + BATCH])
        made = _enqueue_within_limit(new, [items[at] for at in places], rule)
        notify_after_commit(new.queue)
        for at, id_ in zip(places, made, strict=True):
            ids[at] = id_
    return ids


def _has_keys(batch: Sequence[Item]) -> bool:
    return any(key is not None for _, key, _ in batch)


def _enqueue_within_limit(
    new: NewJobs, batch: Sequence[Item], rule: KeyRule, meanwhile: Meanwhile = nothing
) -> list[int]:
    gates = [gates for _, _, gates in batch]
    write = partial(_enqueue_whole, new, batch, rule, meanwhile)
    if not new.has_limits(gates):
        return write()
    from .backlog import within_limits

    try:
        ids, _ = within_limits(new, gates, write)
    except QueueFull:
        # A job whose key another one holds, also of this batch, needs no room.
        keyed = {key: gates for _, key, gates in batch if key is not None}
        held = {key for key, _ in rule.holders(new.queue, list(keyed))}
        needing = [gates for _, key, gates in batch if key is None]
        needing += [gates for key, gates in keyed.items() if key not in held]
        if len(needing) == len(batch):
            raise
        ids = within_limits(new, needing, write)[0] if needing else write()
    return ids


def _enqueue_whole(
    new: NewJobs, batch: Sequence[Item], rule: KeyRule, meanwhile: Meanwhile
) -> list[int]:
    """Write all of a batch or nothing, also if a trigger dropped some of it."""
    has_files = conf().storage is not None
    is_whole = new.is_watched or has_files
    with transaction.atomic(using=jobs_connection().alias) if is_whole else nullcontext():
        ids = _enqueue_batch(new, batch, rule, meanwhile)
        if has_files:
            from .stored_files import register_batch

            register_batch(batch, ids)
        return ids


def _enqueue_batch(
    new: NewJobs, batch: Sequence[Item], rule: KeyRule, meanwhile: Meanwhile
) -> list[int]:
    if not _has_keys(batch):
        return copy_in(new, batch, meanwhile=meanwhile)
    if rule.copies and len(batch) >= WORTH_A_COPY and (ids := _copy_if_free(new, batch, meanwhile)):
        return ids
    rows = rule.insert(new, batch)
    if len(rows) == len(batch):
        return sorted(row[0] for row in rows)
    unkeyed = sorted(row[0] for row in rows if row[1] is None)
    if dropped := sum(key is None for _, key, _ in batch) - len(unkeyed):
        raise rows_dropped(dropped)
    next_unkeyed = iter(unkeyed).__next__
    by_key: dict[str, int] = {row[1]: row[0] for row in rows if row[1] is not None}
    for _ in range(KEY_ATTEMPTS):
        missing = {item[1]: item for item in batch if item[1] is not None and item[1] not in by_key}
        if not missing:
            return [next_unkeyed() if key is None else by_key[key] for _, key, _ in batch]
        by_key.update(rule.holders(new.queue, list(missing)))
        gone = [item for key, item in missing.items() if key not in by_key]
        for row in rule.insert(new, gone) if gone else ():
            by_key[row[1]] = row[0]
    raise not_written(f"idempotency keys in queue {new.queue!r}")


def _copy_if_free(new: NewJobs, batch: Sequence[Item], meanwhile: Meanwhile) -> list[int] | None:
    """The ids of the new jobs; None if a key occurs twice or a live job holds one."""
    given = [key for _, key, _ in batch if key is not None]
    if len(set(given)) < len(given):
        return None
    if fetch(HELD, {"queue": new.queue, "keys": text_array(given)}) != [(False,)]:
        return None
    try:
        with transaction.atomic(using=jobs_connection().alias):
            return copy_in(new, batch, meanwhile=meanwhile)
    except IntegrityError:  # since that look, another session has enqueued one
        return None


def _insert(new: NewJobs, batch: Sequence[Item]) -> list[tuple[Any, ...]]:
    gated = any(gates is not None for _, _, gates in batch)
    statement = ENQUEUE_KEYED_GATED if gated else ENQUEUE_KEYED
    return fetch(statement, array_parameters(new, batch, gated=gated))


def array_parameters(new: NewJobs, batch: Sequence[Item], *, gated: bool) -> dict[str, Any]:
    """The parameters of a statement with :func:`items_of`: the gates only if it is ``gated``."""
    payloads, keys, gates = zip(*batch, strict=True)
    arrays = {"payloads": text_array(payloads), "keys": text_array(keys)}
    if gated:
        rows = [gate_values(one) for one in gates]
        arrays |= {name: text_array([row[name] for row in rows]) for name in GATE_COLUMNS}
    return {**new.parameters, **arrays}


def _live_holders(queue: str, keys: Sequence[str]) -> Iterable[tuple[str, int]]:
    holders = Job.objects.using(conf().database).live()
    found = holders.filter(queue=queue, idempotency_key__in=keys)
    return ((key, id_) for key, id_ in found.values_list("idempotency_key", "id") if key)


LIVE_KEYS = KeyRule(_insert, _live_holders, copies=True)


def as_job(
    connection: BaseDatabaseWrapper,
    new: NewJobs,
    payload: dict[str, Any],
    key: str | None,
    gates: Gates | None,
    row: tuple[Any, ...],
) -> Job:
    # As Django unpickles a model: its constructor took half of what we add to the statement.
    job = Job.__new__(Job)
    job._state = ModelState()
    job._state.adding, job._state.db = False, connection.alias
    values = vars(job)
    values.update(new.initial)
    values.update(new.decoded())
    values.update(zip(RETURNED, row, strict=True))
    for name in TIMES:
        if values[name] is not None:
            values[name] = datetime.fromtimestamp(values[name], UTC)
    values["payload"], values["idempotency_key"] = payload, key
    if gates is not None:
        values.update(gate_values(gates), resources=list(gates.resources) or None)
    post_init.send(Job, instance=job)
    return job
