"""The job types of this package: steps of workflows that wait, for a signal or for a time; the
step that ends a workflow within another one; and the call to a client at the end of its job.

They crash no process, so a loss of their worker, however often, is no reason to give one up.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...api import job
from ...api.validation import MOST_CRASHES
from ...domain.backoff import Backoff
from ...domain.workflows import CALLBACK, END, SLEEP, WAIT, Fate, Skipped
from ...exceptions import ResultNotStored, SignalTimeout, Skip

if TYPE_CHECKING:
    from ..context.run_context import RunContext


@job(name=WAIT, max_crashes=MOST_CRASHES)
def wait(
    name: str,
    timeout: float | None = None,
    on_timeout: str = "fail",
    fields: list[list[str]] | None = None,
) -> Any:
    """Wait for a signal, and return its data. After ``timeout`` seconds the job is dead, or, with
    ``on_timeout="continue"``, returns None. ``fields`` are those of its form in the admin."""
    try:
        return _this_run().wait_for(name, timeout)
    except SignalTimeout:
        if on_timeout == "continue":
            return None
        raise


@job(name=SLEEP, max_crashes=MOST_CRASHES)
def sleep(seconds: float) -> None:
    """Sleep for so long from the first attempt."""
    _this_run().sleep("sleep", seconds)


@job(
    name=CALLBACK,
    max_attempts=12,  # in about a day
    max_crashes=MOST_CRASHES,
    backoff=Backoff.exponential(5, factor=4, cap=6 * 3600),
    timeout=30,
)
def call_back(job_id: int, link: str) -> None:
    """POST to the address in the headers of a job that it has ended."""
    from .callbacks import call_at_end

    call_at_end(job_id, link)


class _Failed(Skip):
    """A retry of the step that failed brings back one that is skipped so."""

    skipped = Skipped.FAILED


@job(name=END, max_crashes=MOST_CRASHES)
def end(last: str | None = None) -> Any:
    """Succeed if no step before failed and one succeeded, with the result of ``last``, if any."""
    from ...lifecycle.workflows.results import fates_before

    run = _this_run()
    fates = fates_before(run.job_id)
    if failed := fates.get(Fate.FAILED):
        raise _Failed(f"{failed} did not succeed")
    if Fate.SUCCEEDED not in fates:
        raise Skip("all its steps were skipped")
    with suppress(ResultNotStored):  # who takes it hears of that
        return None if last is None else run.results[last]


def _this_run() -> RunContext:
    # Each process that enqueues imports this module, and a worker alone what a handler may do.
    from ..context.run_context import current_run

    run = current_run()
    assert run is not None
    return run
