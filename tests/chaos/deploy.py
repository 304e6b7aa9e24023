"""A deploy in the midst of the storm: a job type that no worker has a handler for before.

Its jobs stand at the head of a line that others need, from the begin of the storm. Trees that start
later know it, the others do not, until all were started again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .partitions import Database

NEWCOMER = "chaos.newcomer"
ACCOUNT = 24

TAKEN_TOO_EARLY = """
SELECT count(*) FROM accounts.slot WHERE job_type = %s AND change > 0 AND at < to_timestamp(%s)
"""

# Of the same key, while a newcomer stood before them.
PASSED_BY = """
SELECT count(*) FROM accounts.slot
WHERE gate = 'key one' AND job_type <> %s AND change > 0 AND at < to_timestamp(%s)
  AND at > (SELECT min(created_at) FROM django_jobs_job WHERE job_type = %s)
"""


def is_known() -> bool:
    """Whether the code of this process has the handler: that of who asks for jobs always, that of a
    tree if it starts after the deploy."""
    return "CHAOS_TREE" not in os.environ or _file(Path(os.environ["CHAOS_EFFECTS"])).exists()


def deploy(effects: Path) -> None:
    """From now on processes start with the new code."""
    _file(effects).touch()


def _file(effects: Path) -> Path:
    return effects.with_suffix(".deployed")


def problems(database: Database, deployed_at: float) -> Iterator[tuple[int, str]]:
    """Jobs that held a slot before any worker could run them, and whether others passed them by."""
    ((early,),) = database.fetch(TAKEN_TOO_EARLY, [NEWCOMER, deployed_at])
    if early:
        yield ACCOUNT, f"{early} slots were taken by jobs that no worker could run"
    if not passed_by(database, deployed_at):
        yield ACCOUNT, "no job passed one by that no worker could run, so nothing was tried"


def passed_by(database: Database, deployed_at: float) -> int:
    """Jobs that got their slot while one that no worker could run stood before them."""
    ((count,),) = database.fetch(PASSED_BY, [NEWCOMER, deployed_at, NEWCOMER])
    return int(count)
