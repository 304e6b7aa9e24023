"""What the database was doing, for whoever reads the failure of a test."""

from __future__ import annotations

from pathlib import Path

import psycopg
from django.db import connection

SESSIONS = r"""
SELECT pid, datname, state, wait_event, pg_blocking_pids(pid),
    round(extract(epoch FROM clock_timestamp() - xact_start), 1),
    left(regexp_replace(query, '\s+', ' ', 'g'), 160)
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY datname, pid
"""

TITLE = "sessions of the database"
"""Of the section in the report of a failed test."""

TELLING = "still waiting for", "Process holding the lock", "duration:", "deadlock", "PANIC"
LAST_LINES = 20
PATIENCE = 20
"""Seconds for a server that a test has stopped; the report of a failure waits for no longer."""


def summary() -> str:
    """A line for each session of the server, and the last of the server's log that says who waited
    for whom and what took long, where it can be read."""
    try:
        # Not by Django, to which pytest allows no database at the end of a test.
        parameters = {**connection.get_connection_params(), "connect_timeout": PATIENCE}
        with psycopg.connect(**parameters, autocommit=True) as own:
            rows = own.execute(SESSIONS).fetchall()
            ((directory,),) = own.execute("SHOW data_directory").fetchall()
    except psycopg.Error as error:
        return f"the database does not tell: {error}"
    lines = [" | ".join(map(str, row)) for row in rows]
    log = Path(directory) / "log"
    if log.is_file():
        written = log.read_text(errors="replace").splitlines()
        waits = [line for line in written if any(word in line for word in TELLING)]
        lines += waits[-LAST_LINES:]
    return "\n".join(lines)
