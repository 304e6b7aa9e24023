"""What the figures were measured on; without it they mean little."""

from __future__ import annotations

import os
import platform


def describe() -> dict[str, str]:
    """Versions, cores, load and what the server was told about durability."""
    import django
    import psycopg
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version'), current_setting('fsync'), "
            "current_setting('synchronous_commit'), current_setting('shared_buffers')"
        )
        version, fsync, synchronous_commit, buffers = cursor.fetchone()
    return {
        "PostgreSQL": version.split(" ")[0],
        "fsync": fsync,
        "synchronous_commit": synchronous_commit,
        "shared_buffers": buffers,
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
