"""The workers: whether any can take the job, and whether one has a free thread for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import registry
from ..api import stored_payload_problem
from ..domain.states import JobState
from ..lifecycle.workflows.results import TAKEN_ARGUMENTS
from ..models import Job
from ..models.worker import IS_ALIVE
from ..separators import number_text
from .explanation import Gate, GateState, Ref, Text, Value, fill, holding, joined, plain
from .facts import MOST_READ, Facts, Row, job_ref, moment, worker_ref

MOST_WORKERS = 200
"""Live workers that are looked at, those that could take the job first."""
MOST_SHOWN = 5

LONGER = 3.0
"""Times as long as such jobs take: who has run for longer has no end that could be forecast."""
UNMOVED_SECONDS = 60.0
"""Within this time, claims may just come in large batches."""

# How long a job of the queue, and one of the type, ran in the last day.
PACE = """
SELECT sum(runtime_seconds) / nullif(sum(runs), 0) AS of_queue,
    sum(runtime_seconds) FILTER (WHERE job_type = %(job_type)s)
        / nullif(sum(runs) FILTER (WHERE job_type = %(job_type)s), 0) AS of_type
FROM django_jobs_runtotal
WHERE period = 3600 AND began_at >= date_bin('1 hour', now() - interval '1 day', 'epoch')
  AND queue = %(queue)s AND outcome IN ('succeeded', 'failed', 'timed_out')
"""

# @> instead of a question to each: the arrays may name a thousand queues and job types.
WORKERS = f"""
SELECT id, name, code_version, status = 'running' AND drain_requested_at IS NULL AS claims,
    NOT ({IS_ALIVE}) AS expired, claim_failures, threads, async_slots,
    pools, queues @> to_jsonb(%(queue)s::text) AS serves,
    job_types @> to_jsonb(%(job_type)s::text) AS knows,
    payload_versions IS NULL AS reads_any, payload_versions -> %(job_type)s AS version
FROM django_jobs_worker AS worker WHERE status IN ('running', 'draining')
ORDER BY serves DESC, knows DESC, claims DESC, id LIMIT {MOST_WORKERS}
"""
# What those hold that could take the job, also of other queues: these may share their threads.
BUSY = f"""
SELECT worker, queue, job_type, count(*) AS jobs, min(claimed_at) AS since,
    max(claimed_at) AS newest, bool_or(timeout IS NOT NULL) AS has_time_limit,
    (array_agg(id ORDER BY claimed_at, id))[1] AS oldest
FROM (
    SELECT worker.id AS worker, job.*
    FROM ({WORKERS}) AS worker CROSS JOIN LATERAL (
        SELECT id, queue, job_type, claimed_at, timeout FROM django_jobs_job_live
        WHERE status = 'running' AND worker_id = worker.id
        ORDER BY worker_id LIMIT {MOST_READ}) AS job
    WHERE worker.serves AND worker.knows AND worker.claims AND NOT worker.expired
    LIMIT {MOST_READ}) AS held
GROUP BY worker, queue, job_type ORDER BY since, oldest
"""
PAYLOAD = f"""
SELECT job.payload::text AS payload, CASE WHEN job.workflow_run_id IS NULL THEN '{{}}'
    ELSE {TAKEN_ARGUMENTS.format(id="job.id")} END AS taken
FROM django_jobs_job_live AS job WHERE job.id = %(id)s
"""


def parts(job: Job) -> dict[str, str]:
    found = {"workers": WORKERS, "busy": BUSY, "payload": PAYLOAD}
    starts = job.status in (JobState.READY, JobState.BLOCKED)
    return {**found, "pace": PACE} if starts else found


def gates(job: Job, facts: Facts) -> Iterator[Gate]:
    able, gate = _able(job, facts)
    yield gate
    if able and job.status in (JobState.READY, JobState.BLOCKED):
        yield _threads(job, able, facts)
    row, known = facts.row("payload"), registry.versions().get(job.job_type, 0)
    if row is None or job.payload_version > known:
        return
    taken = partial(list[str], row["taken"])
    problem = stored_payload_problem(
        job.job_type, job.payload_version, row["payload"], taken, brief=True
    )
    if problem:
        text = _("this code cannot run it: %(problem)s") % {"problem": _(problem).rstrip(".")}
        yield _holds("payload", _("Payload"), (text,), text)


def unable(job: Job, facts: Facts) -> Iterator[Gate]:
    """The gate, if workers serve the queue and none can run the job: others get its slots."""
    serving = [row for row in _alive(facts) if row["serves"]]
    if serving and not any(row["knows"] and _newest(row) >= job.payload_version for row in serving):
        yield _able(job, facts)[1]


def claim_failures(facts: Facts) -> int:
    """How many rounds of claims of the workers failed since they started."""
    return sum(row["claim_failures"] for row in facts.rows("workers"))


def _alive(facts: Facts) -> list[Row]:
    return [row for row in facts.rows("workers") if not row["expired"]]


def _could_take(job: Job, row: Row) -> bool:
    return bool(
        row["serves"] and row["knows"] and row["claims"] and _newest(row) >= job.payload_version
    )


def _able(job: Job, facts: Facts) -> tuple[list[Row], Gate]:
    """The workers that can take the job, and the gate: the first condition that none meets."""
    alive, rows = _alive(facts), facts.rows("workers")
    lapsed = [row for row in rows if row["expired"] and _could_take(job, row)]
    if lapsed and not any(_could_take(job, row) for row in alive):
        text = _("the leases of all workers that could take it have expired")
        return [], _none(text, _versions(lapsed))
    if not alive:
        return [], _none(_("no worker is alive"))
    serving = [row for row in alive if row["serves"]]
    if not serving:
        elsewhere = _workers(len(alive), _("serve other queues"), _("serves other queues"))
        return [], _none(_("no live worker serves this queue"), elsewhere)
    knowing = [row for row in serving if row["knows"]]
    if not knowing:
        text = _("no live worker of this queue knows this job type")
        return [], _none(text, _versions(serving))
    reading = [row for row in knowing if _newest(row) >= job.payload_version]
    if not reading:
        text = _("no live worker of this queue reads version %(version)s of its payload")
        return [], _none(text % {"version": job.payload_version}, _versions(knowing, reads=True))
    able = [row for row in reading if row["claims"]]
    if not able:
        return [], _none(_("all workers that could take it are draining"), _versions(reading))
    values: dict[str, Value] = {
        "workers": _count(len(able), len(alive) == MOST_WORKERS),
        "queue": job.queue,
        "job_type": job.job_type,
        "version": job.payload_version,
    }
    template = ngettext(
        "%(workers)s serves %(queue)s, knows %(job_type)s and reads version %(version)s",
        "%(workers)s serve %(queue)s, know %(job_type)s and read version %(version)s",
        len(able),
    )
    return able, Gate("workers", _("Workers"), fill(template, **values))


def _newest(row: Row) -> float:
    """The newest payload version that a worker reads: any, if its release reports none."""
    if row["reads_any"]:
        return float("inf")
    version = row["version"]
    return version if isinstance(version, int | float) else 1


def _none(text: str, more: Text = ()) -> Gate:
    all_of_it = fill("%(text)s: %(more)s", text=text, more=more) if more else (text,)
    return _holds("workers", _("Workers"), all_of_it, text)


def _holds(name: str, title: str, text: Text, phrase: str) -> Gate:
    sentence = (phrase[:1].upper() + phrase[1:], ".")
    return holding(name, title, text, sentence=sentence, phrase=phrase, lasting=True)


def _count(number: int, more: bool = False) -> str:
    text = ngettext("%(number)s live worker", "%(number)s live workers", number)
    return text % {"number": number_text(number, more=more)}


def _workers(number: int, many: str, one: str) -> Text:
    return (f"{_count(number, number == MOST_WORKERS)} {one if number == 1 else many}",)


def _versions(rows: list[Row], *, reads: bool = False) -> Text:
    """The first of these workers, with the version of their code."""
    named = joined(_named(row, reads) for row in rows[:MOST_SHOWN])
    more = len(rows) - MOST_SHOWN
    return (
        fill(_("%(workers)s and %(count)s more"), workers=named, count=more) if more > 0 else named
    )


def _named(row: Row, reads: bool) -> Text:
    notes = []
    if row["code_version"]:
        notes.append(_("code %(version)s") % {"version": row["code_version"]})
    if reads:
        notes.append(_("reads version %(version)s") % {"version": f"{_newest(row):g}"})
    link = worker_ref(row)
    return fill("%(worker)s (%(notes)s)", worker=link, notes=", ".join(notes)) if notes else (link,)


def _slots(row: Row, queue: str, on_loop: bool) -> tuple[int, set[str] | None]:
    """How many jobs of a queue the worker can run at once, and the queues that share these slots;
    None if all do."""
    threads, served = row["threads"], None
    pools = [pool for pool in _pools(row) if queue in pool["queues"]]
    if pools:
        threads = sum(pool["threads"] for pool in pools)
        served = {name for pool in pools for name in pool["queues"]}
    if not on_loop:
        return threads, served
    return max(row["async_slots"] * threads // max(row["threads"], 1), 1), served


def _pools(row: Row) -> list[dict[str, Any]]:
    pools = row["pools"] if isinstance(row["pools"], list) else []
    return [
        pool
        for pool in pools
        if isinstance(pool, dict)
        and isinstance(pool.get("queues"), list)
        and isinstance(pool.get("threads"), int)
    ]


def _with_slots(claimed: list[Row], slots: int) -> list[tuple[Row, int]]:
    """How many jobs of each kind run: those claimed first. The others are prefetched."""
    begun, left = [], slots
    for one in claimed:
        count = min(one["jobs"], left)
        left -= count
        if count:
            begun.append((one, count))
    return begun


def _threads(job: Job, able: list[Row], facts: Facts) -> Gate:
    loop_types = set(registry.loop_types())
    slots = taken = 0
    lines, kinds = [], Counter[str]()
    oldest: dict[str, Row] = {}
    held: list[Row] = []
    for row in able:
        on_loop = job.job_type in loop_types and not job.crashes and row["async_slots"] > 0
        most, queues = _slots(row, job.queue, on_loop)
        running = [
            one
            for one in facts.rows("busy")
            if one["worker"] == row["id"]
            and (queues is None or one["queue"] in queues)
            and (row["async_slots"] == 0 or (one["job_type"] in loop_types) == on_loop)
        ]
        jobs = sum(one["jobs"] for one in running)
        slots, taken = slots + most, taken + min(jobs, most)
        held += running
        begun = _with_slots(running, most)
        for one, count in begun:
            kinds[one["job_type"]] += count
            oldest.setdefault(one["job_type"], one)
        if begun:
            values = {"worker": worker_ref(row), "taken": min(jobs, most), "most": most}
            busy = joined(
                _kind(one["job_type"], count, one, facts) for one, count in begun[:MOST_SHOWN]
            )
            lines.append(
                fill(_("%(worker)s: %(taken)s of %(most)s, %(jobs)s"), **values, jobs=busy)
            )
    title = _("Threads")
    text = fill(
        ngettext(
            "%(taken)s of %(slots)s busy on %(workers)s worker",
            "%(taken)s of %(slots)s busy on %(workers)s workers",
            len(able),
        ),
        **{"taken": taken, "slots": slots, "workers": len(able)},
    )
    read = sum(row["jobs"] for row in facts.rows("busy"))
    is_cut = read >= MOST_READ if taken < slots else len(able) >= MOST_WORKERS
    if is_cut:
        unknown = _("more workers or jobs than are counted")
        return Gate(
            "threads",
            title,
            (unknown,),
            state=GateState.UNKNOWN,
            sentence=fill(_("A thread may be free, or none: %(text)s."), text=unknown),
        )
    if taken < slots:
        return Gate("threads", title, text)
    with_what = joined(
        _kind(name, count, oldest[name], facts) for name, count in kinds.most_common(MOST_SHOWN)
    )
    template = ngettext(
        "Waits for a free thread: the only one of %(workers)s that could run it is busy.",
        "Waits for a free thread: all %(slots)s of %(workers)s that could run it are busy.",
        slots,
    )
    phrase = ngettext(
        "the only thread that could run it is busy", "all %(slots)s threads are busy", slots
    )
    sentence = fill(
        template,
        slots=slots,
        workers=ngettext("%(count)s worker", "%(count)s workers", len(able)) % {"count": len(able)},
    )
    is_endless = _is_endless(held, facts)
    if is_endless:
        endless = ngettext(
            "%(sentence)s The job has no time limit, and no end in sight: %(jobs)s.",
            "%(sentence)s None of the jobs has a time limit, or an end in sight: %(jobs)s.",
            taken,
        )
        sentence = fill(endless, sentence=sentence, jobs=with_what)
    return holding(
        "threads",
        title,
        fill("%(text)s: %(jobs)s", text=text, jobs=with_what),
        details=tuple(lines[:MOST_SHOWN]) if len(able) > 1 else (),
        sentence=sentence,
        phrase=plain(fill(phrase, slots=slots)),
        lasting=is_endless,
        momentary=True,
    )


def _is_endless(held: list[Row], facts: Facts) -> bool:
    """Whether nothing says when a job that holds a slot ends: none has a time limit, and for long
    no worker has claimed another one."""
    newest = [at for row in held if (at := moment(row["newest"])) is not None]
    if not newest or any(row["has_time_limit"] for row in held):
        return False
    row = facts.row("pace")
    pace = (row and row["of_queue"]) or 0.0
    unmoved = (facts.now - max(newest)).total_seconds()
    return unmoved > max(LONGER * pace, UNMOVED_SECONDS)


def _kind(job_type: str, jobs: int, oldest: Row, facts: Facts) -> Text:
    """``3 media.transcode (#971,990 for 22 min)``."""
    since = facts.since(moment(oldest["since"]))
    template = _("%(count)s %(job_type)s (%(job)s for %(time)s)")
    name = Ref("job_type", 0, job_type)
    return fill(template, count=jobs, job_type=name, job=job_ref(oldest["oldest"]), time=since)
