"""Stores the backlogs of queues with the forecasts made of them, to know how far those were off."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import NamedTuple

from django.db import OperationalError

from ..domain.pressure import Rates, drain_seconds, rates_of
from ..models.database import execute, fetch, is_canceled, statement_limit
from .backlog import MOST_COUNTED, ready_up_to
from .pruning import SUCCESSES_KEPT, queues_without_successes

SECONDS_KEPT = 6 * 3600
RATE_SECONDS = 300
"""The time from whose begin and end the rates are known."""

FEWEST_SECONDS = 30
"""A shorter time has no rates: runs are counted some seconds late."""

COUNTED_SECONDS = 60
"""The rates are not known if new runs wait and none was counted for longer."""

JUDGED_SECONDS = 300
"""Forecasts of less are not judged."""

FRESH_SECONDS = 150
"""The greatest age of a sample that stands for a backlog that is not counted now."""

COUNTING_SECONDS = 2.0
"""How long a sample may count ready jobs that are too many for other counts, over all queues."""

NONE_RECENT = """NOT EXISTS (
    SELECT FROM django_jobs_backlogsample
    WHERE taken_at > now() - make_interval(secs => %(recent)s::float8) AND taken_at <= now())"""
READY = f"""
SELECT queue.name, {ready_up_to("%(most)s")} FROM django_jobs_queue AS queue
WHERE {NONE_RECENT}
"""
# Without a LIMIT, which would sort them where the planner reads the table.
COUNT_ALL = """
SELECT count(*) FROM django_jobs_job_live WHERE status = 'ready' AND queue = %(queue)s
"""
COLUMNS = ("queues", "ready", "running", "runs", "seconds")
# Of several sessions that found none recent one stores its samples. After the clock of the server
# was set back, the samples of the future are the last ones for long.
STORE = f"""
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('django_jobs.backlog_samples', 0))
        AND {NONE_RECENT} AS is_ours
), drained AS (
    UPDATE django_jobs_backlogsample SET drained_at = now()
    WHERE queue = ANY(%(drained)s::text[]) AND drained_at IS NULL AND drain_seconds > 0
      AND (SELECT is_ours FROM turn)
), pruned AS (
    DELETE FROM django_jobs_backlogsample
    WHERE (taken_at < now() - make_interval(secs => %(kept)s::float8) OR taken_at > now())
      AND (SELECT is_ours FROM turn)
)
INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs, drain_seconds)
SELECT queue, now(), ready, running, runs, drain_seconds
FROM unnest(%(queues)s::text[], %(ready)s::bigint[], %(running)s::bigint[], %(runs)s::bigint[],
    %(seconds)s::float8[]) AS sample (queue, ready, running, runs, drain_seconds)
WHERE (SELECT is_ours FROM turn)
ON CONFLICT DO NOTHING
"""

# The rates are those since the oldest sample of the last minutes, or after the last pause. They
# reach to the last sample if the ready jobs are too many to be counted now. Runs are those that are
# counted, which is some seconds ago. The error is the median of all forecasts that came true since,
# or that are overdue; a pause was not foreseen, so those that it delayed are left out. Samples know
# the end to a minute, so shorter forecasts would measure that minute.
PAST = f"""
WITH totals AS (
    SELECT queue, sum(runs)::bigint AS runs FROM django_jobs_runtotal WHERE period = 0
    GROUP BY queue
), counted AS (
    SELECT coalesce(pg_sequence_last_value('django_jobs_run_id_seq'), 0) <= coalesce(max(run_id), 0)
        OR coalesce(max(reached_at) >= now() - interval '{COUNTED_SECONDS} s', false) AS lately
    FROM django_jobs_runwatermark WHERE id = 1
), running AS (
    SELECT queue, count(*) AS jobs FROM (
        SELECT queue FROM django_jobs_job_live WHERE status = 'running'
        ORDER BY worker_id LIMIT %(most)s) AS job
    GROUP BY queue
), judged AS (
    SELECT sample.queue, count(*) AS forecasts,
        percentile_cont(0.5) WITHIN GROUP (
            ORDER BY abs(drain_seconds - actual) / greatest(actual, 1)) AS error_ratio
    FROM django_jobs_backlogsample AS sample JOIN django_jobs_queue AS line
        ON line.name = sample.queue CROSS JOIN LATERAL (
        SELECT date_part('epoch', coalesce(drained_at, now()) - taken_at) AS actual) AS taken
    WHERE drain_seconds >= {JUDGED_SECONDS}
      AND (drained_at IS NOT NULL OR actual > drain_seconds AND line.paused_at IS NULL)
      AND (line.resumed_at IS NULL OR line.resumed_at NOT BETWEEN taken_at
           AND coalesce(drained_at, now()))
    GROUP BY sample.queue
)
SELECT queue.name, coalesce(totals.runs, 0), coalesce(running.jobs, 0), counted.lately,
    date_part('epoch', now() - sample.taken_at), sample.ready, sample.running, sample.runs,
    date_part('epoch', now() - last.taken_at), last.ready, last.running, last.runs,
    coalesce(judged.forecasts, 0), judged.error_ratio,
    ({SUCCESSES_KEPT})::text
FROM django_jobs_queue AS queue
CROSS JOIN counted
LEFT JOIN totals ON totals.queue = queue.name
LEFT JOIN running ON running.queue = queue.name
LEFT JOIN judged ON judged.queue = queue.name
LEFT JOIN LATERAL (
    SELECT taken_at, ready, running, runs FROM django_jobs_backlogsample
    WHERE queue = queue.name AND queue.paused_at IS NULL
      AND taken_at >= greatest(now() - make_interval(secs => %(seconds)s::float8), queue.resumed_at)
    ORDER BY taken_at LIMIT 1) AS sample ON true
LEFT JOIN LATERAL (
    SELECT taken_at, ready, running, runs FROM django_jobs_backlogsample
    WHERE queue = queue.name AND taken_at >= sample.taken_at
    ORDER BY taken_at DESC LIMIT 1) AS last ON true
"""


class Past(NamedTuple):
    """What is known of a queue: its runs, whether they were counted lately, its running jobs, its
    oldest and its last sample of the last five minutes after any pause, and how far its past
    forecasts were off. The ready jobs of a sample are None if they were too many to count.
    ``retention`` is what the queue says of successes, as JSON."""

    runs: int
    running: int
    counted: bool
    seconds: float | None
    ready_before: int | None
    running_before: int | None
    runs_before: int | None
    last_seconds: float | None
    last_ready: int | None
    last_running: int | None
    last_runs: int | None
    forecasts: int
    error_ratio: float | None
    retention: str | None = None

    @property
    def leaves_runs(self) -> bool:
        """Whether its successes leave runs, without which no rate is known."""
        own = {} if self.retention is None else {"": json.loads(self.retention)}
        return not queues_without_successes([""], own)

    @property
    def is_young(self) -> bool:
        """Whether no sample is old enough, since the queue or its last pause began or ended."""
        return self.seconds is None or self.seconds < FEWEST_SECONDS

    def rates(self, ready: int | None) -> Rates | None:
        """The rates of a queue that has ``ready`` ready jobs now, or if that is None, those up to
        its last sample. None if there is no sample of half a minute before, if a sample is old or
        was not counted to its end, or if runs are no longer counted, or are not left."""
        if not (self.counted and self.leaves_runs):
            return None
        if ready is not None:
            return self._rates_until(ready, self.running, self.runs, 0.0)
        if self.last_seconds is None or self.last_seconds > FRESH_SECONDS:
            return None
        return self._rates_until(
            self.last_ready, self.last_running, self.last_runs, self.last_seconds
        )

    def _rates_until(
        self, ready: int | None, running: int | None, runs: int | None, ago: float
    ) -> Rates | None:
        if self.seconds is None or self.seconds - ago < FEWEST_SECONDS:
            return None
        if self.ready_before is None or ready is None:
            return None
        assert self.running_before is not None
        assert self.runs_before is not None
        assert running is not None
        assert runs is not None
        return rates_of(
            ready=(self.ready_before, ready),
            running=(self.running_before, running),
            ended=runs - self.runs_before,
            seconds=self.seconds - ago,
        )

    def drain_seconds(self, ready: int | None) -> float | None:
        """In how many seconds the ``ready`` jobs, or if that is None, those of the last sample,
        will be drained; None if that is not known, or they do not become fewer."""
        rates = self.rates(ready)
        if ready is not None:
            return drain_seconds(ready, None if rates is None else rates.drained)
        if rates is None or self.last_ready is None or self.last_seconds is None:
            return None
        seconds = drain_seconds(self.last_ready, rates.drained)
        return None if seconds is None else max(seconds - self.last_seconds, 0.0)

    @property
    def claims(self) -> int | None:
        """How many jobs were claimed since the sample; None if that is not known."""
        if self.running_before is None or self.runs_before is None:
            return None
        if not (self.counted and self.leaves_runs):
            return None
        return max(self.running - self.running_before + self.runs - self.runs_before, 0)


class Sample(NamedTuple):
    """One queue now, and its drain seconds. ``ready``: None if there are too many to count."""

    queue: str
    ready: int | None
    running: int
    runs: int
    drain_seconds: float | None


def past(queue: str | None = None) -> dict[str, Past]:
    """What is known of each queue, or of one, by name."""
    sql = PAST if queue is None else f"{PAST}WHERE queue.name = %(queue)s"
    parameters = {"seconds": RATE_SECONDS + 30, "most": MOST_COUNTED, "queue": queue}
    return {name: Past(*found) for name, *found in fetch(sql, parameters)}


def ready_jobs(recent: float) -> dict[str, int | None]:
    """The ready jobs of each queue, or nothing if there is a sample of the last ``recent`` seconds.
    Up to 100,000 are counted in any case, and the larger queues one after the other; None of those
    for which two seconds were too short."""
    until = time.monotonic() + COUNTING_SECONDS
    return {
        queue: ready if ready < MOST_COUNTED else count_all(queue, until - time.monotonic())
        for queue, ready in fetch(READY, {"most": MOST_COUNTED, "recent": recent})
    }


def count_all(queue: str, seconds: float) -> int | None:
    """All ready jobs of a queue; None if to count them takes longer."""
    if seconds <= 0:
        return None
    try:
        with statement_limit(seconds):
            ((ready,),) = fetch(COUNT_ALL, {"queue": queue})
    except OperationalError as error:
        if not is_canceled(error):
            raise
        return None
    return int(ready)


def store(samples: Sequence[Sample], recent: float) -> int:
    """Store the backlogs, note which queues are drained, and delete old samples; return how many
    were stored: none if another session has stored some in the last ``recent`` seconds."""
    columns = dict(zip(COLUMNS, map(list, zip(*samples, strict=True)), strict=True))
    drained = [sample.queue for sample in samples if sample.ready == 0]
    rows = {**columns, "drained": drained, "kept": SECONDS_KEPT, "recent": recent}
    return execute(STORE, rows)
