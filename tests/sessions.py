"""What the database was doing, for whoever reads the failure of a test."""

from __future__ import annotations

from pathlib import Path

from django.db import Error

from tests.factories import another_connection

SESSIONS = r"""
SELECT pid, datname, state, wait_event, pg_blocking_pids(pid),
    round(extract(epoch FROM clock_timestamp() - xact_start), 1),
    left(regexp_replace(query, '\s+', ' ', 'g'), 160)
FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY datname, pid
"""

TELLING = "still waiting for", "Process holding the lock", "duration:", "deadlock", "PANIC"
LAST_LINES = 40


def told() -> str:
    """A line for each session of the server, and the last of the server's log that says who waited
    for whom and what took long, where it can be read."""
    try:
        with another_connection() as own, own.cursor() as cursor:
            cursor.execute(SESSIONS)
            rows = cursor.fetchall()
            cursor.execute("SHOW data_directory")
            (directory,) = cursor.fetchone()
    except Error as error:
        return f"the database does not tell: {error}"
    lines = [" | ".join(map(str, row)) for row in rows]
    log = Path(directory) / "log"
    if log.is_file():
        written = log.read_text(errors="replace").splitlines()
        waits = [line for line in written if any(word in line for word in TELLING)]
        lines += waits[-LAST_LINES:]
    return "\n".join(lines)
