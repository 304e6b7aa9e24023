"""The job types that workers have handlers for: jobs of others hold no slots.

A job that no running worker can run, of a type whose handler was removed or is deployed next, would
keep a slot for as long as it is ready.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from math import inf

from .. import registry
from ..models.database import fetch, jobs_connection
from ..models.worker import IS_ALIVE

RECENT_SECONDS = 1.0

# Workers of one release are alike: each kind is read once. Those of a release before versions were
# reported read any.
OF_WORKERS = f"""
SELECT known.name, max(CASE WHEN worker.payload_versions IS NULL THEN 2147483647
    ELSE coalesce((worker.payload_versions -> known.name)::integer, 1) END)
FROM (
    SELECT DISTINCT ON (jsonb_hash_extended(job_types, 0), payload_versions)
        job_types, payload_versions
    FROM django_jobs_worker AS worker WHERE status = 'running' AND {IS_ALIVE}) AS worker
CROSS JOIN LATERAL jsonb_array_elements_text(worker.job_types) AS known (name)
GROUP BY known.name
"""

_recent: dict[str, tuple[float, dict[str, int]]] = {}


def forget_recent() -> None:
    _recent.clear()


def of_running_workers() -> dict[str, int]:
    """The newest payload version that a running worker reads, by the name of a job type."""
    return dict(fetch(OF_WORKERS, {}))


def enough_for(heads: Mapping[str, int]) -> dict[str, int]:
    """The same for an admission: of this process, and of the other workers too if a line begins
    with a job that this process cannot run. The others may be as of a second ago."""
    own = registry.versions()
    if all(own.get(name, 0) >= version for name, version in heads.items()):
        return own
    alias, now = jobs_connection().alias, time.monotonic()
    read_at, others = _recent.get(alias, (-inf, {}))
    if now - read_at > RECENT_SECONDS:
        others = of_running_workers()
        _recent[alias] = now, others
    return {name: max(own.get(name, 0), others.get(name, 0)) for name in own.keys() | others.keys()}


def parameters(versions: Mapping[str, int]) -> Mapping[str, str]:
    return {"types": _as_json(tuple(versions.items()))}


def own_parameters() -> Mapping[str, str]:
    """The same for what this process can run."""
    return parameters(registry.versions())


# For each settle: to write two hundred names takes 0.1 ms.
@lru_cache(maxsize=10)
def _as_json(versions: tuple[tuple[str, int], ...]) -> str:
    return json.dumps(dict(versions))
