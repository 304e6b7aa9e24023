"""Start real ``jobworker`` processes on the test's database, and wait on conditions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
from django.db import connection
from django.db.models.functions import Now

from django_jobs.models import Job, Run, Worker
from django_jobs.testing import failpoints
from tests import forking
from tests.patience import PATIENCE

PROJECT = Path(__file__).resolve().parents[2]

LONG_POLL = ("--poll-seconds", "3600")
"""What is obeyed within ``PATIENCE`` was not found by the poll."""

BEATS_OFTEN = json.dumps({"HEARTBEAT_SECONDS": 0.5})
"""As ``TEST_DJANGO_JOBS``: a heartbeat is soon, and yet the lease outlasts a machine that stands
still, which a short lease does not."""

REAPS_OFTEN = json.dumps({"HEARTBEAT_SECONDS": 0.5, "SWEEP_SECONDS": 0.2})
"""As ``TEST_DJANGO_JOBS``: a worker with a long lease that soon takes what others lost."""

REAPS_NEVER = json.dumps({"SWEEP_SECONDS": 86_400})
"""As ``TEST_DJANGO_JOBS``: a short lease may run out while the machine stands still, and is renewed
when it goes on, since nobody declares its worker lost meanwhile."""


LOADED_BY_JOBWORKER = ("django_jobs.management.commands.jobworker",)

COMMAND = """
import django, sys
from django.core.management import execute_from_command_line
django.setup()
{before}
execute_from_command_line(sys.argv)
"""


def environment_of_tests() -> dict[str, str]:
    """For a process that is to use the settings and the database of this one."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
    return {
        **inherited,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
    }


def manage(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """The exit code of a command of Django, its output and its errors."""
    environment = {**environment_of_tests(), **environment}
    if not forking.IS_POSSIBLE:
        whole = [sys.executable, "-m", "django", *arguments]
        done = subprocess.run(whole, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr
    with tempfile.NamedTemporaryFile() as errors:
        apart = f"import os; os.dup2(os.open({errors.name!r}, os.O_WRONLY), 2)"
        code, printed = forking.template(PROJECT, environment).run([*arguments], before=apart)
        return code, printed, errors.read().decode()


class JobWorker:
    """A ``jobworker`` in a session of its own, so that its whole group can be signalled."""

    def __init__(
        self,
        *arguments: str,
        log: Path,
        stderr: int = subprocess.STDOUT,
        before: str = "",
        **environment: str,
    ) -> None:
        """``before`` is Python that runs before the command, to change what no option does."""
        self.log = log
        command = ["jobworker", "--skip-checks", *arguments]
        environment = {**environment_of_tests(), "PYTHONWARNINGS": "error", **environment}
        with log.open("ab") as output:
            if forking.IS_POSSIBLE and stderr == subprocess.STDOUT:
                if fault := environment.pop(failpoints.VARIABLE, ""):
                    # The command reads it: a template is for all of them.
                    given = f"import os; os.environ[{failpoints.VARIABLE!r}] = {fault!r}\n"
                    before = given + before
                template = forking.template(PROJECT, environment, *LOADED_BY_JOBWORKER)
                self.process: Any = template.start(command, output.fileno(), before=before)
                return
            self.process = subprocess.Popen(
                [sys.executable, "-c", COMMAND.format(before=before), *command],
                cwd=PROJECT,
                env=environment,
                stdout=output,
                stderr=stderr,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self.process.pid

    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text(errors="replace")

    def signal(self, number: int) -> None:
        """Signal the supervisor."""
        os.kill(self.pid, number)

    def signal_all(self, number: int) -> None:
        """Signal the supervisor and all processes below it."""
        for pid in self.session():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def session(self) -> list[int]:
        """All processes of its session that live: the supervisor, its children, and what these
        started, also where the supervisor is gone."""
        return [pid for pid in psutil.pids() if _is_of(self.pid, pid)]

    def wait(self, timeout: float = PATIENCE) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"jobworker did not exit within {timeout} s:\n{self.text()}"
            ) from None

    def drain(self) -> int:
        """Ask it to end what runs; its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def end(self) -> None:
        """Kill whatever is left."""
        until(lambda: self.signal_all(signal.SIGKILL) or not self.session())
        self.process.wait(PATIENCE)

    def children(self) -> list[psutil.Process]:
        """The processes of the tree, without the supervisor."""
        return psutil.Process(self.pid).children(recursive=True)


def _is_of(session: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == session and is_alive(psutil.Process(pid))
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


Start = Callable[..., JobWorker]
"""What the fixture ``start_worker`` gives."""


def nobody_was_killed(worker: JobWorker) -> bool:
    """Whether it has the process still that it had at first."""
    return Worker.objects.count() == 1 and "event=process_" not in worker.text()


def outcomes(job: Job) -> list[str]:
    """How its attempts ended, in their order."""
    return list(Run.objects.filter(job=job).order_by("attempt").values_list("outcome", flat=True))


def until(condition: Callable[[], Any], timeout: float = PATIENCE, what: str = "") -> Any:
    """Wait for ``condition`` to be true; returns its value."""
    begun = time.monotonic()
    deadline = begun + timeout
    while True:
        is_late = time.monotonic() > deadline  # before the last look, which may itself take long
        value = condition()
        if value:
            return value
        if is_late:
            raise AssertionError(f"not within {timeout} s: {what or condition}")
        # A query each 10 ms takes a tenth of a CPU, and most of what these tests do is wait.
        time.sleep(min(0.01 + (time.monotonic() - begun) / 20, 0.05))


@contextlib.contextmanager
def in_case(name: str) -> Iterator[None]:
    """Of many that share a worker: what fails inside says which one it is."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {name}")
        raise


def lines(path: Path) -> list[list[str]]:
    """One line for each time the handler that marks ``path`` began: process id and time."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def until_marked(path: Path, times: int = 1, timeout: float = PATIENCE) -> int:
    """Wait until the handler began ``times`` times; the process id of the last one."""
    until(lambda: len(lines(path)) >= times, timeout, f"{path.name} marked {times} times")
    return int(lines(path)[-1][0])


def until_status(job: Job | int, status: str, timeout: float = PATIENCE) -> Job:
    """Wait until the job has that status."""
    pk = job if isinstance(job, int) else job.pk
    until(
        lambda: Job.objects.filter(pk=pk, status=status).exists(), timeout, f"job {pk} is {status}"
    )
    return Job.objects.get(pk=pk)


def let_go(path: Path) -> None:
    """Let the handler that waits on ``path`` go on."""
    Path(f"{path}.go").touch()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs, whoever has to wait for its end."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end_lease(worker: Worker) -> None:
    """Of one that was killed: it runs out now, so that it may have been long while it lived."""
    Worker.objects.filter(pk=worker.pk).update(lease_expires_at=Now() - timedelta(seconds=1))


IDLE_SESSIONS = 5
"""Of a default worker without a job: leases and upkeep; claims, settles, and listening."""

OTHER_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""


def other_sessions() -> int:
    """How many clients are connected to this database, besides this one."""
    with connection.cursor() as cursor:
        cursor.execute(OTHER_SESSIONS)
        return int(cursor.fetchone()[0])


def end_other_sessions() -> None:
    """End all other sessions of this database, and wait until they are gone.

    The backend of a process that was killed finishes its statement first: it would still write,
    and hold locks, for a moment. An autovacuum is let go on.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity WHERE datname = "
            "current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
            [int(PATIENCE * 1000)],
        )
