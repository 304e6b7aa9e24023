"""A role of the server with a limit of connections."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from tests.clusters import Cluster

from .resources import MOST, THREADS

ENOUGH = "enough"
LIMITS = {ENOUGH: MOST + 2 * THREADS}
"""What docs/operations.md says that a tree needs, with an isolated child for each thread."""

# What docs/operations.md grants to the role of a worker, and the role that a tenant's jobs take.
MAKE = """
CREATE ROLE {name} LOGIN CONNECTION LIMIT {limit};
GRANT USAGE ON SCHEMA public TO {name};
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name};
GRANT chaos_tenant TO {name};
"""


def make(cluster: Cluster) -> None:
    """Before any worker starts."""
    cluster.execute("CREATE ROLE chaos_tenant NOLOGIN")
    for name, limit in LIMITS.items():
        cluster.execute(MAKE.format(name=name, limit=limit))


def url(of: str, role: str) -> str:
    """The same database for ``role``."""
    parts = urlsplit(of)
    _, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{role}@{place}"))
