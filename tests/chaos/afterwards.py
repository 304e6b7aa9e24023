"""After the storm: all ends, the fleet rests, and what has a promise is tried once in peace."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

from . import alerts, edits, plan, resources
from .accounts import Problem
from .ground import Ground
from .history import Exit, Fault
from .timing import HOLD, LEASE, SWEEP

LONGEST_JOB = HOLD + 1.5
IN_TIME = LEASE + SWEEP + LONGEST_JOB + 10.0
"""Seconds in which all must have ended, from when nothing waits to be claimed any more and no
operation goes on: how long a backlog takes, or a replay plan with waves of a second each, is the
machine's business. What a worker has lost or given back waits again."""

STOP_SCHEDULE = """
UPDATE django_jobs_schedule SET enabled = false
WHERE name = 'every second' AND next_due_at > clock_timestamp() RETURNING next_due_at
"""
STOP_EDITED = f"UPDATE django_jobs_schedule SET enabled = false WHERE name = '{edits.NAME}'"

LATE = """
SELECT job.id, job.job_type, job.queue, job.status, job.attempt, job.reason,
    round(extract(epoch FROM now() - job.claimed_at), 1) AS claimed_ago,
    worker.name, worker.status,
    (SELECT string_agg(run.outcome || ' ' || run.error_type, ', ' ORDER BY run.attempt)
     FROM django_jobs_run AS run WHERE run.job_id = job.id)
FROM django_jobs_job AS job LEFT JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status NOT IN ('succeeded', 'dead', 'cancelled')
ORDER BY job.id LIMIT 20
"""

LATE_OPERATIONS = """
SELECT id, action, status, plan, matched, done, "left", succeeded, failed, next_at - now()
FROM django_jobs_bulkoperation WHERE finished_at IS NULL
"""

LAST_JOB = "SELECT coalesce(max(id), 0) FROM django_jobs_job"

CAME_TO_NOTHING = """
SELECT run.job_id, job.job_type, run.outcome FROM django_jobs_run AS run
JOIN django_jobs_job AS job ON job.id = run.job_id
WHERE job.id > %s AND run.outcome <> 'succeeded'
  AND NOT (job.job_type = 'chaos.stumble' AND run.outcome = 'failed' AND run.attempt = 1)
  AND NOT (job.job_type = 'chaos.charges' AND run.outcome = 'snoozed')
"""

BUSY = """
SELECT DISTINCT worker.name FROM django_jobs_job AS job
JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status = 'running'
"""


def come_to_rest(ground: Ground) -> Iterator[Problem]:
    """All is asked for and all ends."""
    ground.all_asked()
    ground.end_operator()
    begun = time.monotonic()
    in_time, before = begun + IN_TIME, 0
    while True:
        now = time.monotonic()
        ground.keep_trees()
        live, ready, waiting, handled = ground.live()
        if not live:
            break
        if waiting == live:
            yield 2, f"{live} jobs wait for the end of others, and all others have ended"
            break
        if ready or handled != before:
            in_time, before = now + IN_TIME, handled
        if now > min(in_time, begun + ground.patience):
            late = [*ground.cluster.fetch(LATE), *ground.cluster.fetch(LATE_OPERATIONS)]
            yield 2, f"{live} jobs had not ended {now - begun:.0f} s after the storm: {late}"
            break
        time.sleep(0.1)
    ground.say(f"all had ended after {time.monotonic() - begun:.1f} s of peace")


def alerts_are_sent(ground: Ground) -> Iterator[Problem]:
    """All situations of the storm that are over are known to be, and nothing waits to be sent. If
    nobody looked while the breaker was open, it opens once more."""
    until = time.monotonic() + ground.patience
    while time.monotonic() < until:
        ((has_begun, is_over),) = ground.cluster.fetch(alerts.OVER)
        ((waiting,),) = ground.cluster.fetch(alerts.WAITING)
        if has_begun and is_over and not waiting:
            return
        ground.cluster.execute(alerts.TURN.format("closed" if has_begun else "open"))
        ground.keep_trees()
        time.sleep(0.1)
    found = ground.cluster.fetch(alerts.SITUATIONS)
    yield alerts.ACCOUNT, f"alerts that were not sent in time: {found}"


def stop_schedule(ground: Ground) -> object:
    """At a due time that is known: the one that would be next. None if it never caught up. The
    one that is edited stops at any."""
    ground.cluster.execute(STOP_EDITED)
    patience = time.monotonic() + ground.patience
    while time.monotonic() < patience:
        if rows := ground.cluster.fetch(STOP_SCHEDULE):
            return rows[0][0]
        ground.keep_trees()
        time.sleep(0.05)
    return None


def rest(ground: Ground) -> Iterator[Problem]:
    """Mild work, twice: nothing that it needs may be more after the second time. And in peace no
    attempt comes to nothing, also where a handler holds the GIL for longer than the lease."""
    ((last,),) = ground.cluster.fetch(LAST_JOB)
    looks = []
    for errand in ("mild", "milder"):
        ground.ask(errand)
        ground.all_asked()
        ground.wait_for_all()
        time.sleep(1.5)  # what was isolated is collected
        looks.append(resources.look(ground.cluster, ground.trees, ground.directory))
    yield from resources.growth(*looks)
    lost = ground.cluster.fetch(CAME_TO_NOTHING, [last])
    if lost:
        yield 4, f"attempts that came to nothing in peace: {len(lost)}, such as {lost[:3]}"
    ground.say(f"rested: {looks[-1].backends} connections, {looks[-1].shape}")


def drill(ground: Ground) -> None:
    """In the storm hardly a recovery is left in peace. Here a machine is lost, one or both of
    those that run a job, and then handlers kill their processes: nothing else disturbs it, and
    threads are free for whatever is lost."""
    ground.ask("slow")
    # Looked for at once: until the enqueuer has left, its jobs may have ended.
    until = time.monotonic() + ground.patience
    while not (busy := ground.cluster.fetch(BUSY)) and time.monotonic() < until:
        time.sleep(0.05)
    for tree in ground.trees:
        if (tree.name,) in busy:
            fault = Fault(kind=plan.KILL_TREE, at=time.time(), tree=tree.name)
            tree.signal_all(signal.SIGKILL)
            ground.history.faults.append(fault)
            ground.say(f"{fault.kind} {fault.tree}")
    ground.all_asked()
    ground.wait_for_all()
    ground.ask("pills", seconds=2.0)
    ground.all_asked()
    ground.wait_for_all()
    ground.say("drilled")


def end(ground: Ground) -> Iterator[Problem]:
    """Drain all at once, and look for what is left of them."""
    begun = time.time()
    for tree in ground.trees:
        fault = Fault(kind=plan.DRAIN, at=time.time(), tree=tree.name)
        ground.history.faults.append(fault)
        tree.signal_all(signal.SIGCONT)
        tree.signal_root(signal.SIGTERM)
    left = set(ground.trees)
    while left and time.time() < begun + 20:
        for tree in list(left):
            if (code := tree.process.poll()) is not None:
                ground.history.exits.append(Exit(tree=tree.name, at=time.time(), code=code))
                left.remove(tree)
        time.sleep(0.02)
    if left:
        yield 9, f"trees that did not drain: {sorted(tree.name for tree in left)}"
    time.sleep(0.2)
    roots = {root for tree in ground.trees for root in tree.roots}
    for text in (*resources.ours(ground.directory).values(), *resources.zombies(roots)):
        yield 9, f"a process that was left behind: {text}"
