"""``python -m tests.benchmarks.others NAME VERB [COUNT]``: a producer of one of the queues.

``install`` makes its tables. ``enqueue COUNT`` prints the seconds of so many calls, one after the
other, each its own transaction. ``each`` enqueues one for each line that it reads, and prints the
time after it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

Enqueue = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def of_ours() -> AsyncIterator[Enqueue]:
    """This package."""
    import django

    django.setup()
    from .jobs import note_job

    async def enqueue() -> None:
        note_job.enqueue()

    yield enqueue


@asynccontextmanager
async def of_django() -> AsyncIterator[Enqueue]:
    """One of the backends of Django's Tasks."""
    import django

    django.setup()
    from .tasks import note_task

    async def enqueue() -> None:
        note_task.enqueue()

    yield enqueue


@asynccontextmanager
async def of_celery() -> AsyncIterator[Enqueue]:
    """Celery with Redis."""
    from .celery_app import note_task

    async def enqueue() -> None:
        note_task.delay()

    yield enqueue


@asynccontextmanager
async def of_oban() -> AsyncIterator[Enqueue]:
    """Oban, on a pool of connections."""
    from oban import Oban

    from .oban_worker import Note

    pool = await Oban.create_pool(dsn=os.environ["DATABASE_URL"], min_size=1, max_size=4)
    try:
        oban = Oban(pool=pool, queues={})
        yield lambda: oban.enqueue(Note.new({}))
    finally:
        await pool.close()


@asynccontextmanager
async def of_pgqueuer() -> AsyncIterator[Enqueue]:
    """PgQueuer, on a pool of connections."""
    from pgqueuer import Queries

    from tests.benchmarks.pgqueuer_peer import pool_of_connections

    async with pool_of_connections() as pool:
        queries = Queries.from_asyncpg_pool(pool)
        yield lambda: queries.enqueue("note", None)


PRODUCERS = {
    "django_jobs": of_ours,
    "dj_queue": of_django,
    "django_ox": of_django,
    "celery": of_celery,
    "oban": of_oban,
    "pgqueuer": of_pgqueuer,
}


async def install(name: str) -> None:
    """Make the tables."""
    if name == "oban":
        from oban import Oban
        from oban.schema import install

        pool = await Oban.create_pool(dsn=os.environ["DATABASE_URL"], min_size=1, max_size=1)
        await install(pool)
        await pool.close()
    elif name == "pgqueuer":
        from pgqueuer import Queries

        from tests.benchmarks.pgqueuer_peer import pool_of_connections

        async with pool_of_connections() as pool:
            await Queries.from_asyncpg_pool(pool).install()
    elif name != "celery":
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0, skip_checks=True)


async def main(name: str, verb: str, count: str = "0") -> None:
    if verb == "install":
        await install(name)
        return
    async with PRODUCERS[name]() as enqueue:
        if verb == "enqueue":
            await enqueue()  # connects
            begun = time.perf_counter()
            for _ in range(int(count)):
                await enqueue()
            print(time.perf_counter() - begun)
        else:
            for _ in sys.stdin:
                await enqueue()
                print(time.time(), flush=True)


if __name__ == "__main__":
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # the calls of the other queues are coroutines
    asyncio.run(main(*sys.argv[1:]))
