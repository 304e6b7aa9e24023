"""``python -m tests.benchmarks.pgqueuer_drain COUNT async|threads BATCH``: a drain by PgQueuer.

Its best settings, as far as we found them: a pool of connections, so that a claim need not wait
for a write (one connection was slower), uvloop, and asyncio's own thread pool (cores + 4; 2, 4 and
16 threads were no faster). It writes what is done in batches of the same size. Handlers in threads
go through ``asyncio.to_thread``, as PgQueuer's own error message advises: it takes no plain
functions any more. Its tables are as it installs them: durability "durable", all of them logged.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

CONNECTIONS = 4
ENQUEUE = 5_000

# On the database's clock, like ours: from the first claim to the last that was written as done.
DRAINED = """
SELECT count(*) FILTER (WHERE status = 'successful') AS done,
    count(DISTINCT job_id) FILTER (WHERE status = 'successful') AS jobs,
    (SELECT count(*) FROM pgqueuer) AS left,
    extract(epoch FROM max(created) FILTER (WHERE status = 'successful')
                     - min(created) FILTER (WHERE status = 'picked'))::float8 AS seconds
FROM pgqueuer_log
"""


def nothing(job: Job) -> None:
    """A plain function."""


async def main(count: int, handlers: str, batch: int) -> dict[str, float]:
    """Install, fill, drain, uninstall."""
    # The URL as it stands, with what follows its question mark: an embedded server has a socket.
    pool = await asyncpg.create_pool(
        os.environ["DATABASE_URL"], min_size=CONNECTIONS, max_size=CONNECTIONS
    )
    async with pool:
        queries = Queries.from_asyncpg_pool(pool)
        if await queries.schema_is_installed():  # of a run that was killed
            await queries.uninstall()
        await queries.install()
        try:
            await _fill(queries, pool, count)
            await _drain(pool, handlers, batch)
            row = await pool.fetchrow(DRAINED)
        finally:
            await queries.uninstall()
    if (row["done"], row["jobs"], row["left"]) != (count, count, 0):
        raise RuntimeError(f"of {count} jobs: {dict(row)}")
    return {"rate": count / row["seconds"], "seconds": row["seconds"]}


async def _fill(queries: Queries, pool: asyncpg.Pool, count: int) -> None:
    for done in range(0, count, ENQUEUE):
        size = min(ENQUEUE, count - done)
        await queries.enqueue(["nothing"] * size, [None] * size, [0] * size)
    await pool.execute("VACUUM (ANALYZE) pgqueuer")
    await pool.execute("VACUUM (ANALYZE) pgqueuer_log")
    await pool.execute("CHECKPOINT")


async def _drain(pool: asyncpg.Pool, handlers: str, batch: int) -> None:
    app = PgQueuer.from_asyncpg_pool(pool)
    if handlers == "async":

        @app.entrypoint("nothing")
        async def run(job: Job) -> None:
            nothing(job)

    else:

        @app.entrypoint("nothing")
        async def run_in_thread(job: Job) -> None:
            await asyncio.to_thread(nothing, job)

    await app.qm.run(batch_size=batch, mode=QueueExecutionMode.drain)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
    sys.stdout.write(json.dumps(found))
