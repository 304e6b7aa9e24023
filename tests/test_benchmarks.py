"""The benchmark runs and says what it must. How fast anything is, ``--bars`` measures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.benchmarks import __main__ as program
from tests.benchmarks import bars, comparing, console, examining, month, workers
from tests.benchmarks.bars import BARS, SIZES, Bar
from tests.benchmarks.database import drop_past_days
from tests.benchmarks.measuring import Figure
from tests.benchmarks.sections import measure
from tests.browser import large, shop
from tests.test_docs_promises import rows
from tests.worker.conftest import start_worker as start_worker
from tests.worker.processes import until

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "performance.md").read_text()

NAME = (
    f"smoke_{os.environ.get('TOX_ENV_NAME', 'local')}_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
)
"""Several of them may run at once on one server."""


def benchmark(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run it as a user would, on the server of the tests, in a database of its own. It must leave
    no process behind."""
    environment = {**os.environ, "BENCHMARK_NAME": NAME}
    for ours in ("TEST_DATABASE_NAME", "DJANGO_SETTINGS_MODULE"):
        environment.pop(ours, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with contextlib.ExitStack() as ending:
        ending.callback(process.communicate)  # or its pipes are open still in another test
        ending.callback(kill_session, process.pid)
        output, errors = process.communicate()
        until(lambda: not in_session(process.pid), what="all that it started ended")
        ending.pop_all()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def in_session(session: int) -> list[int]:
    """The processes of it that still run. What has ended and is not waited for yet does not."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):  # it has gone
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def kill_session(session: int) -> None:
    for left in in_session(session):
        with contextlib.suppress(ProcessLookupError):  # it has gone
            os.kill(left, signal.SIGKILL)


def test_figures_are_printed_and_written_with_the_machine(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = benchmark("drain", "--times", "1", "--scale", "0.01", "--json", written)
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())
    assert found["machine"]["synchronous_commit"]
    (figure,) = found["figures"]
    assert f"{figure['name']}: median {figure['median']:,.1f} jobs/s" in done.stdout
    assert figure["ratio"] == pytest.approx(figure["median"] / figure["raw"][0])


def test_an_unknown_section_is_refused_with_the_known_ones() -> None:
    done = benchmark("drain", "drian")
    assert done.returncode == 2
    assert "no section is named drian; known are: drain, drain_two," in done.stderr


def test_the_docs_show_the_dump_that_is_restored_here() -> None:
    page = (ROOT / "docs" / "retention.md").read_text().replace("'", "")
    for option in month.WITHOUT_HISTORY:
        assert option in page


@pytest.fixture
def _forked(monkeypatch: pytest.MonkeyPatch, start_worker: Callable[..., Any]) -> None:
    """Workers are forked, on the database of the test."""

    def start(*arguments: str, settings: str = "") -> Any:
        return start_worker(*arguments).process

    monkeypatch.setattr(workers, "_start", start)


@pytest.fixture
def _days_are_dropped(transactional_db: None) -> Iterator[None]:
    yield
    drop_past_days()


@pytest.mark.usefixtures("_days_are_dropped")
def test_the_month_is_filled_measured_and_restored_from_a_dump(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(month, "DAYS", 10)
    monkeypatch.setattr(month, "EARLIER_DAYS", 2)
    monkeypatch.setattr(month, "A_DAY", 600)  # a list of runs has a page 100
    names = [figure.name for figure in month.month(1, 1.0)]
    assert "Job.objects.get among 12 days" in names
    assert "page of a finished job" in names
    assert "drop of a day of 600 jobs" in names
    assert ("pg_restore of it" in names) != ("no pg_dump" in capsys.readouterr().out)


@pytest.mark.usefixtures("_days_are_dropped")
def test_the_doctor_examines_runs_of_all_days(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examining, "DAYS", 3)
    assert len(measure("doctor", 1, 0.0002)) > len(examining.EXAMINATIONS)
    assert "2,000 runs in 4 partitions\n" in capsys.readouterr().out


@pytest.mark.usefixtures("_days_are_dropped")
def test_the_lists_of_the_console_answer_beside_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other pages are those of tests/admin/test_query_counts.py."""
    monkeypatch.setattr(large, "DAYS", 2)
    with shop.declared():
        console.fill_shop(0.002)
        client = console.client_of_staff()
        names = [console.page_figure(client, path, 1).name for path in console.searches()]
    assert len(names) > 15
    assert not [name for name in names if "answered" in name]


@pytest.mark.processes
@pytest.mark.usefixtures("_forked")
@pytest.mark.parametrize(
    "section", ["consoles", "drain_two", "fairness", "gates", "snapshot", "workflows"]
)
def test_each_bar_has_a_figure_with_its_raw_baseline(section: str) -> None:
    for figure in bars.by_bar(section, measure(section, 1, 0.005)).values():
        assert figure.median > 0
        assert len(figure.raw) == len(figure.values) == 1
        assert figure.ratio == figure.median / figure.raw[0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("limit, expected", [(0.0, "ok"), (1000.0, "missed")])
def test_a_bar_that_is_missed_twice_is_named_and_fails_the_run(
    limit: float, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (bar,) = (replace(bar, limit=limit) for bar in BARS if bar.section == "enqueue")
    monkeypatch.setattr(bars, "BARS", (bar,))
    options = argparse.Namespace(bars=True, sections=["enqueue"], times=1, scale=0.01)
    figures: list[Figure] = []
    missed = program._report(options, {}, figures)
    (figure,) = figures
    assert missed == (expected == "missed")
    assert len(figure.values) == len(figure.raw) == (2 if missed else 1)
    assert re.fullmatch(
        rf"enqueue of 10, one transaction each: \d\.\d\d of INSERT \+ COMMIT \(n=\d\), "
        rf"bar {limit:g}, goal 0.8: {expected}\n",
        capsys.readouterr().out,
    )


def test_a_time_is_over_its_bar_and_a_rate_below() -> None:
    bar = Bar("", "", goal=1.0, limit=2.0)
    for better, is_missed in (("more", [True, False, False]), ("less", [False, False, True])):
        figures = [Figure("", "", [one], [1.0], "", better) for one in (1.9, 2.0, 2.1)]
        assert [bar.is_missed(figure) for figure in figures] == is_missed


def test_a_figure_is_compared_with_an_earlier_one(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    figure = Figure("a drain", "jobs/s", [2_000.0], [4_000.0], "plain psycopg", bar="1,000 jobs/s")
    written.write_text(json.dumps({"figures": [figure.as_json()]}))
    before = program._read(written)
    figure.values = [3_000.0]
    assert program._line(figure, Bar("", "", 0.4, 0.5), before[figure.name]) == (
        "a drain: median 3,000.0 jobs/s (min 3,000.0, max 3,000.0, n=1); 0.75 of plain psycopg"
        "  [bar: 1,000 jobs/s; 0.4 of plain psycopg]  +50% since then"
    )


def test_the_page_has_the_goal_and_the_limit_of_each_bar() -> None:
    table = PAGE[PAGE.index("| what | figure | ratio | bar |") :].split("\n\n", 1)[0]
    shown = [row for row in rows(table) if len(row) == 5 and row[4]]
    assert {bar.section for bar in BARS} == set(SIZES)
    for bar in BARS:
        (row,) = [row for row in shown if bar.name in row[0]]
        assert bar.goal in map(float, re.findall(r"\d+(?:\.\d+)?", row[3])), row
        assert row[4].split(" ")[0] == f"{bar.limit:g}", row
    assert len(shown) == len(BARS)


@pytest.mark.usefixtures("transactional_db")
def test_a_queue_is_measured_by_what_its_worker_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the extra are not installed here: ours takes the place of each."""
    monkeypatch.setattr(comparing, "OTHERS", (replace(comparing.OURS, title="itself"),))
    found = measure("others", 1, 0.01)
    assert [figure.name for figure in found][1:3] == [
        "ours to itself, drain of 50",
        "ours to itself, pickup, p50",
    ]
    assert all(figure.ratio for figure in found)


ALLOWED = """
import re, sys
from importlib.metadata import distribution, packages_distributions

seen, left = set(), [("django-jobs-postgres", "bench")]
while left:
    name, extra = left.pop()
    seen.add(re.sub("[-_.]+", "-", name).lower())
    try:
        requires = distribution(name).requires or ()
    except Exception:
        continue
    for line in requires:
        needed, _, marker = line.partition(";")
        if "extra ==" not in marker or f"extra == '{extra}'" in marker.replace('"', "'"):
            needed, extras = re.match(r"([\\w.-]+)(?:\\[(.*?)\\])?", needed).groups()
            if re.sub("[-_.]+", "-", needed).lower() not in seen:
                left.append((needed, extras))

owners = packages_distributions()

class Gate:
    def find_spec(self, name, *rest):
        of = {re.sub("[-_.]+", "-", one).lower() for one in owners.get(name, ())}
        if of and not of & seen:
            raise ModuleNotFoundError(f"{name} is not in the extra bench")

sys.meta_path.insert(0, Gate())
import django
django.setup()
"""


def test_its_extra_brings_what_the_jobs_of_the_tests_import() -> None:
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.benchmarks.settings"}
    command = [sys.executable, "-c", ALLOWED]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
