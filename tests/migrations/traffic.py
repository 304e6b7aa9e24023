"""Clients that run the statements of the previous release, while the tables are migrated and after.

The statements are copies, because those of the package change with its schema.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import psycopg

from tests.patience import PATIENCE
from tests.worker.processes import until

FILL_JOBS = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, crashes, max_attempts, max_crashes, last_error, reason,
    replays, headers, created_at, finished_at)
SELECT 'default', 'app.noop', '{}', 1, %(status)s::text, 0, n, now(), 0, 0, 0, 5, 3, '', '', 0,
    '{}', now(), now()
FROM generate_series(1, %(count)s::integer) AS n
"""
FILL_RUNS = """
INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at, started_at,
    finished_at, error_type, error_message, traceback, fingerprint)
SELECT n, 1, CASE WHEN n %% 100 = 0 THEN 'lost' ELSE 'succeeded' END, now(), now(), now(), now(),
    CASE WHEN n %% 100 = 0 THEN 'Crashed' ELSE '' END, '', '', ''
FROM generate_series(1, %(count)s::integer) AS n
"""
BOOT = """
INSERT INTO django_jobs_worker (name, host, pid, queues, threads, pools, code_version, job_types,
    status, started_at, heartbeat_at, lease_expires_at, stop_reason)
VALUES ('old', 'test', 1, '["default"]', 1, '[]', '', '["app.noop"]', 'running', now(), now(),
    now() + interval '1 hour', '')
RETURNING id
"""
ENQUEUE = """
INSERT INTO django_jobs_job_live (
    queue, job_type, payload, payload_version, status, priority, rank, available_at,
    attempt, failures, crashes, max_attempts, max_crashes, backoff, timeout,
    last_error, reason, replays, headers, created_at)
VALUES ('web', 'app.noop', '{}', 1, 'ready', 0, date_part('epoch', statement_timestamp()),
    statement_timestamp(), 0, 0, 0, 5, 3, NULL, NULL, '', '', 0, '{}', statement_timestamp())
RETURNING id, status, rank, available_at, NULL, created_at
"""
CLAIM = """
WITH picked AS MATERIALIZED (
    SELECT id FROM django_jobs_job_live
    WHERE queue = 'default' AND status = 'ready'
      AND (rank, id) > ('-infinity'::float8, 0::bigint)
      AND job_type = ANY(ARRAY['app.noop'])
      AND EXISTS (SELECT 1 FROM django_jobs_queue WHERE name = 'default'
                  AND paused_at IS NULL AND max_concurrency IS NULL)
      AND EXISTS (SELECT 1 FROM django_jobs_worker WHERE id = %(worker)s
                  AND status IN ('running', 'draining'))
    ORDER BY rank, id LIMIT 2 FOR UPDATE SKIP LOCKED
)
UPDATE django_jobs_job_live AS job
SET status = 'running', attempt = job.attempt + 1, worker_id = %(worker)s,
    claimed_at = clock_timestamp(), started_at = NULL
WHERE job.id = ANY(ARRAY(SELECT id FROM picked))
RETURNING job.id
"""
SETTLE = """
WITH updated AS (
    UPDATE django_jobs_job AS job
    SET status = 'succeeded', worker_id = NULL, finished_at = clock_timestamp()
    WHERE id = ANY(%(ids)s) AND worker_id = %(worker)s
      AND status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running', 'dead')
    RETURNING id, attempt, available_at, claimed_at
)
INSERT INTO django_jobs_run (job_id, attempt, outcome, worker_id, available_at, claimed_at,
    started_at, finished_at, error_type, error_message, traceback, fingerprint)
SELECT id, attempt, 'succeeded', %(worker)s, available_at, claimed_at, claimed_at,
    clock_timestamp(), '', '', '', ''
FROM updated
"""


class Traffic:
    """A worker and a website of that release, until the ``with`` block ends.

    An error of theirs is raised there. They are called ``NAME`` in the server's log.
    """

    NAME = "old_release"

    def __init__(self, url: str) -> None:
        self.claimed = self.enqueued = 0
        self.slowest = 0.0
        self._url = url
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(each,))
            for each in (self._work, self._work, self._visit)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        if self._errors and error is None:
            raise self._errors[0]

    def goes_on(self) -> None:
        """Wait for some more of both."""
        claimed, enqueued = self.claimed + 20, self.enqueued + 20
        until(lambda: self._errors or (self.claimed > claimed and self.enqueued > enqueued))

    def _run(self, each: Any) -> None:
        try:
            with psycopg.connect(
                self._url, autocommit=True, application_name=self.NAME
            ) as connection:
                ((worker,),) = connection.execute(BOOT).fetchall()
                while not self._over.wait(0.002):
                    begun = time.monotonic()
                    each(connection, worker)
                    self.slowest = max(self.slowest, time.monotonic() - begun)
        except BaseException as error:
            self._errors.append(error)

    def _work(self, connection: psycopg.Connection[Any], worker: int) -> None:
        ids = [pk for (pk,) in self._claim(connection, worker)]
        connection.execute(SETTLE, {"worker": worker, "ids": ids})
        self.claimed += len(ids)

    def _claim(self, connection: psycopg.Connection[Any], worker: int) -> list[Any]:
        """As that release does: again if the other worker has ended a job meanwhile."""
        while True:
            try:
                return connection.execute(CLAIM, {"worker": worker}).fetchall()
            except psycopg.errors.SerializationFailure:
                continue

    def _visit(self, connection: psycopg.Connection[Any], worker: int) -> None:
        connection.execute(ENQUEUE)
        self.enqueued += 1
