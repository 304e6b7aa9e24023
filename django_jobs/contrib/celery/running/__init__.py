"""Runs a task as the handler of a job type."""

import os

from ....worker.events import callers

callers.append(os.path.join(os.path.dirname(__file__), ""))
