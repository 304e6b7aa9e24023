"""A worker at a terminal: job types, a line for each job, tracebacks, and how to stop it."""

from __future__ import annotations

import contextlib
import logging
import os
import pty
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_jobs import logs
from django_jobs.logs import formats
from django_jobs.management.worker import terminal
from django_jobs.signals import attempt_failed, job_finished
from tests.app.jobs import add, ask_for, fail, hold
from tests.worker.processes import PATIENCE, JobWorker, end_other_sessions, until, until_marked


class WorkerAtTerminal(JobWorker):
    """Its standard error is a terminal; its standard output is the log, with what was shown."""

    def __init__(self, *arguments: str, log: Path) -> None:
        ours, theirs = pty.openpty()
        log.touch()
        super().__init__(*arguments, log=log, stderr=theirs)
        os.close(theirs)
        self._reader = threading.Thread(target=self._copy, args=(ours,))
        self._reader.start()

    def _copy(self, ours: int) -> None:
        with self.log.open("ab", buffering=0) as log, contextlib.suppress(OSError):  # EIO: closed
            while text := os.read(ours, 65_536):
                log.write(text.replace(b"\r\n", b"\n"))
        os.close(ours)

    def wait(self, timeout: float = PATIENCE) -> int:
        code = super().wait(timeout)
        self._reader.join(timeout)  # all that was shown is read
        return code

    def end(self) -> None:
        super().end()
        self._reader.join()

    def until_shown(self, text: str) -> None:
        until(lambda: text in self.text(), what=f"{text!r} in:\n{self.text()}")


@pytest.fixture
def start(transactional_db: None, tmp_path: Path) -> Iterator[Callable[..., WorkerAtTerminal]]:
    with contextlib.ExitStack() as ending:

        def started(*arguments: str) -> WorkerAtTerminal:
            worker = WorkerAtTerminal(*arguments, log=tmp_path / "worker.log")
            ending.callback(end_other_sessions)
            ending.callback(worker.end)
            return worker

        yield started


@pytest.mark.processes
def test_a_terminal_shows_job_types_jobs_and_tracebacks(
    start: Callable[..., WorkerAtTerminal],
) -> None:
    succeeded = add.enqueue(1)
    failed = fail.using(max_attempts=1).enqueue()
    cancelled = ask_for.enqueue("cancel")
    worker = start("--burst")
    assert worker.wait() == 0
    shown = worker.text()
    assert "Job types:\n  app." in shown
    assert "\n  app.add\n" in shown
    assert f"app.add #{succeeded.pk} succeeded in 0." in shown
    assert f" WARNING app.fail #{failed.pk} failed in 0." in shown
    assert "    Traceback (most recent call last):\n" in shown
    assert "    ValueError: as asked\n" in shown
    assert f" ERROR app.fail #{failed.pk} is dead: " in shown
    assert f"app.ask_for #{cancelled.pk} cancelled in 0." in shown
    assert "event=" not in shown


@pytest.mark.processes
def test_the_start_message_explains_a_second_ctrl_c(
    start: Callable[..., WorkerAtTerminal], tmp_path: Path
) -> None:
    hold.enqueue(str(tmp_path / "held"))
    worker = start()
    until_marked(tmp_path / "held")
    worker.signal(signal.SIGINT)
    worker.until_shown("Stopping: running jobs get 25 s to end. Ctrl-C again stops at once.")
    worker.signal(signal.SIGINT)
    assert worker.wait() == 143
    worker.until_shown("Stopping at once.")


@pytest.mark.processes
def test_key_value_lines_can_be_requested(
    start: Callable[..., WorkerAtTerminal],
) -> None:
    add.enqueue(1)
    worker = start("--burst", "--log-format", "keyvalue")
    assert worker.wait() == 0
    shown = worker.text()
    assert " INFO event=worker_started worker=" in shown
    assert "Job types" not in shown
    assert "succeeded" not in shown


def test_an_event_without_a_sentence_is_shown_with_its_fields() -> None:
    shown = terminal.sentence("lease_lost", {"worker": 7, "reason": "a b"})
    assert shown == 'Lease lost: worker=7 reason="a b"'
    assert terminal.sentence("draining", {"asked": "by an operator"}).startswith("Draining: asked=")


def test_an_error_message_cannot_control_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    terminal.show_attempt(
        "app.fail",
        job_id=1,
        attempt=1,
        status="dead",
        outcome="failed",
        seconds=None,
        error="ValueError: \x1b[2J",
        reason="",
        traceback="one\n\x1b[2Jtwo\n",
    )
    (record,) = caplog.records
    assert record.getMessage() == (
        "WARNING app.fail #1 failed (attempt 1): ValueError: \\x1b[2J\n    one\n    \\x1b[2Jtwo"
    )


@pytest.mark.parametrize("level, listens", [(logging.INFO, True), (logging.WARNING, False)])
def test_successes_have_a_receiver_only_if_shown(
    level: int, listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "logger", logging.Logger("of this test"))
    for signal_of in (job_finished, attempt_failed):  # Celery's hooks, once connected, stay so
        monkeypatch.setattr(signal_of, "receivers", [])
    try:
        assert terminal.connect(level, "human")
        assert job_finished.has_listeners("app.noop") is listens
        assert attempt_failed.has_listeners("app.noop") is not listens
    finally:
        logs.disconnect()
