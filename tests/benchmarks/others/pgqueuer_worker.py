"""``python -m tests.benchmarks.others.pgqueuer_worker``: PgQueuer's worker with the handler, which
is called in its event loop. The settings are those of the section ``peers``."""

from __future__ import annotations

import uvloop
from pgqueuer import PgQueuer
from pgqueuer.models import Job

from tests.benchmarks.pgqueuer_peer import pool_of_connections

from .handler import note


async def work() -> None:
    """Until it is terminated."""
    async with pool_of_connections() as pool:
        app = PgQueuer.from_asyncpg_pool(pool)

        @app.entrypoint("note")
        async def run(job: Job) -> None:
            note()

        await app.run(batch_size=100)


if __name__ == "__main__":
    uvloop.run(work())
