"""What a worker process says of itself when it boots."""

from __future__ import annotations

import os
import platform
import socket
from typing import Any

from .. import registry
from ..conf import conf
from ..job_types import JobType
from ..lifecycle.renewing import Boot
from .options import Options


def claimable(options: Options) -> dict[str, int]:
    """The names of the job types that are claimed here, and the newest version that is read."""
    versions = registry.versions()
    if options.forks:
        return versions
    left = left_to_others()
    return {name: version for name, version in versions.items() if name not in left}


def left_to_others() -> frozenset[str]:
    """The names of the job types that only a worker which forks can run."""
    return frozenset(name for name in registry.versions() if runs_alone(registry.find(name)))


def runs_alone(job_type: JobType[..., Any] | None) -> bool:
    """Whether each attempt has a process of its own."""
    return job_type is not None and (job_type.isolated or job_type.max_rss is not None)


def boot_of(options: Options, queues: list[str]) -> Boot:
    """What this process says of itself in its row."""
    host = socket.gethostname() or platform.node()
    return Boot(
        name=options.name or host,
        host=host,
        pid=os.getpid(),
        queues=queues,
        threads=options.threads,
        job_types=claimable(options),
        code_version=conf().code_version,
        lease=options.lease,
    )
