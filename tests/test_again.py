"""A test that fails by chance fails when it is run again and again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests import first_failure
from tests.again.busy import LOOP, busy_processes
from tests.patience import PATIENCE
from tests.worker.processes import until

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
[tool.pytest.ini_options]
addopts = "-p xdist"
"""
EVERY_THIRD = """
from pathlib import Path

import pytest

count = Path(__file__).with_name("count")


@pytest.mark.parametrize("letter", "ab")
def test_fails_every_third_time(letter):
    number = len(count.read_text()) + 1 if count.exists() else 1
    count.write_text("x" * number)
    assert number % 3, f"time {number}"
"""
AFTER_ITS_NEIGHBOUR = """
seen = []


def test_neighbour():
    seen.append("neighbour")


def test_is_alone():
    assert seen == []
"""
ONE_FRESH_FIXTURE = """
import unittest

import pytest


@pytest.fixture
def fresh():
    return []


class TestInstance:
    def test_it(self, fresh):
        assert not fresh and not vars(self)
        fresh.append(1)
        self.seen = True


class Case(unittest.TestCase):
    def test_it(self):
        self.assertFalse(hasattr(self, "seen"))
        self.seen = True
"""


def again(directory: Path, source: str, name: str, *options: str) -> subprocess.Popen[str]:
    (directory / "pyproject.toml").write_text(SETTINGS)
    (directory / "test_it.py").write_text(source)
    inherited = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    inherited.pop(first_failure.FILE, None)
    inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # all that are installed take half of the CPU
    return subprocess.Popen(
        [sys.executable, "-m", "tests.again", f"{directory / 'test_it.py'}::{name}", *options],
        cwd=ROOT,
        env=inherited,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[str, int]:
    with process:
        try:
            output, _ = process.communicate()
        finally:
            process.terminate()
    return output, process.returncode


def test_failures_are_counted_in_both_modes(tmp_path: Path) -> None:
    name = "test_fails_every_third_time[a]"
    options = ("--times", "3", "--load", "1", "--cpus", "1", "--seed", "1")
    output, code = outcome(again(tmp_path, EVERY_THIRD, name, *options))
    assert code == 1, output
    summary = output.splitlines()[-4:]
    assert re.fullmatch(
        r"alone: 2 passed, 1 failed; median [\d.]+ s, slowest [\d.]+ s", summary[0]
    ), output
    # [b] takes its turn too, in some of the orders: the third time may be its own.
    assert re.match(r"among its neighbours: \d passed, \d failed; median", summary[1])
    assert re.match(r"load: 1 busy processes on 1 CPUs; .*: [\d.]+, [\d.]+, [\d.]+$", summary[2])
    assert summary[3] == "seeds of the neighbours' order: 1 to 3"
    assert f"== {first_failure.TITLE}\ntest_it.py::{name}, call" in output
    assert "AssertionError: time 3" in output


def test_a_neighbour_that_disturbs_is_found(tmp_path: Path) -> None:
    options = ("--times", "6", "--load", "0", "--seed", "1")
    output, code = outcome(again(tmp_path, AFTER_ITS_NEIGHBOUR, "test_is_alone", *options))
    assert code == 1, output
    assert "alone: 6 passed, 0 failed" in output
    found = re.search(
        r"^among its neighbours: (\d) passed, (\d) failed; .* with the seeds ([\d, ]+)$",
        output,
        re.M,
    )
    assert found, output
    passed, failed = int(found[1]), int(found[2])
    assert passed + failed == 6
    assert passed
    assert failed == len(found[3].split(", "))
    assert "    test_it.py::test_neighbour \\\n    test_it.py::test_is_alone\n" in output


@pytest.mark.parametrize("name", ["TestInstance::test_it", "Case::test_it"])
def test_each_repetition_has_its_own_fixtures(tmp_path: Path, name: str) -> None:
    options = ("--times", "2", "--load", "0")
    output, code = outcome(again(tmp_path, ONE_FRESH_FIXTURE, name, *options))
    assert code == 0, output
    assert "alone: 2 passed, 0 failed" in output
    assert "among its neighbours: 2 passed, 0 failed" in output


def test_a_test_that_ends_its_process_has_failed(tmp_path: Path) -> None:
    source = "import os\n\ndef test_ends():\n    os._exit(0)\n"
    output, code = outcome(again(tmp_path, source, "test_ends", "--times", "1", "--load", "0"))
    assert code == 1, output
    assert "alone: 0 passed, 0 failed; pytest ended with 0, 1 times" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_busy_process_is_left(tmp_path: Path, number: signal.Signals) -> None:
    source = "import time\n\ndef test_waits():\n    time.sleep(100)\n"
    process = again(tmp_path, source, "test_waits", "--times", "1", "--load", "2")
    busy, others = children_of(psutil.Process(process.pid))
    try:
        process.send_signal(number)
        assert process.wait(PATIENCE) != 0
        _, alive = psutil.wait_procs(busy, PATIENCE)
        assert not alive
    finally:
        assert process.stdout
        process.stdout.close()
        for child in [*busy, *others]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def children_of(process: psutil.Process) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """Its two busy processes, and pytest."""

    def busy() -> list[psutil.Process]:
        return [child for child in process.children() if LOOP in child.cmdline()]

    until(lambda: len(busy()) == 2 and len(process.children()) == 3)
    return busy(), [child for child in process.children() if child not in busy()]


def test_busy_processes_use_the_cpu_and_end_with_the_block() -> None:
    with contextlib.suppress(ZeroDivisionError), busy_processes(1) as (pid,):
        process = psutil.Process(pid)
        until(lambda: process.cpu_times().user >= 0.2)
        raise ZeroDivisionError
    assert not process.is_running()
