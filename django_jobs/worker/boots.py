"""What a worker process says of itself when it boots."""

from __future__ import annotations

import os
import platform
import socket

from .. import registry
from ..conf import conf
from ..lifecycle.renewing import Boot
from .options import Options


def boot_of(options: Options, queues: list[str]) -> Boot:
    """What this process says of itself in its row."""
    host = socket.gethostname() or platform.node()
    return Boot(
        name=options.name or host,
        host=host,
        pid=os.getpid(),
        queues=queues,
        threads=options.threads,
        job_types=registry.versions(),
        code_version=conf().code_version,
        lease=options.lease,
    )
