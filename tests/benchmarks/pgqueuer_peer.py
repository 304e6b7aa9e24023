"""``python -m tests.benchmarks.pgqueuer_peer MEASURE ARGUMENTS``: PgQueuer's part of ``peers``.

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
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.models import Job
from pgqueuer.types import QueueExecutionMode

CONNECTIONS = 4
ENQUEUE = 5_000
FIRST = 5

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


async def measure(work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """Install, work, uninstall. Returns what the work does."""
    # The URL as it stands, with what follows its question mark: an embedded server has a socket.
    async with pool_of_connections() as pool:
        queries = Queries.from_asyncpg_pool(pool)
        if await queries.schema_is_installed():  # of a run that was killed
            await queries.uninstall()
        await queries.install()
        try:
            return await work(queries, pool, *arguments)
        finally:
            await queries.uninstall()


def pool_of_connections() -> Any:
    """As many connections as a worker needs, made and closed by ``async with``."""
    url = os.environ["DATABASE_URL"]
    return asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS)


async def drain(queries: Queries, pool: asyncpg.Pool, count: int, handlers: str, batch: int) -> Any:
    """Jobs a second, from the first claim to the last end."""
    await _fill(queries, pool, count)
    await _drain(pool, handlers, batch)
    row = await pool.fetchrow(DRAINED)
    if (row["done"], row["jobs"], row["left"]) != (count, count, 0):
        raise RuntimeError(f"of {count} jobs: {dict(row)}")
    return count / row["seconds"]


async def enqueue(queries: Queries, pool: asyncpg.Pool, count: int) -> float:
    """Jobs a second, one after the other, each its own transaction."""
    begun = time.perf_counter()
    for _ in range(count):
        await queries.enqueue("nothing", None)
    return count / (time.perf_counter() - begun)


async def pickup(queries: Queries, pool: asyncpg.Pool, count: int, pause: float) -> list[float]:
    """Seconds from the return of each enqueue to the start of its handler, in another process that
    has nothing else to do. The first few are left out."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __spec__.name, "work"), stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    waits = []
    try:
        for _ in range(FIRST + count):
            await queries.enqueue("nothing", None)
            returned = time.time()
            waits.append(float(await worker.stdout.readline()) - returned)
            await asyncio.sleep(pause)
    finally:
        worker.terminate()
        await worker.wait()
    return waits[FIRST:]


async def work() -> None:
    """A worker whose handler prints when it started, until it is terminated."""
    async with pool_of_connections() as pool:
        app = PgQueuer.from_asyncpg_pool(pool)

        @app.entrypoint("nothing")
        async def run(job: Job) -> None:
            sys.stdout.write(f"{time.time()}\n")
            sys.stdout.flush()

        await app.run()


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


MEASURES = {"drain": drain, "enqueue": enqueue, "pickup": pickup}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1:] == ["work"]:
            runner.run(work())
        else:
            arguments = json.loads(sys.argv[2])
            sys.stdout.write(json.dumps(runner.run(measure(MEASURES[sys.argv[1]], *arguments))))
