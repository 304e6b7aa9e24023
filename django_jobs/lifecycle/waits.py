"""The sleeps of a handler, and its waits for signals. A receipt keeps when each is over, so that it
is measured once, from the first attempt that came to it."""

from __future__ import annotations

from dataclasses import dataclass

from ..exceptions import SignalTimeout
from ..models.database import fetch
from .claiming import lease_lost
from .job_columns import ClaimedJob

SLEEP_KEY, SIGNAL_KEY = "sleep:", "signal:"
"""What the keys of these receipts begin with."""

OURS = """
    SELECT id, signals FROM django_jobs_job_live
    WHERE id = %(id)s AND attempt = %(attempt)s AND worker_id = %(worker)s
    FOR NO KEY UPDATE"""
UNTIL = """
    SELECT id, %(key)s, %(attempt)s, jsonb_build_object(
        'until', clock_timestamp() + make_interval(secs => %(seconds)s::float8)), clock_timestamp()
    FROM ours"""
LEFT = """
    date_part('epoch', (answer ->> 'until')::timestamptz - clock_timestamp())"""

# An update that changes nothing returns the receipt that is there.
BEGIN_SLEEP = f"""
WITH ours AS MATERIALIZED ({OURS}
), begun AS (
    INSERT INTO django_jobs_receipt AS receipt (job_id, key, attempt, answer, made_at) {UNTIL}
    ON CONFLICT (job_id, key) DO UPDATE SET answer = receipt.answer
    RETURNING answer
)
SELECT {LEFT} FROM begun
"""

# A wait that is over without a signal stays over, or later attempts might take another way. A
# signal locks the job too, so that the second of the two sees what the first wrote.
BEGIN_WAIT = f"""
WITH ours AS MATERIALIZED ({OURS}
), begun AS (
    INSERT INTO django_jobs_receipt AS receipt (job_id, key, attempt, answer, made_at) {UNTIL}
    ON CONFLICT (job_id, key) DO UPDATE SET answer = CASE
        WHEN (receipt.answer ->> 'until')::timestamptz <= clock_timestamp()
             AND NOT (SELECT coalesce(jsonb_exists(signals, %(name)s), false) FROM ours)
        THEN receipt.answer || '{{"over": true}}' ELSE receipt.answer END
    RETURNING answer
)
SELECT coalesce(jsonb_exists(ours.signals, %(name)s), false), ours.signals -> %(name)s,
    jsonb_exists(answer, 'over'), {LEFT}
FROM begun, ours
"""

# An operator gives jobs another due time, by default now. Handlers that sleep are to wake then. A
# job whose handler sleeps is due when that is over. One that is tried again before that sleeps
# on. The jobs are locked.
WAKE = f"""
WITH sleeping AS MATERIALIZED (
    SELECT id, available_at FROM django_jobs_job_live
    WHERE id = ANY(%(ids)s::bigint[]) AND status = 'scheduled' AND attempt > 0
)
UPDATE django_jobs_receipt AS receipt
SET answer = jsonb_set(receipt.answer, '{{until}}',
    to_jsonb(coalesce(%(run_at)s::timestamptz, clock_timestamp())))
FROM sleeping
WHERE receipt.job_id = ANY(ARRAY(SELECT id FROM sleeping)) AND receipt.job_id = sleeping.id
  AND starts_with(receipt.key, '{SLEEP_KEY}')
  AND (receipt.answer ->> 'until')::timestamptz > clock_timestamp()
  AND (receipt.answer ->> 'until')::timestamptz <= sleeping.available_at + interval '1 second'
"""

# A part of the replay of jobs whose last error was the time-out of a wait, which would be over at
# once. Those that the handler has caught stay over.
TIMEOUT = f"{SignalTimeout.__module__}.{SignalTimeout.__qualname__}: {SignalTimeout.TEXT}"
NAME = f"substr(receipt.key, {len(SIGNAL_KEY) + 1})"
TEXT = TIMEOUT.replace("'", "''").format(f"' || {NAME} || '")
DIED_OF_IT = f"starts_with(job.last_error, '{TEXT}')"
FORGET_TIMEOUTS = f"""
    DELETE FROM django_jobs_receipt AS receipt USING django_jobs_job AS job
    WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'dead'
      AND receipt.job_id = job.id AND starts_with(receipt.key, '{SIGNAL_KEY}')
      AND jsonb_exists(receipt.answer, 'over')
      AND {DIED_OF_IT}"""

# A part of the restart of cancelled steps: what they waited for may have timed out since. One that
# died of a time-out was dismissed.
FORGET_MISSED = f"""
    DELETE FROM django_jobs_receipt AS receipt USING django_jobs_job AS job
    WHERE job.id = ANY(%(ids)s::bigint[]) AND job.status = 'cancelled'
      AND receipt.job_id = job.id AND starts_with(receipt.key, '{SIGNAL_KEY}')
      AND (receipt.answer ->> 'until')::timestamptz <= clock_timestamp()
      AND (NOT jsonb_exists(receipt.answer, 'over') OR {DIED_OF_IT})
      AND NOT coalesce(jsonb_exists(job.signals, {NAME}), false)"""


@dataclass(frozen=True, slots=True)
class Wait:
    """How a wait for a signal stands. ``data`` is JSON text, in a tuple, if the signal arrived.
    ``left`` is in seconds; None without a time-out."""

    data: tuple[str] | None
    is_over: bool
    left: float | None


def begin_sleep(job: ClaimedJob, key: str, seconds: float) -> float:
    """Begin a sleep of ``seconds``, unless an earlier attempt did. Return how many are left, which
    may be negative. Raises :class:`LeaseLost` if the job is no longer its worker's."""
    rows = fetch(BEGIN_SLEEP, _parameters(job, SLEEP_KEY + key, seconds))
    if not rows:
        raise lease_lost(job)
    return float(rows[0][0])


def begin_wait(job: ClaimedJob, name: str, seconds: float | None) -> Wait:
    """Begin a wait for the signal ``name``, for at most ``seconds``, unless an earlier attempt did.
    Raises :class:`LeaseLost` if the job is no longer its worker's."""
    rows = fetch(BEGIN_WAIT, {"name": name, **_parameters(job, SIGNAL_KEY + name, seconds)})
    if not rows:
        raise lease_lost(job)
    arrived, data, is_over, left = rows[0]
    return Wait((data,) if arrived and not is_over else None, is_over, left)


def _parameters(job: ClaimedJob, key: str, seconds: float | None) -> dict[str, object]:
    fence = {"id": job.id, "attempt": job.attempt, "worker": job.worker}
    return {**fence, "key": key, "seconds": seconds}
