"""A plugin of pytest: prints the first failure once more at the end, and how to repeat it.

Hundreds of lines about skipped tests and later failures stand between it and the end of a run. The
same text is written to the file that ``FIRST_FAILURE_FILE`` names, an absolute path, unless that
exists: several runs of pytest can share it, and its first writer had the first failure.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import sessions

FILE = "FIRST_FAILURE_FILE"
TITLE = "the first failure once more"
HYPOTHESIS_SEED = "seed of hypothesis"

NEIGHBOURS = 15
"""How many of the tests before it are named, and of those that ran at the same time."""

# Lines at the start and at the end of each part. With NEIGHBOURS twice they make under 200.
REPORT = 20, 45
CAPTURED = 2, 28
"""Of all captured texts together, each with an equal share."""
MOST_TEXTS = 10
"""Output, errors and log of setup, call and teardown, and Hypothesis's."""
SESSIONS = 15, 15
WIDEST = 500


def cut(text: str, head: int, tail: int) -> list[str]:
    """The lines of ``text``, with one line in place of those between the first and the last."""
    lines = [
        line if len(line) <= WIDEST else f"{line[:WIDEST]} ... {len(line):,} characters"
        for line in text.splitlines()
    ]
    if len(lines) <= head + tail + 1:
        return lines
    left_out = f"... {len(lines) - head - tail:,} lines are left out ..."
    return [*lines[:head], left_out, *lines[-tail:]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--in-given-order",
        action="store_true",
        help="run the tests in the order of the command line; plugins and fixtures may change it",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # xdist's workers send their reports to one process
        config.pluginmanager.register(FirstFailure(config))
    elif config.getoption("maxfail") == 1 and (path := os.environ.get(FILE)):
        config.pluginmanager.register(EndsWithTheOthers(Path(path)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    given = list(items)
    yield
    if config.getoption("in_given_order"):
        selected = set(items)
        items[:] = [item for item in given if item in selected]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Chosen for this test by Hypothesis, unless the command line has one.
    seed = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_generated_seed", None)
    if report.failed and seed is not None:
        report.user_properties.append((HYPOTHESIS_SEED, str(seed)))
    return report


class EndsWithTheOthers:
    """Ends a process of xdist after a failure in another one. xdist lets it run all tests that it
    has been given, which are a quarter of all: a red run took as long as a green one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        if self._file.exists():
            item.session.shouldstop = "the first failure was elsewhere"


class FirstFailure:
    """Reads the reports of all processes."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._lines: list[str] = []
        self._ran: dict[str, int] = {}
        self._last: dict[str, deque[str]] = {}
        self._begun: dict[str, float] = {}
        self._ended: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._begun.pop(nodeid, None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        process = _process_of(report)
        if report.failed and not self._lines:
            self._describe(report)
        if report.when == "setup" and not report.skipped:
            self._ran[process] = self._ran.get(process, 0) + 1
            self._last.setdefault(process, deque(maxlen=NEIGHBOURS + 1)).append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._lines:
            self._describe(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """xdist reports the test that a crashed process ran, if it ran one."""
        if error:
            self._ended.append(f"process {node.gateway.id} ended: {error}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self) -> Generator[None]:
        try:
            return (yield)
        finally:
            terminal = self._config.pluginmanager.get_plugin("terminalreporter")
            lines = self._lines or self._ended
            if terminal and lines:
                terminal.write_line("")
                terminal.write_sep("=", TITLE, red=True, bold=True)
                for line in lines:
                    terminal.write_line(line)

    def _describe(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        self._lines = [
            f"{report.nodeid}, {report.when}, {_process_of(report)}",
            *self._ended[-1:],
            *cut(report.longreprtext, *REPORT),
            *_captured(report),
            *self._order(report),
            *self._load(report),
            *_of_sessions(report),
        ]
        if path := os.environ.get(FILE):
            text = "\n".join([f"== {TITLE}", *self._lines, ""])
            with contextlib.suppress(FileExistsError), Path(path).open("x", errors="replace") as f:
                f.write(text)

    def _order(self, report: pytest.TestReport | pytest.CollectReport) -> Iterator[str]:
        options = ["-n", "0", "--in-given-order"]
        seed = self._config.getoption("randomly_seed", None)
        yield "-- order: " + ("fixed" if seed is None else f"random, --randomly-seed={seed}")
        if seed is not None:
            options += ["-p", "randomly", "--randomly-dont-reorganize", f"--randomly-seed={seed}"]
        known = dict(getattr(report, "user_properties", ()))
        seed = self._config.getoption("--hypothesis-seed", None) or known.get(HYPOTHESIS_SEED)
        if seed is not None:
            yield f"-- {HYPOTHESIS_SEED}: --hypothesis-seed={seed}"
            options.append(f"--hypothesis-seed={seed}")
        process = _process_of(report)
        before = [one for one in self._last.get(process, ()) if one != report.nodeid]
        before = before[-NEIGHBOURS:]
        total = self._ran.get(process, 0) - (report.nodeid in self._last.get(process, ()))
        yield f"-- before it the same process ran {total}; the last {len(before)} of them, and it:"
        yield _continued("cd", self._config.rootpath, "&&", _python(), "-m", "pytest", *options)
        for one in before:
            yield "    " + _continued(one)
        yield "    " + shlex.quote(report.nodeid)

    def _load(self, report: pytest.TestReport | pytest.CollectReport) -> Iterator[str]:
        averages = ", ".join(f"{average:.1f}" for average in os.getloadavg())
        processes = self._config.getoption("numprocesses", None) or 1
        yield (
            f"-- load in the last 1, 5 and 15 minutes: {averages}; {os.cpu_count()} CPUs,"
            f" {processes} processes that run tests"
        )
        with contextlib.suppress(OSError):  # Linux has it, some containers do not
            pressure = Path("/proc/pressure/cpu").read_text().splitlines()[0]
            yield f"   share of time in which a process waited for a CPU, in %: {pressure}"
        now = time.monotonic()
        beside = [
            f"   {nodeid}, for {now - begun:.1f} s"
            for nodeid, begun in self._begun.items()
            if nodeid != report.nodeid
        ]
        yield f"-- tests that ran at the same time: {len(beside)}"
        yield from beside[:NEIGHBOURS]


def _process_of(report: object) -> str:
    node = getattr(report, "node", None)
    return f"process {node.gateway.id}" if node else "in the only process"


def _captured(report: pytest.TestReport | pytest.CollectReport) -> Iterator[str]:
    texts = [(title, text) for title, text in report.sections if title != sessions.TITLE]
    texts = texts[:MOST_TEXTS]
    for title, text in texts:
        yield f"-- {title}"
        yield from cut(text, *(lines // len(texts) for lines in CAPTURED))


def _of_sessions(report: pytest.TestReport | pytest.CollectReport) -> Iterator[str]:
    """Those that the report has; where it has none, as they are now."""
    yield f"-- {sessions.TITLE}"
    text = dict(report.sections).get(sessions.TITLE)
    if text is None:
        try:
            text = sessions.summary()
        except Exception as error:  # an error here would end the run, and hide the failure
            text = f"not known: {error!r}"
    yield from cut(text or "none", *SESSIONS)


def _python() -> str:
    """The interpreter, as a reader would type it in the root of the repository."""
    here = f"{Path.cwd()}{os.sep}"
    return sys.executable.removeprefix(here)


def _continued(*words: object) -> str:
    return " ".join([*_quoted(words), "\\"])


def _quoted(words: Iterable[object]) -> Iterator[str]:
    for word in map(str, words):
        yield word if word == "&&" else shlex.quote(word)
