"""Roles of the database for a worker that is to have few connections, or none any more."""

from __future__ import annotations

import os
import uuid
from urllib.parse import urlsplit

from tests.factories import run_sql


class Role:
    """A role of the database that may have few connections. One that is a superuser may have any
    number."""

    def __init__(self) -> None:
        self.name = f"few_{uuid.uuid4().hex[:8]}"
        run_sql(f"CREATE ROLE {self.name} LOGIN PASSWORD 'few'")
        run_sql(f"GRANT pg_read_all_data, pg_write_all_data TO {self.name}")
        server = urlsplit(os.environ["DATABASE_URL"])
        place = server.netloc.rpartition("@")[2]
        self.url = server._replace(netloc=f"{self.name}:few@{place}").geturl()

    def limit(self, connections: int) -> None:
        """Let it have so many from now on."""
        run_sql(f"ALTER ROLE {self.name} CONNECTION LIMIT {connections}")

    def cut_off(self) -> None:
        """For it the database is away: it has no connection and gets none."""
        self.limit(0)
        run_sql(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            f"WHERE usename = '{self.name}'"
        )

    def drop(self) -> None:
        """Remove it."""
        run_sql(f"DROP ROLE {self.name}")
