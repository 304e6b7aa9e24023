"""blocked -> ready, if each gate of a job has room.

What is taken is counted from the jobs that are ready or running. One admission runs at a time in
the whole fleet, so no two count the same slot. Besides it only a settle makes such jobs ready: it
hands the slots of ended jobs over to others of their lines, which changes no count.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction

from ...domain.admission import MOST_AT_ONCE, FairShares, Line, Share, share_out
from ...logs import log_event
from ...models.database import fetch, fetch_planned, jobs_connection, repeat_conflicts
from .. import known_types
from ..job_columns import ADMITTED, IN_LINE, as_array
from ..pausing import SERVED
from ..resource_outcomes import Change
from . import breakers
from .conflicts import resolve
from .retry_budgets import RetryBudgets
from .supply import TOKENS, Bucket, Limits, TenantLimits, locked_rows, spend, supply_of

LINES_AT_ONCE = 400
"""Lines that one admission looks at. The next one continues behind them."""

STOPPED = "2s"
"""The server ends the session of a process that stops for longer within an admission, because no
other process admits meanwhile. Not in a transaction of the caller, such as that of a test."""

PATIENCE = "200ms"
"""How long it waits for a lock. No other process admits meanwhile, and its own claims nothing."""

LOCKED_SECONDS = 1.0
"""Seconds until the next look at lines of resources whose rows others have locked."""

ROUNDS = 20
"""How often to share out what lines left that had fewer jobs than they got, or whose jobs are
quarantined."""

TAKE_TURN = "pg_try_advisory_xact_lock(hashtext('django_jobs'), hashtext('admission'))"
"""True if no other transaction is admitting. Then none does until this one ends."""

# Before the look at the lines, because a statement does not see what was committed after it began:
# the next one sees what the admission before it wrote. Its commit waits for no disk: the claim that
# follows does, and what a crash of the server takes back is admitted again.
TURN = f"""
SELECT set_config('django_jobs.turn', ({TAKE_TURN})::text, true),
    set_config('synchronous_commit', 'off', true)
"""

# Steps from one line to the next in the index, so that a line of a million jobs costs one step. A
# line is open if its jobs could be claimed: a job that is ready in a queue that is paused, or that
# no worker serves, would hold slots that others could use.
LINES = f"""
WITH RECURSIVE turn AS MATERIALIZED (
    SELECT current_setting('django_jobs.turn') = 'true' AS ours,
        set_config('idle_in_transaction_session_timeout', CASE WHEN %(alone)s THEN '{STOPPED}'
            ELSE current_setting('idle_in_transaction_session_timeout') END, true),
        set_config('lock_timeout', CASE WHEN %(alone)s THEN '{PATIENCE}'
            ELSE current_setting('lock_timeout') END, true)
), line AS (
    (SELECT job.gates, job.rank, job.queue, job.tenant, job.job_type, job.payload_version
     FROM turn, django_jobs_job_live AS job
     WHERE turn.ours AND job.status = 'blocked' AND job.gates IS NOT NULL
       AND job.gates > %(after)s
     ORDER BY job.gates, job.rank, job.id LIMIT 1)
    UNION ALL
    SELECT next.*
    FROM line CROSS JOIN LATERAL (
        SELECT job.gates, job.rank, job.queue, job.tenant, job.job_type, job.payload_version
        FROM django_jobs_job_live AS job
        WHERE job.status = 'blocked' AND job.gates IS NOT NULL AND job.gates > line.gates
        ORDER BY job.gates, job.rank, job.id LIMIT 1
    ) AS next
), served AS MATERIALIZED ({SERVED})
SELECT turn.ours, line.gates, line.rank, line.queue, line.tenant,
    (SELECT ARRAY[weight, CASE WHEN paused_at IS NULL THEN max_concurrency ELSE 0 END,
         {TOKENS}, coalesce(burst, ceil(rate)),
         rate / rate_seconds, (refilled_at > statement_timestamp())::int]
     FROM django_jobs_tenant WHERE name = line.tenant),
    queue.name IS NOT NULL AND queue.paused_at IS NULL
        AND (queue.name = ANY(%(own)s::text[]) OR queue.name IN (SELECT queue FROM served)),
    queue.max_concurrency, line.job_type, line.payload_version
FROM turn LEFT JOIN (SELECT * FROM line LIMIT %(lines)s) AS line ON true
    LEFT JOIN django_jobs_queue AS queue ON queue.name = line.queue
ORDER BY line.gates
"""

# The lengths of the arrays are hidden from the planner, so that its plan for all values is kept.
ADMIT = f"""
WITH picked AS MATERIALIZED (
    SELECT next.id
    FROM unnest((SELECT %(lines)s::text[]), (SELECT %(counts)s::integer[])) AS line (gates, count)
    CROSS JOIN LATERAL (
        SELECT job.id FROM django_jobs_job_live AS job
        WHERE {IN_LINE}
        ORDER BY job.gates, job.rank, job.id
        LIMIT line.count
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS next
)
UPDATE django_jobs_job_live AS job SET {ADMITTED}
WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING job.gates, job.queue
"""

# A line of quarantined jobs, of types that no worker knows or of retries beyond a budget starts
# none. Each would take a slot for a round that the lines behind it share. With EXISTS the planner
# joins the lines of a look with all blocked jobs: 130 ms of 100,000, and this takes 7.
STARTABLE = f"""
SELECT line.gates
FROM unnest(%(lines)s::text[], %(retries)s::boolean[]) AS line (gates, retries)
CROSS JOIN LATERAL (
    SELECT FROM django_jobs_job_live AS job
    WHERE {IN_LINE} AND (line.retries OR job.failures = 0)
    ORDER BY job.gates, job.rank, job.id LIMIT 1) AS first
"""


@dataclass(slots=True)
class Admission:
    """The result of one admission.

    ``queues`` have jobs that it made ready. ``last`` is the line to continue behind; empty at the
    end. ``metered``: lines wait that are admitted only as workers can start their jobs, and
    ``metered_jobs`` of them were. ``closed``: none was, although there was room. ``full``: none
    was, and what is ready takes all room of some queue, or all tokens. ``tokens_in`` is the seconds
    until a rate has a token for one of the lines; None if none waits for that. ``ours`` is False if
    another process was admitting. ``changes`` are the breakers that it changed. ``locked``: it
    passed over resources whose rows other sessions have locked.
    """

    ours: bool = True
    queues: set[str] = field(default_factory=set)
    last: str = ""
    metered: bool = False
    metered_jobs: int = 0
    closed: bool = False
    full: bool = False
    tokens_in: float | None = None
    changes: list[Change] = field(default_factory=list)
    locked: bool = False


def admit(
    room: Mapping[str, int],
    shares: FairShares,
    *,
    after: str = "",
    lines: int = LINES_AT_ONCE,
    wary: bool = False,
) -> Admission:
    """Make blocked jobs ready whose gates have room, in up to ``lines`` lines behind ``after``.

    ``room`` has, for each queue of this worker, how many jobs it can start now. Tenants, and
    resources with a rate, a breaker or a retry budget, admit no more than that. Without any room,
    nothing is made ready: conflicts are resolved, and breakers changed. If ``wary``, it passes
    over the resources whose rows other sessions have locked. Otherwise it would wait for them.
    """
    admission, looked_at = _admit(room, shares, after, lines, wary)
    for change in admission.changes:
        change.send()
    resolve(looked_at, are_all=after == admission.last == "")
    return admission


@repeat_conflicts
def _admit(
    room: Mapping[str, int], shares: FairShares, after: str, most: int, wary: bool
) -> tuple[Admission, list[Line]]:
    connection, charged = jobs_connection(), shares.copy()  # what is rolled back charges nobody
    alone = not connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        parameters = {"after": after, "lines": most, "alone": alone, "own": list(room)}
        rows = fetch_planned(LINES, parameters, before=TURN)
        if not rows[0][0]:
            return Admission(ours=False), []
        rows = [row[1:] for row in rows if row[1] is not None]
        locked, tenants = locked_rows() if wary else (frozenset[str](), frozenset[str]())
        last = rows[-1][0] if len(rows) == most else ""
        admission = Admission(last=last, locked=bool(locked or tenants))
        lines, opened, limits = _read(rows, locked, tenants)
        if opened and room:
            is_whole = after == admission.last == ""
            _share_out_to(opened, limits, room, charged, admission, is_whole=is_whole)
        else:  # it was called because a job ended, perhaps the last one that tried
            admission.changes = breakers.change_all(locked)
    shares.take_over(charged)
    return admission, lines


def _read(
    rows: Iterable[Any], locked: Set[str], locked_tenants: Set[str]
) -> tuple[list[Line], list[Line], Limits]:
    """The lines, those of them whose queue is open, the limits of their tenants and queues, and the
    types of their best jobs."""
    lines, opened = [], []
    heads: dict[str, int] = {}
    tenants: dict[str, TenantLimits] = {}
    queues: dict[str, int] = {}
    for text, rank, queue, tenant, tenant_limits, is_open, queue_limit, *head in rows:
        if (line := _readable(text, rank, queue)) is None:
            continue
        lines.append(line)
        if is_open:
            opened.append(line)
        if tenant_limits is not None:
            tenants[tenant] = TenantLimits(*tenant_limits)
        if queue_limit is not None:
            queues[queue] = queue_limit
        job_type, version = head
        heads[job_type] = max(version, heads.get(job_type, 0))
    return lines, opened, Limits(tenants, queues, heads, locked, locked_tenants)


def _readable(text: str, rank: float, queue: str) -> Line | None:
    """The line; None if its jobs were not written by this package. They stay blocked."""
    try:
        return Line(text, rank, queue)
    except ValueError:
        log_event("gates_unreadable", logging.WARNING, {"queue": queue, "gates": text})
        return None


def _share_out_to(
    lines: list[Line],
    limits: Limits,
    room: Mapping[str, int],
    shares: FairShares,
    admission: Admission,
    *,
    is_whole: bool,
) -> None:
    supply, state = supply_of(lines, limits, room)
    admission.changes = state.changes
    weights = {name: row.weight for name, row in limits.tenants.items()}
    metered = {line.queue for line in lines if supply.is_metered(line.gates) and line.queue in room}
    admission.metered = bool(metered)
    before = supply.copy()
    free = {queue for queue in metered if supply.room[queue] >= 1}
    eager = lines
    known = known_types.parameters(known_types.enough_for(limits.heads))
    sifted = False
    for _ in range(ROUNDS):
        grants = share_out(eager, supply, shares, weights)
        if not grants:
            break
        admitted: dict[str, int] = {}
        for text, queue in _admit_granted(grants, eager, state.budgets, known):
            admitted[text] = admitted.get(text, 0) + 1
            admission.queues.add(queue)
        for line in eager:
            if count := admitted.get(line.text):
                supply.take(line, count)
                if supply.is_metered(line.gates):
                    queue, tenant = share_of(line)
                    admission.metered_jobs += count
                    shares.charge(queue, tenant, weights.get(tenant, 1.0), count)
        if admitted == grants and supply.most == MOST_AT_ONCE:
            break
        supply.most = _most_of_next(supply.most, grants, admitted)
        eager = [line for line in eager if admitted.get(line.text, 0) == grants.get(line.text, 0)]
        if not sifted and not admitted.keys() >= grants.keys():
            eager, sifted = _startable(eager, state.budgets, known), True
    shares.advance()
    if not is_whole:
        asked = {share_of(line) for line in lines if supply.is_metered(line.gates)}
        waiting = {share_of(line) for line in eager if supply.left(line) > 0}
        shares.looked_at(asked, waiting)
    if not admission.last:
        shares.looked_at_all()
    admission.closed = bool(free) and free == metered and not admission.queues
    admission.full = free != metered and not admission.queues
    used = {name for line in lines for name in line.gates.resources}
    buckets = {name: bucket for name, bucket in state.buckets.items() if name in used}
    spent = _spent(buckets, before.resources, supply.resources, admission)
    of_tenants = _spent(state.tenants, before.tenants, supply.tenants, admission)
    if used & limits.locked or limits.tenants.keys() & limits.locked_tenants:
        admission.tokens_in = min(LOCKED_SECONDS, admission.tokens_in or LOCKED_SECONDS)
    state.budgets.save()
    spend(spent, of_tenants)


def _spent(
    buckets: Mapping[str, Bucket],
    before: Mapping[str, float],
    left: Mapping[str, float],
    admission: Admission,
) -> dict[str, float]:
    """The tokens to take from these buckets. The admission notes when the next one comes."""
    spent: dict[str, float] = {}
    for name, bucket in buckets.items():
        starts = before[name] - left[name]
        tokens = bucket.tokens - starts
        if starts or bucket.excess or bucket.is_back:
            spent[name] = starts + bucket.excess
        if bucket.is_held:
            admission.full = admission.full or not admission.queues
        elif tokens < 1:
            wait = (1 - tokens) / bucket.pace
            admission.tokens_in = min(wait, admission.tokens_in or wait)
    return spent


def _most_of_next(most: int, grants: Mapping[str, int], admitted: Mapping[str, int]) -> int:
    """How many jobs the next round grants to one line: about twice what the lines of this one had,
    so that a few lines that are nearly empty do not keep out all others."""
    if admitted == grants:
        return min(2 * most, MOST_AT_ONCE)
    return min(max(2 * sum(admitted.values()) // len(grants), 1), MOST_AT_ONCE)


def share_of(line: Line) -> Share:
    """The queue and the tenant of a line. Lines without a tenant count as one."""
    return line.queue, line.gates.tenant or ""


def _startable(lines: list[Line], budgets: RetryBudgets, known: Mapping[str, str]) -> list[Line]:
    """Those of the lines with a job that may start, if its gates have room."""
    retries = [budgets.allows(line) for line in lines]
    asked = {"lines": [line.text for line in lines], "retries": retries, **known}
    texts = {text for (text,) in fetch(STARTABLE, asked)}
    return [line for line in lines if line.text in texts]


def _admit_granted(
    grants: Mapping[str, int], lines: list[Line], budgets: RetryBudgets, known: Mapping[str, str]
) -> list[tuple[Any, ...]]:
    """Make jobs of ``known`` types ready, as many of each line as granted; the gates and the queue
    of each."""
    within = {line.text: line for line in lines if budgets.limits(line)}
    plain = {text: count for text, count in grants.items() if text not in within}
    budgeted = {text: count for text, count in grants.items() if text in within}
    rows: list[tuple[Any, ...]] = []
    if plain:
        given = {"lines": list(plain), "counts": as_array(plain.values()), **known}
        rows += fetch_planned(ADMIT, given)
    if budgeted:
        rows += budgets.admit(within, budgeted, known)
    return rows
