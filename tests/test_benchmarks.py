"""The benchmark runs and says what it must; how fast anything is, is no test's business."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.worker.processes import until

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.timeout(300)

NAME = (
    f"smoke_{os.environ.get('TOX_ENV_NAME', 'local')}_{os.environ.get('PYTEST_XDIST_WORKER', '')}"
)
"""Several of them may run at once on one server."""

TINY = ("--times", "1", "--scale", "0.01")


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


def test_every_figure_has_a_raw_baseline(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    done = benchmark("drain", "drain_two", "enqueue", "enqueue_many", *TINY, "--json", first)
    assert done.returncode == 0, done.stderr
    found = json.loads(first.read_text())
    assert found["machine"]["synchronous_commit"]
    assert len(found["figures"]) == 6
    for figure in found["figures"]:
        assert figure["median"] > 0
        assert len(figure["raw"]) == len(figure["values"]) == 1
        assert figure["ratio"] == pytest.approx(figure["median"] / figure["raw"][0])
        assert f"{figure['name']}: median " in done.stdout
        assert f" of {figure['raw_name']}" in done.stdout

    for figure in found["figures"]:
        figure["median"] /= 1_000
    first.write_text(json.dumps(found))
    done = benchmark("enqueue", *TINY, "--json", second, "--compare", first)
    assert done.returncode == 0, done.stderr
    assert "since then" in done.stdout
    (figure,) = json.loads(second.read_text())["figures"]
    (before,) = [old for old in found["figures"] if old["name"] == figure["name"]]
    assert f"{figure['median'] / before['median'] - 1:+.0%} since then" in done.stdout


def test_the_schedules_section_is_compared_with_a_sleep_and_raw_rows(
    tmp_path: Path,
) -> None:
    written = tmp_path / "figures.json"
    done = benchmark("schedules", *TINY, "--json", written)
    assert done.returncode == 0, done.stderr
    lone, made, started = json.loads(written.read_text())["figures"]
    assert lone["raw_name"] == "a sleep and a SELECT"
    assert made["raw_name"] == started["raw_name"] == "plain psycopg, the same rows"
    assert "50 schedules due at once" in made["name"]
    for figure in (lone, made, started):
        assert figure["median"] > 0
        assert len(figure["raw"]) == len(figure["values"]) == 1
    assert made["median"] <= started["median"]


def test_an_unknown_section_is_refused_with_the_known_ones() -> None:
    done = benchmark("drain", "drian")
    assert done.returncode == 2
    assert "no section is named drian; known are: drain, drain_two," in done.stderr


def test_the_month_is_filled_measured_and_restored_from_a_dump(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = benchmark("month", "--times", "1", "--scale", "0.0002", "--json", written)
    assert done.returncode == 0, done.stderr
    names = [figure["name"] for figure in json.loads(written.read_text())["figures"]]
    assert "Job.objects.get among 60 days" in names
    assert "page of a finished job" in names
    assert "drop of a day of 200 jobs" in names
    assert ("pg_restore of it" in names) != ("no pg_dump" in done.stdout)


def test_operations_shows_the_dump_that_is_restored_here() -> None:
    from tests.benchmarks.month import WITHOUT_HISTORY

    page = (ROOT / "docs" / "operations.md").read_text().replace("'", "")
    for option in WITHOUT_HISTORY:
        assert option in page


def test_the_pages_of_the_console_answer_beside_many_jobs(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = benchmark("pages", *TINY, "--json", written)
    assert done.returncode == 0, done.stderr
    names = [figure["name"] for figure in json.loads(written.read_text())["figures"]]
    assert len(names) > 100
    assert not [name for name in names if "answered" in name]


def test_a_drain_is_measured_beside_consoles_that_refresh(tmp_path: Path) -> None:
    written = tmp_path / "figures.json"
    done = benchmark("consoles", *TINY, "--json", written)
    assert done.returncode == 0, done.stderr
    (figure,) = json.loads(written.read_text())["figures"]
    assert figure["ratio"] > 0


def test_the_runs_that_a_scrape_reads_beside_are_of_a_month() -> None:
    done = benchmark("doctor", *TINY)
    assert done.returncode == 0, done.stderr
    assert "100,000 runs in 31 partitions" in done.stdout + done.stderr
