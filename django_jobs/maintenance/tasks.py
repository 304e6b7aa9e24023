"""The maintenance tasks that every worker has."""

from __future__ import annotations

from ..conf import conf
from ..domain.maintenance import MaintenanceTask
from ..lifecycle import pausing, pruning, reaping, run_totals
from ..lifecycle.operations import quarantines, workflows
from ..lifecycle.signalling import send_job_signals
from . import backlog_samples, bulk_operations
from .dead_letters import prune_dead_letters
from .history import Partitions
from .pressure import watch_pressure
from .quarantine import Quarantining
from .retention import EVERY_SECONDS, Retention
from .run_totals import EVERY_SECONDS as FOLD_SECONDS
from .run_totals import Folding


def maintenance_tasks() -> list[MaintenanceTask]:
    """New instances of all maintenance tasks. Each remembers where it stopped. ``SWEEP_SECONDS``
    bounds how late a job of a lost worker is taken over."""
    sweep = conf().sweep_seconds
    tasks = [
        MaintenanceTask(name="reaping", every=sweep, batch=reaping.BATCH, run_once=reap_once),
        MaintenanceTask(
            name="dead_letters",
            every=EVERY_SECONDS,
            batch=pruning.PAGE,
            run_once=prune_dead_letters,
        ),
        MaintenanceTask(
            name="retention",
            every=EVERY_SECONDS,
            batch=pruning.PAGE,
            run_once=Retention().run_once,
        ),
        MaintenanceTask(
            name="partitions", every=EVERY_SECONDS, batch=1, run_once=Partitions().run_once
        ),
        MaintenanceTask(
            name="quarantining",
            every=sweep,
            batch=quarantines.PAGE,
            run_once=Quarantining().run_once,
        ),
        MaintenanceTask(name="cancels", every=sweep, batch=1, run_once=workflows.finish_cancel),
        MaintenanceTask(
            name="bulk_operations",
            every=bulk_operations.EVERY_SECONDS,
            batch=2,
            run_once=bulk_operations.run_chunk,
        ),
        MaintenanceTask(
            name="slots", every=sweep, batch=pausing.BATCH, run_once=pausing.give_up_slots_of_closed
        ),
        MaintenanceTask(name="pressure", every=sweep, batch=1_000, run_once=watch_pressure),
    ]
    if conf().totals:
        fold, folding = run_totals.BATCH, Folding().run_once
        tasks += [
            MaintenanceTask(name="totals", every=FOLD_SECONDS, batch=fold, run_once=folding),
            MaintenanceTask(
                name="backlog_samples",
                every=backlog_samples.EVERY_SECONDS,
                batch=1_000_000,
                run_once=backlog_samples.sample_backlogs,
            ),
        ]
    return tasks


def reap_once() -> int:
    """Settle one batch of abandoned jobs and send their signals; return how many."""
    settled = reaping.reap()
    send_job_signals(settled)
    return len(settled)
