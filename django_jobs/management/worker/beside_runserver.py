"""``DJANGO_JOBS["RUNSERVER"]``: a worker for as long as the development server runs."""

from __future__ import annotations

import os
import subprocess
import sys

from django.utils.autoreload import DJANGO_AUTORELOAD_ENV

from ...conf import conf

_started: list[subprocess.Popen[bytes]] = []


def start_worker_if_asked() -> None:
    """Start ``jobworker --reload`` if this process is ``manage.py runserver`` and the setting asks
    for it. The server itself is restarted in a child process; only its parent does this."""
    is_server = sys.argv[1:2] == ["runserver"] and not {"-h", "--help"} & set(sys.argv)
    if is_server and not os.environ.get(DJANGO_AUTORELOAD_ENV) and conf().runserver:
        program = [sys.executable, sys.argv[0], "jobworker"]
        # In another session: Ctrl-C stops the server, and the worker sees that it has ended.
        worker = subprocess.Popen(  # noqa: S603 — the command of this process
            [*program, "--reload", "--parent", str(os.getpid())], start_new_session=True
        )
        _started.append(worker)
