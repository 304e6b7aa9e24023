"""Jobs that have ended, with their runs, written by PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.factories import run_sql


class Kind(NamedTuple):
    """A job type: its queue, how many of twenty jobs it is, and its mean seconds."""

    job_type: str
    queue: str
    share: int
    seconds: float


KINDS = (
    Kind("mail.send_receipt", "emails", 6, 0.12),
    Kind("mail.send_digest", "emails", 2, 0.3),
    Kind("crm.push_contact", "default", 3, 0.25),
    Kind("search.index_page", "default", 5, 0.05),
    Kind("webhooks.deliver", "webhooks", 2, 0.4),
    Kind("media.transcode", "media", 1, 20.0),
    Kind("billing.charge_card", "payments", 1, 0.9),
)

# Job n of the whole ends at its n-th part, faster at some times than at others. Ten minutes in the
# last quarter are bad, when half of all first attempts fail; otherwise it is one in 150.
ENDED = """
WITH job AS MATERIALIZED (
    SELECT nextval('django_jobs_job_id_seq') AS id, kind.*, share, n,
        now() - make_interval(secs => %(seconds)s * (1 - place)) AS ended,
        %(seconds)s * (1 - place) BETWEEN 480 AND 1080 AND n %% 2 = 0 OR n %% 150 = 7 AS failed
    FROM generate_series(1, %(count)s) AS n,
        LATERAL (SELECT n::float8 / %(count)s AS share) AS of_all,
        LATERAL (SELECT share - 0.03 * sin(share * 18.85) AS place) AS moved,
        LATERAL (SELECT 1 + (n * 7 + n / 20) %% 20 AS slot) AS slots,
        LATERAL (SELECT (%(types)s::text[])[slot] AS job_type, (%(queues)s::text[])[slot] AS queue,
            (%(means)s::float8[])[slot] * (0.4 + 1.2 * abs(sin(n))) AS took) AS kind
), jobs AS (
    INSERT INTO django_jobs_job (id, queue, job_type, payload, payload_version, status, priority,
        rank, available_at, attempt, failures, max_attempts, max_crashes, claimed_at, started_at,
        finished_at, reason, headers, created_at)
    SELECT id, queue, job_type,
        jsonb_build_object('customer_id', n %% 4999, 'order_id', 100000 + n), 1,
        CASE WHEN n %% 400 = 3 THEN 'cancelled' ELSE 'succeeded' END, 0,
        extract(epoch FROM ended), ended - make_interval(secs => took + 0.6),
        1 + failed::int + %(more)s, failed::int, 5, 3, ended - make_interval(secs => took + 0.01),
        ended - make_interval(secs => took), ended,
        CASE WHEN n %% 400 = 3 THEN 'cancelled by olga' ELSE '' END, '{}',
        ended - make_interval(secs => took + 1)
    FROM job
)
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT id, attempt,
    CASE WHEN attempt > 1 + failed::int THEN 'snoozed'
        WHEN failed AND attempt = 1 THEN 'failed'
        WHEN n %% 400 = 3 THEN 'cancelled' ELSE 'succeeded' END,
    (%(workers)s::bigint[])[1 + n %% cardinality(%(workers)s::bigint[])],
    ended - make_interval(secs => took + 0.05 + 0.5 * abs(cos(n))),
    ended - make_interval(secs => took + 0.01), ended - make_interval(secs => took), ended,
    CASE WHEN failed AND attempt = 1 THEN 'ConnectionError' ELSE '' END,
    CASE WHEN failed AND attempt = 1 THEN 'hooks.partner.example did not answer' ELSE '' END,
    '', CASE WHEN failed AND attempt = 1 THEN 'b0a4c2d1e3f5a6b7' ELSE '' END
FROM job, LATERAL generate_series(1, 1 + failed::int + %(more)s) AS attempt
"""


def write_history(
    count: int, seconds: float, workers: Sequence[int], *, more_runs: int = 0
) -> None:
    """``count`` jobs of all kinds that ended in the last ``seconds``, with ``more_runs`` runs each
    besides those that they need."""
    slots = [kind for kind in KINDS for _ in range(kind.share)]
    run_sql(
        ENDED,
        {
            "count": count,
            "seconds": seconds,
            "workers": list(workers),
            "more": more_runs,
            "types": [kind.job_type for kind in slots],
            "queues": [kind.queue for kind in slots],
            "means": [kind.seconds for kind in slots],
        },
    )  # type: ignore[arg-type]
