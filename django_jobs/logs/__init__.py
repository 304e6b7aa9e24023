"""The log lines of a worker: one per event, with stable keys.

events      every event, with its levels and its keys
receivers   the signals that become lines
formats     a line as pairs of keys and values, or as JSON; standard error
context     the job of a line that a handler logs
"""

from .context import JobContextFilter
from .formats import JsonFormatter, PatientHandler, line, printable, show_jobs, to_stderr
from .receivers import CONNECTED, connect, disconnect, level_of, log_event, logger

__all__ = [
    "CONNECTED",
    "JobContextFilter",
    "JsonFormatter",
    "PatientHandler",
    "connect",
    "disconnect",
    "level_of",
    "line",
    "log_event",
    "logger",
    "printable",
    "show_jobs",
    "to_stderr",
]
