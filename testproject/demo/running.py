"""The processes of the demo: start them, watch them, and leave none behind."""

from __future__ import annotations

import errno
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType

from django.conf import settings

MANAGE = settings.BASE_DIR / "manage.py"
DRAIN_SECONDS = 5
"""How long the demo's worker may finish what it runs, once asked to stop."""
KILL_SECONDS = 15.0
"""How long a child may take to end before it is killed."""
WEB_SECONDS = 30.0


class DemoError(Exception):
    """The demo cannot continue, for the reason in the message."""


class StopAsked:
    """Whether Ctrl-C was pressed, or a SIGTERM or SIGHUP arrived, while the context lasts.

    The handlers set a flag and do nothing else, so that no signal, however many there are, cuts
    short the cleaning up.
    """

    SIGNALS = tuple(
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    )

    def __init__(self) -> None:
        self.asked = False

    def wait(self, seconds: float) -> bool:
        """Wait for this time, or until a stop is requested. Returns whether it is."""
        deadline = time.monotonic() + seconds
        while not self.asked and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))
        return self.asked

    def __enter__(self) -> StopAsked:
        self._before = {number: signal.signal(number, self._ask) for number in self.SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


class Child:
    """One ``manage.py`` command in its own session, which Ctrl-C does not reach: the demo passes on
    one signal, because a second one makes a worker stop at once."""

    def __init__(
        self, name: str, arguments: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(  # noqa: S603 — our own command
                [sys.executable, str(MANAGE), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    def check(self) -> None:
        """Raise :class:`DemoError` if the process has ended."""
        if (code := self.process.poll()) is not None:
            raise DemoError(
                f"the {self.name} ended with code {code}; its last lines:\n{self.tail()}"
            )

    def tail(self, lines: int = 20) -> str:
        """The end of what it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> int:
        """Ask it to end, wait, and kill its session if it does not. Returns its exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()


class Children:
    """The children that are to end with the context, last started first."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._all: list[Child] = []

    def start(self, name: str, *arguments: str, **environment: str) -> Child:
        """Start ``manage.py <arguments>``; what it writes goes to a file."""
        log = self.logs / f"{name.replace(' ', '-')}.log"
        child = Child(name, arguments, log, environment)
        self._all.append(child)
        return child

    def check(self) -> None:
        """Raise :class:`DemoError` if one of them has ended."""
        for child in self._all:
            child.check()

    def __enter__(self) -> Children:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for child in reversed(self._all):
            child.stop()


def start_worker(children: Children) -> Child:
    """The demo's worker: two processes, so that there is a neighbour when one is killed."""
    return children.start(
        "worker",
        "jobworker",
        *("--queues", ",".join(settings.DJANGO_JOBS["QUEUES"])),
        *("--processes", "2", "--threads", "4"),
        *("--poll-seconds", "0.5", "--drain-timeout", str(DRAIN_SECONDS)),
        DEBUG="false",  # else Django keeps the text of every statement
    )


def start_web_server(children: Children, port: int) -> Child:
    """Django's development server, on the loopback."""
    return children.start("web server", "runserver", "--noreload", f"127.0.0.1:{port}")


def free_port(wanted: int, tries: int = 20) -> int:
    """``wanted``, or the next free port after it; 0 means any.

    Raises :class:`DemoError` if there is none among the next ``tries``.
    """
    for port in range(wanted, min(wanted + tries, 65_536)) if wanted else (0,):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            found: int = listener.getsockname()[1]
            return found
    raise DemoError(f"no port from {wanted} to {wanted + tries - 1} is free; give one with --port")


def wait_until_served(port: int, path: str, stop: StopAsked, check: Callable[[], None]) -> None:
    """Wait until the web server answers ``path``, or a stop is asked for.

    ``check`` raises if the server has ended. Raises :class:`DemoError` after half a minute.
    """
    deadline = time.monotonic() + WEB_SECONDS
    while not stop.wait(0.1):
        check()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status < 500:
                return
        except OSError as error:
            if time.monotonic() > deadline:
                raise DemoError(f"the web server does not answer: {error}") from error
        finally:
            connection.close()
