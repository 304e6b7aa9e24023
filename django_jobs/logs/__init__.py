"""The log lines of a worker: one per event, with stable keys."""

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
