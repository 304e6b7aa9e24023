"""Every event that is logged, with its levels and its keys. ``docs/reference/logging.md`` says when
each is logged, and tests hold the code and the page to this table."""

from __future__ import annotations

from dataclasses import dataclass
from logging import DEBUG, ERROR, INFO, WARNING

RESERVED = frozenset({"time", "level", "event", "logger", "message", "exception"})
"""The keys of every JSON line, which no event has."""

TRACE = ("trace_id", "span_id")
"""Keys of each event of a job whose attempt is traced."""


@dataclass(frozen=True, slots=True)
class Event:
    """The levels of an event, and all keys that it may have. Those without a value are omitted."""

    levels: tuple[int, ...]
    keys: tuple[str, ...]


def _event(level: int, keys: str, *levels: int) -> Event:
    of_job = TRACE if "attempt" in keys.split() else ()
    return Event((level, *levels), (*keys.split(), *of_job))


_ENDED = "job_id job_type queue attempt status outcome seconds error_code error reason"
_OPERATION_ENDED = "operation action by done left succeeded failed seconds reason"

EVENTS = {
    "job_succeeded": _event(DEBUG, _ENDED),
    "job_failed": _event(WARNING, _ENDED),
    "job_timed_out": _event(WARNING, _ENDED),
    "job_lost": _event(WARNING, _ENDED),
    "job_snoozed": _event(INFO, _ENDED),
    "job_cancelled": _event(INFO, _ENDED),
    "job_released": _event(INFO, _ENDED),
    "job_dead": _event(ERROR, _ENDED, WARNING),
    "supervisor_started": _event(INFO, "pid processes"),
    "supervisor_stopped": _event(INFO, "pid exit_code"),
    "worker_started": _event(INFO, "worker pid queues"),
    "worker_stopped": _event(INFO, "worker ended"),
    "no_fork": _event(WARNING, "pid cannot not_claimed"),
    "no_job_types": _event(WARNING, "hint"),
    "job_type_by_chance": _event(WARNING, "job_type module hint"),
    "code_changed": _event(WARNING, "files hint"),
    "unknown_job_type": _event(WARNING, "job_type jobs hint"),
    "worker_recycled": _event(INFO, "worker reason"),
    "draining": _event(INFO, "signal timeout worker asked"),
    "second_signal": _event(WARNING, "signal"),
    "process_died": _event(ERROR, "pid worker reason"),
    "process_killed": _event(WARNING, "pid worker reason overdue"),
    "isolated_job_died": _event(WARNING, "job_id attempt reason"),
    "heartbeat_died": _event(ERROR, "reason"),
    "heartbeat_hangs": _event(ERROR, "pid"),
    "health_metrics_refused": _event(WARNING, "host port"),
    "health_server_listens": _event(INFO, "host port"),
    "health_server_died": _event(ERROR, "reason"),
    "fenced": _event(ERROR, "worker reason"),
    "lease_lost": _event(WARNING, "job_id attempt worker jobs reason"),
    "stale_handlers": _event(ERROR, "worker jobs"),
    "claimed_twice": _event(ERROR, "worker given_back"),
    "loop_blocked": _event(WARNING, "job_id job_type attempt seconds at"),
    "stranded_jobs": _event(WARNING, "worker given_back"),
    "renewal_blocked": _event(WARNING, "worker"),
    "claim_blocked": _event(WARNING, "worker"),
    "settle_blocked": _event(WARNING, "job_id attempt jobs reason"),
    "hook_failed": _event(ERROR, "job_id job_type attempt hook"),
    "on_commit_failed": _event(ERROR, "job_id job_type attempt"),
    "receiver_failed": _event(ERROR, "job_id job_type queue attempt"),
    "crash_recovery_failed": _event(ERROR, "worker error"),
    "crash_recovery_blocked": _event(WARNING, "worker"),
    "database_clock_jumped": _event(WARNING, "seconds"),
    "unsettleable": _event(ERROR, "job_id attempt error"),
    "not_given_back": _event(WARNING, "job_id attempt error"),
    "schedule_error": _event(ERROR, "schedule reason"),
    "schedule_paused": _event(WARNING, "schedule reason"),
    "dead_not_pruned": _event(ERROR, "queue job_type reason"),
    "partition_dropped": _event(INFO, "partition"),
    "job_type_quarantined": _event(ERROR, "job_type reason"),
    "breaker_opened": _event(WARNING, "resource reason by"),
    "breaker_half_opened": _event(INFO, "resource reason"),
    "breaker_closed": _event(INFO, "resource reason by"),
    "pause_ended": _event(INFO, "kind name"),
    "alert_sent": _event(INFO, "rule situations"),
    "alert_failed": _event(WARNING, "rule situations reason"),
    "http_refused": _event(INFO, "status method reason error"),
    "compensation_failed": _event(ERROR, "run workflow steps"),
    "workflow_miscounted": _event(ERROR, "run workflow"),
    "step_signalled": _event(INFO, "run step by reason"),
    "operation_started": _event(INFO, "operation action by matched reason"),
    "operation_completed": _event(INFO, _OPERATION_ENDED),
    "operation_stopped": _event(WARNING, _OPERATION_ENDED),
    "operation_failed": _event(ERROR, _OPERATION_ENDED),
    "queue_pressure_changed": _event(
        WARNING, "queue pressure previous ready gated oldest_seconds drain_seconds", INFO
    ),
    "resource_pressure_changed": _event(
        WARNING, "resource pressure previous ready gated oldest_seconds drain_seconds", INFO
    ),
    "transaction_left_open": _event(WARNING, "job_id job_type attempt"),
    "tasks_cancelled": _event(WARNING, "job_id job_type attempt tasks"),
    "long_chain": _event(WARNING, "job_id job_type attempt enqueues generation"),
    "checkpoint_ignored": _event(WARNING, "job_id job_type attempt wanted"),
    "result_not_stored": _event(WARNING, "job_type reason"),
    "report_failed": _event(WARNING, "jobs error"),
    "duplicate_prevented": _event(INFO, "job_id job_type attempt key made_by made_by_job"),
    "fault_points": _event(WARNING, "faults reason"),
    "fault_made": _event(WARNING, "fault pid"),
    "log_lines_left_out": _event(WARNING, "lines"),
    "inspection_failed": _event(WARNING, "job_id attempt error"),
    "beat_failed": _event(WARNING, "error"),
    "database_error": _event(WARNING, "what error"),
    "maintenance_failed": _event(WARNING, "task error", ERROR),
    "schedules_failed": _event(WARNING, "error", ERROR),
    "no_connection_left": _event(WARNING, "reason error"),
    "listen_fails": _event(WARNING, "reason"),
    "admission_failed": _event(ERROR, "error"),
    "admission_blocked": _event(WARNING, "error"),
    "gates_unreadable": _event(WARNING, "queue gates"),
    "listen_for_ends_failed": _event(INFO, "error"),
    "wake_failed": _event(INFO, "hint error"),
}
