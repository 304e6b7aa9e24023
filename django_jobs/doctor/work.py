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
from ..metrics import unclaimable
from ..models import Queue
from ..models.worker import IS_ALIVE
from .findings import Finding, found
from .history import at_least
from .reading import Reader, Statement
from .server import FLEET

MOST_COUNTED = 1_000
MOST_LOOKED_AT, MOST_TRIED = 10_000, 2_000
"""Ready jobs of all queues whose types are looked at, and whose payloads are tried. The queues have
equal shares of them, and at least 20. As many scheduled ones as are counted are looked at too."""
MOST_LISTED = 20

# Steps from one queue to the next in the index, so that queues without a row are found too.
READY_QUEUES = Statement(
    f"""
WITH RECURSIVE ready AS (
    (SELECT queue FROM django_jobs_job_live WHERE status = 'ready' ORDER BY queue, rank, id LIMIT 1)
    UNION ALL
    SELECT next.queue FROM ready CROSS JOIN LATERAL (
        SELECT job.queue FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue > ready.queue
        ORDER BY job.queue, job.rank, job.id LIMIT 1) AS next
)
SELECT ready.queue AS name, queue.paused_at IS NOT NULL AS paused, queue.name IS NULL AS is_gone,
    extract(epoch FROM clock_timestamp() - queue.paused_at)::float8 AS paused_seconds,
    queue.paused_reason,
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = ready.queue
        ORDER BY job.rank, job.id LIMIT %(most)s) AS counted) AS ready,
    EXISTS (
        SELECT 1 FROM django_jobs_worker AS worker
        WHERE {IS_ALIVE}
          AND worker.queues @> to_jsonb(ready.queue)) AS served,
    EXISTS (
        SELECT 1 FROM django_jobs_worker AS worker
        WHERE {IS_ALIVE}) AS any_alive
FROM ready LEFT JOIN django_jobs_queue AS queue ON queue.name = ready.queue
LIMIT 1000
""",
    lambda: {"most": MOST_COUNTED},
)

# A worker that lives makes them ready within a poll, of any queue.
OVERDUE_QUEUES = Statement(
    f"""
SELECT DISTINCT job.queue FROM (
    SELECT queue FROM django_jobs_job_live
    WHERE status = 'scheduled' AND available_at < statement_timestamp() - interval '60 s'
    ORDER BY available_at LIMIT %(most)s
) AS job LEFT JOIN django_jobs_queue AS queue ON queue.name = job.queue
WHERE queue.paused_at IS NULL AND NOT EXISTS (
    SELECT FROM django_jobs_worker AS worker
    WHERE {IS_ALIVE})
""",
    lambda: {"most": MOST_COUNTED},
)

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
) AS form JOIN django_jobs_job_live AS job ON job.id = form.lowest
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


def examine_queues(read: Reader) -> Iterator[Finding]:
    """Ready and due jobs in queues that no live worker serves."""
    rows = [row for row in read(READY_QUEUES) if not row["paused"]]
    names = {row["queue"] for row in read(OVERDUE_QUEUES)}
    names |= {row["name"] for row in rows if not row["any_alive"]}
    if names:
        listed = sorted(names)
        yield found(
            "D301",
            f"No worker is alive, and jobs are ready or have been due for a minute in "
            f"{_listed(listed)}.",
            "Start one:",
            START,
            queues=listed,
        )
        return
    for row in rows:
        if not row["served"]:
            count = at_least(row["ready"], MOST_COUNTED)
            yield found(
                "D302",
                f"No live worker serves the queue {row['name']!r}, which has {count} ready jobs"
                f"{' and no row' if row['is_gone'] else ''}.",
                "Add it to the setting QUEUES and run migrate, and then start a worker for it:"
                if row["is_gone"]
                else "Add it to --queues or --pool of a worker, or start one for it:",
                f"{START} --queues {quote(row['name'])}",
                queue=row["name"],
                ready=row["ready"],
            )


def examine_types(read: Reader) -> Iterator[Finding]:
    """Jobs whose type, or version of payload, no live worker of their queue knows."""
    unknown, unread = unclaimable.backlogs_of(read(UNCLAIMABLE))
    (queues,) = read(QUEUES)
    most = min(_share(MOST_LOOKED_AT, queues["number"]), MOST_COUNTED)
    for one in unknown:
        yield found(
            "D303",
            f"No live worker of their queue knows the type of {at_least(one.ready, most)} jobs "
            f"that are ready, blocked at their gates or due next: {one.job_type}.",
            "Deploy the code with its handler to the workers, declare the old name in aliases=[…], "
            "or cancel the jobs in the admin.",
            job_type=one.job_type,
            jobs=one.ready,
        )
    for newer in unread:
        yield found(
            "D304",
            f"{at_least(newer.ready, most)} jobs of {newer.job_type} that are ready, blocked at "
            f"their gates or due next have payloads of version {newer.version}, which no live "
            "worker of their queue reads.",
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
    for (job_type, problem), (jobs, lowest) in problems.items():
        yield found(
            "D305",
            f"This code cannot run {jobs:,} of the next jobs of {job_type}, the first is {lowest}: "
            f"{problem}.",
            "Declare an upgrade of the payload, or deploy the code that reads it. To try all live "
            "jobs:",
            "manage.py jobcheck",
            job_type=job_type,
            jobs=jobs,
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
