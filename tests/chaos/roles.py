"""Roles of the server with a limit of connections, and what becomes of a worker that cannot have
those that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.clusters import PROJECT, Cluster

from . import plan
from .history import History
from .resources import MOST, THREADS
from .timing import GRACE, LEASE

CONNECTIONS = PROJECT / "docs" / "connections.md"
PLENTY, ENOUGH, TOO_FEW = "plenty", "enough", "too_few"
LIMITS = {PLENTY: -1, ENOUGH: MOST + 2 * THREADS, TOO_FEW: 2}
"""Connections: any number; what docs/connections.md says that a tree needs, with an isolated child
for each thread; one less than what claims, settles and renews."""

GRANTS = re.findall(r"^GRANT [^;]* TO worker;", CONNECTIONS.read_text(), re.MULTILINE)
"""Of docs/connections.md, for workers."""

# And what is the project's own: the table of its handlers, and the role that they take for a
# tenant.
MAKE = """
CREATE ROLE {name} LOGIN CONNECTION LIMIT {limit};
GRANT USAGE ON SCHEMA public TO {name};
{grants}
GRANT INSERT ON chaos_mark TO {name};
GRANT SELECT (id) ON chaos_mark TO {name};
GRANT chaos_tenant TO {name};
"""

CLAIMED = """
SELECT job.id, job.attempt, extract(epoch FROM job.claimed_at)::float8
FROM django_jobs_job AS job
JOIN django_jobs_worker AS worker ON worker.id = job.worker_id AND worker.name = %(name)s
UNION ALL
SELECT run.job_id, run.attempt, extract(epoch FROM run.claimed_at)::float8
FROM django_jobs_run AS run
JOIN django_jobs_worker AS worker ON worker.id = run.worker_id AND worker.name = %(name)s
"""


def make(cluster: Cluster) -> None:
    """Before any worker starts."""
    cluster.execute("CREATE ROLE chaos_tenant NOLOGIN")
    for name, limit in LIMITS.items():
        grants = "\n".join(GRANTS).replace("TO worker;", f"TO {name};")
        cluster.execute(MAKE.format(name=name, limit=limit, grants=grants))


def problems(cluster: Cluster, directory: Path, history: History) -> Iterator[tuple[int, str]]:
    """The worker with too few has claimed nothing, and has said how many it needs. Where the server
    ended the connection of its heartbeat, what claims and settles may have taken the two: until the
    lease is over it does not know."""
    cut = [fault for fault in history.faults if fault.kind == plan.TERMINATE] + history.outages
    claimed = [
        (job, attempt)
        for job, attempt, at in cluster.fetch(CLAIMED, {"name": TOO_FEW})
        if not any(one.at <= at <= max(one.at, one.until) + LEASE + GRACE for one in cut)
    ]
    if claimed:
        yield 15, f"claimed with too few connections: {len(claimed)}, such as {claimed[:3]}"
    log = (directory / f"worker-{TOO_FEW}.log").read_text(errors="replace")
    if f"needs {MOST} connections" not in log:
        yield 15, f"a worker with too few connections did not say how many it needs: {log[-500:]!r}"
