"""Jobs that nothing will run, and workflows that cannot end."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from shlex import quote

from .. import registry
from ..api import stored_payload_problem
from ..api.generations import GENERATION, MANY
from ..lifecycle.compensating import FAILED, MOST_NAMED
from ..lifecycle.workflows.results import TAKEN_ARGUMENTS
from ..lifecycle.workflows.stuck import stuck_runs
from ..metrics import snapshot, unclaimable
from ..models import Queue
from ..models.database import migrate_command
from .findings import Finding, Reader, Statement, found, jobs, jobs_wait
from .server import FLEET

MOST_COUNTED = 1_000
MOST_LOOKED_AT, MOST_TRIED = 10_000, 2_000
"""Ready jobs of all queues whose types are looked at, and whose payloads are tried. The queues have
equal shares of them, and at least 20. As many scheduled ones as are counted are looked at too."""
MOST_LISTED = 20

IN_QUEUES = (
    Statement(snapshot.QUEUES, lambda: {"most": MOST_COUNTED}),
    Statement(snapshot.OTHER_COUNTS, lambda: {"most": MOST_COUNTED}),
    Statement(snapshot.WORKERS),
)
"""What waits in the queues, and their workers: as ``jobstatus`` reads it."""
UNCLAIMABLE = Statement(
    unclaimable.UNCLAIMABLE,
    lambda: {"most": _share(MOST_LOOKED_AT, _queues()), "upcoming": MOST_COUNTED},
)
QUEUES = Statement("SELECT count(*) AS number FROM django_jobs_queue")


def _next(columns: str) -> str:
    """The first jobs of each queue and those due next: as many of each as :func:`_share` gives."""
    most = """(
            SELECT greatest(20, %(tried)s / greatest(count(*), 1)) FROM django_jobs_queue)"""
    return f"""
        SELECT head.* FROM django_jobs_queue AS queue CROSS JOIN LATERAL (
            SELECT {columns} FROM django_jobs_job_live AS job
            WHERE job.status = 'ready' AND job.queue = queue.name
            ORDER BY job.rank, job.id LIMIT {most}) AS head
        UNION ALL
        (SELECT {columns} FROM django_jobs_job_live
         WHERE status = 'scheduled' ORDER BY available_at LIMIT {most})"""


# One payload of each form, as in jobcheck.
FORMS = Statement(
    f"""
SELECT job.job_type, job.payload_version, form.jobs, form.lowest, job.payload::text AS payload,
    CASE WHEN is_step THEN {TAKEN_ARGUMENTS.format(id="form.lowest")} ELSE '{{}}' END AS taken
FROM (
    SELECT min(id) AS lowest, count(*) AS jobs, workflow_run_id IS NOT NULL AS is_step
    FROM ({_next("id, job_type, payload_version, payload, workflow_run_id")}
    ) AS tried
    WHERE job_type = ANY(%(types)s)
    GROUP BY job_type, payload_version, is_step, CASE WHEN jsonb_typeof(payload) = 'object'
        THEN jsonb_path_query_array(payload, 'strict $.keyvalue().key') END
    LIMIT 1000
) AS form CROSS JOIN LATERAL (
    SELECT id, job_type, payload_version, payload FROM django_jobs_job_live
    WHERE id = form.lowest LIMIT 1) AS job
ORDER BY 1, 2, 4
""",
    lambda: {"tried": MOST_TRIED, "types": list(registry.versions())},
)

# A chain that feeds itself has a job in one of these places: it runs, it is next, or it is new.
GENERATIONS = Statement(
    f"""
SELECT job_type, floor(least(max(generation), 1e15))::bigint AS generation FROM (
    SELECT job_type, CASE jsonb_typeof(headers -> '{GENERATION}')
        WHEN 'number' THEN (headers ->> '{GENERATION}')::numeric END AS generation
    FROM ({_next("job_type, headers")}
        UNION ALL
        (SELECT job_type, headers FROM django_jobs_job_live
         WHERE status = 'running' ORDER BY worker_id LIMIT %(tried)s)
        UNION ALL
        (SELECT job_type, headers FROM django_jobs_job_live ORDER BY id DESC LIMIT %(tried)s)
    ) AS job
) AS counted
WHERE generation >= {MANY}
GROUP BY job_type
ORDER BY max(generation) DESC, job_type LIMIT %(listed)s
""",
    lambda: {"tried": MOST_TRIED, "listed": MOST_LISTED},
)

COMPENSATIONS = Statement(FAILED, lambda: {"most": MOST_LISTED})

START = "manage.py jobworker"
OVERDUE_SECONDS = 60.0
"""A worker that lives makes a scheduled job ready within a poll after it is due."""


def examine_queues(read: Reader) -> Iterator[Finding]:
    """Jobs in queues that no worker serves, or whose row was deleted."""
    now = read_queues(read)
    if not snapshot.live_workers(now):
        listed = [
            queue.name
            for queue in now.queues
            if queue.waiting
            or (not queue.paused and (queue.overdue_scheduled_seconds or 0) > OVERDUE_SECONDS)
        ]
        if listed:
            yield found(
                "D301",
                f"No worker is alive, and jobs wait or have been due for a minute in "
                f"{_listed(listed)}.",
                "Start one:",
                START,
                queues=listed,
            )
            return
    for queue in snapshot.lost_queues(now):
        yield found(
            "D302",
            f"The queue {queue.name!r} has no row, so no worker claims its "
            f"{jobs(queue.waiting, MOST_COUNTED)}.",
            "Add it to the setting QUEUES and run migrate:",
            migrate_command(),
            queue=queue.name,
            waiting=queue.waiting,
        )
    for queue in snapshot.unserved_queues(now):
        yield found(
            "D302",
            f"No running worker serves the queue {queue.name!r}, in which "
            f"{jobs_wait(queue.waiting, MOST_COUNTED)}.",
            "Add it to --queues or --pool of a worker, or start one for it:",
            f"{START} --queues {quote(queue.name)}",
            queue=queue.name,
            waiting=queue.waiting,
        )


def read_queues(read: Reader) -> snapshot.Snapshot:
    return snapshot.snapshot_of(*map(read, IN_QUEUES))


def examine_types(read: Reader) -> Iterator[Finding]:
    """Jobs whose type, or version of payload, no live worker of their queue knows."""
    unknown, unread = unclaimable.backlogs_of(read(UNCLAIMABLE))
    (queues,) = read(QUEUES)
    most = min(_share(MOST_LOOKED_AT, queues["number"]), MOST_COUNTED)
    for one in unknown:
        yield found(
            "D303",
            f"No live worker of its queue knows the type {one.job_type}: "
            f"{jobs_wait(one.ready, most)}, ready, blocked or due next.",
            "Deploy the code with its handler to the workers, declare the old name in aliases=[…], "
            "or cancel the jobs in the admin.",
            job_type=one.job_type,
            jobs=one.ready,
        )
    for newer in unread:
        yield found(
            "D304",
            f"No live worker of its queue reads version {newer.version} of {newer.job_type}: "
            f"{jobs_wait(newer.ready, most)}, ready, blocked or due next.",
            "Finish the deployment: start workers with the new code.",
            job_type=newer.job_type,
            version=newer.version,
            jobs=newer.ready,
        )


def examine_payloads(read: Reader) -> Iterator[Finding]:
    """Payloads that the code of this process cannot read, of types that it knows."""
    problems: dict[tuple[str, str], tuple[int, int]] = {}
    known = registry.versions()
    for form in read(FORMS):
        job_type, lowest = form["job_type"], form["lowest"]
        version, payload = form["payload_version"], form["payload"]
        if version > known[job_type] and read(FLEET):  # if none of them reads it, that is D304
            continue
        taken = partial(list[str], form["taken"])
        if problem := stored_payload_problem(job_type, version, payload, taken, brief=True):
            count, first = problems.get((job_type, problem), (0, lowest))
            problems[job_type, problem] = count + form["jobs"], min(first, lowest)
    for (job_type, problem), (number, lowest) in problems.items():
        yield found(
            "D305",
            f"This code cannot run {number:,} of the next jobs of {job_type}, the first is "
            f"{lowest}: {problem}.",
            "Declare an upgrade of the payload, or deploy the code that reads it. To try all live "
            "jobs:",
            "manage.py jobcheck",
            job_type=job_type,
            jobs=number,
            lowest_id=lowest,
        )


def examine_workflows() -> Iterator[Finding]:
    """Runs of workflows that can never end."""
    for row in stuck_runs(MOST_LISTED):
        run = row["run"]
        yield found(
            "D308",
            f"The workflow run {run} cannot end: {'; '.join(row['problems'])}. No crash leaves "
            "this: rows were changed or deleted by hand, or it is a bug.",
            "If nobody changed rows, report this output. Cancel the run, or skip the step in the "
            "admin:",
            f"manage.py jobworkflow cancel {run}",
            run=run,
            problems=row["count"],
        )


def examine_compensations(read: Reader) -> Iterator[Finding]:
    """Failed runs of workflows of which not all was undone that should be."""
    for row in read(COMPENSATIONS):
        names = row["steps"]
        more = len(names) - MOST_NAMED
        named = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield found(
            "D309",
            f"Compensations of the run {row['id']} of {row['name']} failed: {named}. What they "
            "should have undone stays done.",
            "Correct the cause and retry the run, which starts these steps again. Or undo it by "
            "hand, and skip or dismiss them in the admin with that as the reason. To see the run "
            "and to retry it:",
            f"manage.py jobworkflow show {row['id']}",
            f"manage.py jobworkflow retry {row['id']}",
            run=row["id"],
            workflow=row["name"],
            steps=names,
        )


def examine_generations(read: Reader) -> Iterator[Finding]:
    """Types of jobs that handlers enqueue one after the other, without an end so far."""
    for row in read(GENERATIONS):
        job_type, generation = row["job_type"], row["generation"]
        yield found(
            "D316",
            f"Jobs of {job_type} come from a chain of {generation:,} handlers, of which each "
            "enqueued a job of the next.",
            "If it does not end by itself, correct the handler: end at a limit, such as of "
            "current_run().generation, or declare a schedule for what is repeated. Until then, "
            "pause its queue or cancel its jobs in the admin.",
            job_type=job_type,
            generation=generation,
        )


def _queues() -> int:
    return Queue.objects.names().count()


def _share(most: int, queues: int) -> int:
    return max(20, most // max(1, queues))


def _listed(names: list[str]) -> str:
    more = len(names) - 5
    return ", ".join(names[:5]) + (f" and {more} more queues" if more > 0 else "")
