"""Commands of Django in processes that are forked from one that has loaded it.

To start Python and load Django takes 0.7 s of a CPU, and the tests would do it a thousand times. A
*root* has loaded the libraries and no settings: what it forks loads a project in 0.25 s. A
*template* has loaded a project: what it forks begins at once. One serves all databases of the tests
and all their ``DJANGO_JOBS``. A forked command has a session, signals, an environment, standard
streams and an exit code as if it had been started by hand; only its parent and its ``__main__`` are
others. This module, run as a program, is a root.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections import OrderedDict
from importlib import import_module, reload
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE

PROJECT = Path(__file__).resolve().parent.parent
MOST_ROOTS, MOST_TEMPLATES = 2, 3
"""At a time, of 40 and 60 MB each."""
IS_POSSIBLE = hasattr(os, "pidfd_open")

LIBRARIES = (
    *("asyncio", "croniter", "email.mime.text", "http.server", "logging.config", "sqlparse"),
    *("psycopg", "psycopg.rows", "psycopg.types.json", "django.db.backends.postgresql.base"),
    *("django.contrib.admin.sites", "django.contrib.admin.checks", "django.contrib.admin.filters"),
    *("django.contrib.admin.widgets", "django.contrib.staticfiles.finders"),
    *("django.core.mail.backends.smtp", "django.core.management.commands.shell"),
    *("django.core.serializers.json", "django.db.migrations.executor", "django.db.models"),
    *("django.forms", "django.template.backends.django", "django.template.defaulttags"),
    *("django.template.loader_tags", "django.test.client", "django.urls", "django.views.generic"),
)
"""What a root loads: no model, and nothing that reads a setting."""

OF_SETTINGS = (
    *("DATABASE_", "DEMO_", "DJANGO_", "DOCUMENTS_", "PROJECT_", "PYTEST_", "TEST_", "TOX_"),
)
"""Variables that settings and tests read, but neither Python nor a library when it is loaded."""

READ_AGAIN = ("DATABASE_URL", "TEST_DATABASE_", "TEST_DJANGO_JOBS")
"""Those of ``tests.settings`` that no module looks at when it is loaded. Five templates in six
differed in them alone, and to load one takes 0.35 s."""


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

    def terminate(self) -> None:
        """Ask it to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)

    def forget(self) -> None:
        """Nobody waits for it."""
        os.close(self._status)


class _Server:
    """A process that forks what it is asked for, over a socket."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def ask(self, request: dict[str, Any], *files: int) -> Forked:
        """The process that it forked. Raises ``EOFError`` if it has ended: what it was to load
        cannot be loaded."""
        status, theirs = os.pipe()
        with contextlib.suppress(OSError), contextlib.closing(os.fdopen(theirs, "wb")):
            message = json.dumps(request).encode()
            socket.send_fds(self._requests, [len(message).to_bytes(4)], [*files, theirs])
            self._requests.sendall(message)
            if pid := self._requests.recv(32):
                return Forked(int(pid), status)
        os.close(status)
        raise EOFError

    def close(self) -> None:
        """It ends with the last process that it forked."""
        self._requests.close()


class _Root(_Server):
    def __init__(self, environment: dict[str, str]) -> None:
        requests, theirs = socket.socketpair()
        super().__init__(requests)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                cwd=PROJECT,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )


class Template(_Server):
    """A process that has loaded a project: one directory, one environment."""

    def __init__(self, directory: Path, environment: dict[str, str], *modules: str) -> None:
        """``modules`` are those that its commands would load one by one."""
        requests, theirs = socket.socketpair()
        super().__init__(requests)
        self.environment = environment
        request = {"directory": str(directory), "environment": environment, "modules": modules}
        # What it would print if it cannot load the project, the command itself says again.
        with theirs, open(os.devnull, "r+") as none:
            _root(environment).ask(request, none.fileno(), none.fileno(), theirs.fileno()).forget()

    def start(
        self, arguments: list[str], output: int, *, input: int | None = None, before: str = ""
    ) -> Forked:
        """Start ``manage.py`` with these arguments. It prints to the file ``output``. ``before`` is
        Python that runs before the command."""
        with open(os.devnull) as none:
            files = none.fileno() if input is None else input, output
            request = {"arguments": arguments, "before": before, "environment": self.environment}
            return self.ask(request, *files)

    def run(self, arguments: list[str], text: str = "", *, before: str = "") -> tuple[int, str]:
        """The exit code of a command that is typed ``text``, and what it printed."""
        with tempfile.TemporaryFile() as typed, tempfile.TemporaryFile() as printed:
            typed.write(text.encode())
            typed.seek(0)
            code = self.start(
                arguments, printed.fileno(), input=typed.fileno(), before=before
            ).wait()
            printed.seek(0)
            return code, printed.read().decode()


_roots: OrderedDict[tuple[object, ...], _Root] = OrderedDict()
_templates: OrderedDict[tuple[object, ...], Template] = OrderedDict()
_ending: list[_Root] = []


def _network() -> str:
    """The network namespace of this thread, in which it starts processes."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/thread-self/ns/net")
    return ""


def _root(environment: dict[str, str]) -> _Root:
    """The one whose libraries would be loaded alike in this environment."""
    loaded = {k: v for k, v in environment.items() if not k.startswith(OF_SETTINGS)}
    key = _network(), frozenset(loaded.items())
    if key not in _roots:
        _roots[key] = _Root(loaded)
        if len(_roots) > MOST_ROOTS:
            _, oldest = _roots.popitem(last=False)
            oldest.close()
            _ending.append(oldest)
    _roots.move_to_end(key)
    return _roots[key]


def template(directory: Path, environment: dict[str, str], *modules: str) -> Template:
    """The one for this environment, which stays for the next that asks for it."""
    again = READ_AGAIN if environment["DJANGO_SETTINGS_MODULE"] == "tests.settings" else ()
    loaded = {k: v for k, v in environment.items() if not k.startswith(again)}
    key = (_network(), directory, frozenset(loaded.items()), modules)
    if key not in _templates:
        _templates[key] = Template(directory, environment, *modules)
        if len(_templates) > MOST_TEMPLATES:
            _templates.popitem(last=False)[1].close()
    _templates.move_to_end(key)
    found = copy.copy(_templates[key])
    found.environment = environment
    return found


@atexit.register
def _close_all() -> None:
    for each in _templates.values():
        each.close()
    for root in _roots.values():
        root.close()
    for root in (*_roots.values(), *_ending):
        root.process.wait(PATIENCE)


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Fork a process for each request, in which this returns the request and its files. Returns
    ``None`` when no request can come and all have ended."""
    running: dict[int, tuple[int, int]] = {}
    gc.freeze()  # no process walks what it has not loaded itself
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
                length, files, _, _ = socket.recv_fds(requests, 4, 4)
                if not length:
                    ready.unregister(requests)
                    continue
                request = requests.recv(int.from_bytes(length), socket.MSG_WAITALL)
                pid = os.fork()
                if not pid:
                    os.setsid()
                    os.dup2(files[0], 0)
                    os.dup2(files[1], 1)
                    os.dup2(files[1], 2)
                    # In its session, and not before: signals are sent to the session.
                    requests.send(str(os.getpid()).encode())
                    theirs = [*running, *(pipe for _, pipe in running.values())]
                    for file in (*files[:2], files[-1], *theirs):
                        os.close(file)
                    return json.loads(request), files[2:-1]
                for file in files[:-1]:
                    os.close(file)
                process = os.pidfd_open(pid)
                running[process] = pid, files[-1]
                ready.register(process, selectors.EVENT_READ)
    return None


def _read_settings_again() -> None:
    """No connection has been made, and only these two settings depend on ``READ_AGAIN``."""
    from django.conf import settings
    from django.core.signals import setting_changed
    from django.db import connections

    for name in ("testproject.settings", "tests.settings"):
        reload(sys.modules[name])
    read = sys.modules["tests.settings"]
    settings.DATABASES, settings.DJANGO_JOBS = read.DATABASES, read.DJANGO_JOBS
    for alias, database in connections.configure_settings(None).items():
        connections.settings[alias].clear()  # which its connection has already
        connections.settings[alias].update(database)
    setting_changed.send(_read_settings_again, setting="DJANGO_JOBS", value=None, enter=True)


def _main() -> None:
    gc.disable()  # nothing that is loaded is garbage
    for name in LIBRARIES:
        import_module(name)
    found = _serve(socket.socket(fileno=int(sys.argv[1])))
    if found is None:
        return
    request, (file,) = found
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.path[0] = request["directory"]
    import django

    django.setup()
    for name in request["modules"]:
        import_module(name)
    found = _serve(socket.socket(fileno=file))
    if found is None:
        return
    from django.core.management import execute_from_command_line

    gc.enable()
    if found[0]["environment"] != request["environment"]:
        os.environ.clear()
        os.environ.update(found[0]["environment"])
        _read_settings_again()
    space: dict[str, object] = {}  # kept: receivers of signals are referred to weakly
    exec(found[0]["before"], space)
    sys.argv = [django.__file__, *found[0]["arguments"]]
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    _main()
