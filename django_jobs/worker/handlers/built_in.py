"""The job types of this package: steps of workflows that wait, for a signal or for a time.

They crash no process, so a loss of their worker, however often, is no reason to give one up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...api import job
from ...api.validation import MOST_CRASHES
from ...domain.graph import SLEEP, WAIT
from ...exceptions import SignalTimeout

if TYPE_CHECKING:
    from ..context.run_context import RunContext


@job(name=WAIT, max_crashes=MOST_CRASHES)
def wait(
    name: str,
    timeout: float | None = None,
    on_timeout: str = "fail",
    fields: dict[str, str] | None = None,
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


def _this_run() -> RunContext:
    # Each process that enqueues imports this module, and a worker alone what a handler may do.
    from ..context.run_context import current_run

    run = current_run()
    assert run is not None
    return run
