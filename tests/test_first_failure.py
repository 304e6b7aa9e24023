"""The end of a failed run has what it takes to repeat the failure."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from tests import sessions
from tests.first_failure import FILE, NEIGHBOURS, TITLE, cut

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = """
[tool.pytest.ini_options]
addopts = "-p xdist -p hypothesispytest --dist=worksteal"
"""
CONFTEST = """
import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.first_failure"]
READS_ALL_REPORTS = "PYTEST_XDIST_WORKER" not in os.environ


def pytest_runtest_logstart(nodeid):
    if READS_ALL_REPORTS and nodeid.endswith("test_waits_for_the_failure"):
        Path("waits").touch()


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report):
    if READS_ALL_REPORTS and report.failed:
        Path("reported").touch()
"""
FAILING = r"""
import os
import time
from pathlib import Path

import psycopg
import pytest


two_processes = "PYTEST_XDIST_WORKER" in os.environ


def wait_for(name):
    deadline = time.monotonic() + 60
    while not Path(name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not two_processes, reason="nothing runs at the same time")
def test_waits_for_the_failure():
    wait_for("reported")


@pytest.mark.parametrize("text", [f"it's {number}" for number in range(40)])
def test_passes(text):
    pass


def test_fails():
    if two_processes:
        wait_for("waits")
    global session  # open until the process ends
    session = psycopg.connect(os.environ["DATABASE_URL"])
    session.execute("SELECT 'of the failing test'")
    for number in range(10_000):
        print("printed", number)
    raise AssertionError("\n".join(f"line {number}" for number in range(10_000)))


def test_is_never_reached():
    assert False
"""


def environment(**others: str) -> dict[str, str]:
    """For a run of pytest that has nothing of the run of this test."""
    inherited = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    inherited.pop("CI", None)  # there Hypothesis has no seed
    own = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT), FILE: ""}
    own["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # all that are installed take half of the CPU
    return {**inherited, **own, **others}


def run(directory: Path, *arguments: str, **others: str) -> str:
    """The output of pytest in a project with the plugin."""
    (directory / "pyproject.toml").write_text(SETTINGS)
    (directory / "conftest.py").write_text(CONFTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=directory,
        env=environment(**others),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.stdout


def end_of(output: str) -> list[str]:
    """What follows the title, up to the end."""
    _, found, end = output.partition(f" {TITLE} ")
    assert found, output
    return end.splitlines()[1:]


@pytest.mark.parametrize("processes", [0, 2])
def test_the_first_failure_is_at_the_end(tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    output = run(
        *(tmp_path, "-n", str(processes), "--maxfail=1", "test_it.py"),
        **{FILE: str(tmp_path / "first")},
    )
    lines = end_of(output)
    text = "\n".join(lines)
    assert len(lines) < 200
    assert lines[0].startswith("test_it.py::test_fails, call, ")
    assert "AssertionError: line 0\n" in text
    assert "line 9999\n" in text
    assert re.search(r"^\.\.\. [\d,]+ lines are left out", text, re.M)
    assert "printed 0\n" in text
    assert "printed 9999\n" in text
    assert "-- order: fixed" in text
    assert re.search(
        rf"^-- load .*: [\d.]+, [\d.]+, [\d.]+; {os.cpu_count()} CPUs, {processes or 1} processes",
        text,
        re.M,
    )
    beside = re.findall(r"^   (test_it.py::\S+), for [\d.]+ s$", text, re.M)
    assert beside == (["test_it.py::test_waits_for_the_failure"] if processes else [])
    assert "SELECT 'of the failing test'" in text.partition("-- sessions of the database")[2]
    assert (tmp_path / "first").read_text().splitlines()[1:] == lines


def test_the_printed_command_repeats_the_order(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    text = "\n".join(end_of(run(tmp_path, "-n", "2", "--maxfail=1", "test_it.py")))
    found = re.search(r"^cd .*\\\n(?:    .*\\\n)*    .*$", text, re.M)
    assert found, text
    identifiers = shlex.split(found[0].replace("\\\n", ""))[-NEIGHBOURS - 1 :]
    assert len(set(identifiers)) == NEIGHBOURS + 1
    again = subprocess.run(
        ["sh", "-c", found[0]],
        env=environment(PYTEST_ADDOPTS="-v"),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert re.findall(r"^(.*?) (?:PASSED|FAILED) ", again.stdout, re.M) == identifiers


def test_the_given_order_is_kept(tmp_path: Path) -> None:
    """Without the option pytest runs each parameter of a fixture of the module once."""
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n"
        "@pytest.fixture(scope='module', params='ab')\n"
        "def letter(request):\n    return request.param\n\n"
        "def test_one(letter):\n    pass\n\n"
        "def test_two(letter):\n    pass\n"
    )
    asked = [f"test_it.py::test_{name}" for name in ("two[a]", "one[b]", "two[b]", "one[a]")]

    def order(*options: str) -> list[str]:
        output = run(tmp_path, "-v", "-n", "0", *options, *asked)
        return re.findall(r"^(.*?) PASSED ", output, re.M)

    assert order("--in-given-order") == asked
    assert sorted(order()) == sorted(asked)
    assert order() != asked


def test_seeds_are_printed_and_give_the_same_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import random\n\nfrom hypothesis import given, settings, strategies as st\n\n"
        "@settings(database=None)\n"
        "@given(st.integers(0, 10**6))\n"
        "def test_fails(number):\n"
        "    assert number < 1000\n\n"
        "def test_chance():\n    print('chance', random.random())\n    assert False\n"
    )
    text = "\n".join(end_of(run(tmp_path, "-n", "2", "test_it.py::test_fails")))
    (seed,) = re.findall(r"^-- seed of hypothesis: (--hypothesis-seed=\d+)$", text, re.M)
    assert text.count(seed) == 2
    ordered = ("-p", "randomly", "--randomly-seed=7", "test_it.py::test_chance")
    texts = ["\n".join(end_of(run(tmp_path, "-n", number, *ordered))) for number in ("0", "2")]
    for text in texts:
        assert "-- order: random, --randomly-seed=7" in text
        assert "-p randomly --randomly-dont-reorganize --randomly-seed=7" in text
    one, other = (re.findall(r"chance [\d.]+", text) for text in texts)
    assert one == other != []


def test_a_crashed_process_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import os\n\ndef test_before():\n    pass\n\ndef test_crashes():\n    os._exit(3)\n"
    )
    text = "\n".join(end_of(run(tmp_path, "-n", "1", "test_it.py")))
    assert "ended: Not properly terminated" in text
    assert "crashed while running 'test_it.py::test_crashes'" in text
    assert "    test_it.py::test_before \\\n    test_it.py::test_crashes\n" in text


@pytest.mark.parametrize("processes", [0, 2])
def test_an_import_that_fails_is_a_failure(tmp_path: Path, processes: int) -> None:
    (tmp_path / "test_it.py").write_text("import nothing_of_that_name\n")
    lines = end_of(run(tmp_path, "-n", str(processes), "test_it.py"))
    assert lines[0].startswith("test_it.py, collect, ")
    assert "No module named 'nothing_of_that_name'" in "\n".join(lines)


def test_a_run_that_passes_prints_nothing_more(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_passes():\n    pass\n")
    output = run(tmp_path, "-n", "0", "test_it.py", **{FILE: str(tmp_path / "first")})
    assert "1 passed" in output
    assert TITLE not in output
    assert not (tmp_path / "first").exists()


def test_the_file_keeps_the_first_of_several_runs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_a():\n    1 / 0\n\ndef test_b():\n    1 / 0\n")
    for name in "ab":
        run(tmp_path, "-n", "0", f"test_it.py::test_{name}", **{FILE: str(tmp_path / "first")})
    assert (tmp_path / "first").read_text().startswith(f"== {TITLE}\ntest_it.py::test_a, call")


MANY = """
import time
from pathlib import Path

import pytest


def test_fails():
    assert False


@pytest.mark.parametrize("number", range(200))
def test_passes(number):
    deadline = time.monotonic() + 60
    while not Path("reported").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    with Path("passed").open("a") as file:
        file.write("x")
"""


@pytest.mark.parametrize("named", [True, False])
def test_the_other_processes_end_with_the_first_failure(tmp_path: Path, named: bool) -> None:
    (tmp_path / "test_many.py").write_text(MANY)
    file = str(tmp_path / "first") if named else ""
    run(tmp_path, "-n", "2", "--maxfail=1", **{FILE: file})
    passed = len((tmp_path / "passed").read_text())
    assert passed <= 2 if named else passed > 90


def test_long_texts_keep_both_ends() -> None:
    assert cut("\n".join("abcdef"), 2, 2) == ["a", "b", "... 2 lines are left out ...", "e", "f"]
    assert cut("\n".join("abcde"), 2, 2) == list("abcde")
    (line,) = cut("x" * 10_000, 1, 1)
    assert len(line) < 600


def test_a_server_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PATIENCE", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        monkeypatch.setitem(connection.settings_dict, "HOST", host)
        monkeypatch.setitem(connection.settings_dict, "PORT", port)
        assert sessions.summary().startswith("the database does not tell: ")
