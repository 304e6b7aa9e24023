"""What all queues run: a function that notes when it was called."""

from __future__ import annotations

import functools
import os
import time

LINE = 24
"""Bytes that a call writes, at once: lines of several threads and processes do not mix."""


def note() -> None:
    """Append the time to the file that ``OTHERS_FILE`` names."""
    os.write(_file(), b"%-23.6f\n" % time.time())


@functools.cache
def _file() -> int:
    return os.open(os.environ["OTHERS_FILE"], os.O_WRONLY | os.O_APPEND)
