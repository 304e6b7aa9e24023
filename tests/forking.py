"""Workers that are forked from a process which has loaded Django.

To load it takes 0.7 s of a CPU, and the tests start hundreds of workers. A forked one is a process
with a session, signals, an environment and an exit as if it had been started by hand; only its
parent and its ``__main__`` are others. This module, run as a program, is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import selectors
import socket
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import django
from django.core.management import execute_from_command_line

PROJECT = Path(__file__).resolve().parents[2]
MOST = 3
"""Templates at a time, of 60 MB each."""
IS_POSSIBLE = hasattr(os, "pidfd_open")


class Forked:
    """A process that is no child of this one, with what the tests use of ``Popen``."""

    def __init__(self, pid: int, status: int) -> None:
        self.pid = pid
        self._status = status
        self._code: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code."""
        if self._code is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self._code = int(os.read(self._status, 32))
            os.close(self._status)
        return self._code


class Template:
    """A process that has loaded Django in one environment, and forks workers."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._requests, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=PROJECT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, arguments: list[str], output: int) -> Forked:
        """Start ``django`` with these arguments. It prints to the file ``output``."""
        status, theirs = os.pipe()
        socket.send_fds(self._requests, [json.dumps(arguments).encode()], [output, theirs])
        os.close(theirs)
        return Forked(int(self._requests.recv(32)), status)

    def close(self) -> None:
        """It ends with the last worker that it started."""
        self._requests.close()

    def wait(self) -> None:
        """Wait for its end."""
        self._process.wait(60)


_seen: set[frozenset[tuple[str, str]]] = set()
_open: OrderedDict[frozenset[tuple[str, str]], Template] = OrderedDict()
_closed: list[Template] = []


def template(environment: dict[str, str]) -> Template | None:
    """The one for this environment; none for its first worker, which may be the only one."""
    key = frozenset(environment.items())
    if not IS_POSSIBLE or key not in _seen:
        _seen.add(key)
        return None
    if key not in _open:
        _open[key] = Template(environment)
        if len(_open) > MOST:
            _close_oldest()
    _open.move_to_end(key)
    return _open[key]


def _close_oldest() -> None:
    _, oldest = _open.popitem(last=False)
    oldest.close()
    _closed.append(oldest)


@atexit.register
def _close_all() -> None:
    while _open:
        _close_oldest()
    for each in _closed:
        each.wait()


def _serve(requests: socket.socket) -> list[str] | None:
    """Fork a process for each request, in which this returns the arguments. Returns ``None`` when
    no request can come and all have ended."""
    running: dict[int, tuple[int, int]] = {}
    with requests, selectors.DefaultSelector() as ready:
        ready.register(requests, selectors.EVENT_READ)
        while ready.get_map():
            for key, _ in ready.select():
                if key.fd in running:
                    ready.unregister(key.fd)
                    os.close(key.fd)
                    pid, status = running.pop(key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError):
                        os.write(status, str(code).encode())
                    os.close(status)
                    continue
                request, files, _, _ = socket.recv_fds(requests, 65_536, 2)
                if not request:
                    ready.unregister(requests)
                    continue
                output, status = files
                pid = os.fork()
                if not pid:
                    os.setsid()
                    os.dup2(output, 1)
                    os.dup2(output, 2)
                    # In its session, and not before: signals are sent to the session.
                    requests.send(str(os.getpid()).encode())
                    for file in (*files, *running, *(pipe for _, pipe in running.values())):
                        os.close(file)
                    return list(json.loads(request))
                os.close(output)
                process = os.pidfd_open(pid)
                running[process] = pid, status
                ready.register(process, selectors.EVENT_READ)
    return None


def _main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    django.setup()
    arguments = _serve(requests)
    if arguments is not None:
        sys.argv = [django.__file__, *arguments]
        execute_from_command_line(sys.argv)


if __name__ == "__main__":
    _main()
