"""Runs a task as the handler of a job type."""

import os

from ....worker import error_reports

error_reports.callers.append(os.path.join(os.path.dirname(__file__), ""))
