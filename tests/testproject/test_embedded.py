"""The embedded PostgreSQL: its traps, on a real cluster of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from testproject import embedded
from tests.patience import PATIENCE

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A cluster for the tests of this file, stopped and removed afterwards."""
    parent = Path(tempfile.mkdtemp(prefix="django_jobs-test-", dir="/var/tmp"))
    directory = parent / "data"
    with contextlib.ExitStack() as ending:
        ending.callback(shutil.rmtree, parent)
        ending.callback(embedded.stop, directory)
        yield directory


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that others use may stand still for seconds."""
    monkeypatch.setattr(embedded, "PATIENCE", 60.0)


@pytest.fixture
def stranger() -> Iterator[int]:
    """The id of a living process that is no PostgreSQL."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        assert process.poll() is None, "somebody ended a process that is not theirs"
        process.communicate(b"\n")


def answers(uri: str) -> bool:
    with psycopg.connect(uri, connect_timeout=3) as connection:
        return connection.execute("SELECT 1").fetchone() == (1,)


def kill_postmaster(directory: Path) -> list[str]:
    """Kill it as an out-of-memory killer would; return the lines of the file it leaves behind."""
    file = directory / "postmaster.pid"
    lines = file.read_text().splitlines()
    process = psutil.Process(int(lines[0]))
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs([process], timeout=PATIENCE)
    return lines


def write_pid(directory: Path, lines: list[str], pid: int) -> None:
    """Let the files that a killed server left name another process, as after a reuse of its id."""
    (directory / "postmaster.pid").write_text("\n".join([str(pid), *lines[1:]]) + "\n")
    lock = directory / ".s.PGSQL.5432.lock"
    lock.write_text("\n".join([str(pid), *lock.read_text().splitlines()[1:]]) + "\n")


def test_a_killed_server_starts_again_and_keeps_its_data(cluster: Path) -> None:
    uri = embedded.start(cluster, cleanup_mode=None).get_uri()
    with psycopg.connect(uri) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS number")
    kill_postmaster(cluster)
    with psycopg.connect(embedded.start(cluster, cleanup_mode=None).get_uri()) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (7,)
        connection.execute("DROP TABLE kept")


def test_a_foreign_process_id_in_the_pid_file_is_not_the_server(
    cluster: Path, stranger: int
) -> None:
    embedded.start(cluster, cleanup_mode=None)
    write_pid(cluster, kill_postmaster(cluster), stranger)
    assert answers(embedded.start(cluster, cleanup_mode=None).get_uri())
    assert psutil.pid_exists(stranger)


def test_the_process_id_of_another_clusters_server_is_rejected(
    cluster: Path,
) -> None:
    parent = Path(tempfile.mkdtemp(prefix="django_jobs-test-", dir="/var/tmp"))
    other = parent / "data"
    try:
        other_uri = embedded.start(other, cleanup_mode=None).get_uri()
        other_pid = int((other / "postmaster.pid").read_text().splitlines()[0])
        embedded.start(cluster, cleanup_mode=None)
        write_pid(cluster, kill_postmaster(cluster), other_pid)
        assert answers(embedded.start(cluster, cleanup_mode=None).get_uri())
        assert answers(other_uri)
    finally:
        try:
            embedded.stop(other)
        finally:
            shutil.rmtree(parent)


@pytest.mark.parametrize("remnant", ["", "not a number\n", "1\n"])
def test_a_truncated_pid_file_is_ignored(cluster: Path, remnant: str) -> None:
    embedded.start(cluster, cleanup_mode=None)
    kill_postmaster(cluster)
    (cluster / "postmaster.pid").write_text(remnant)
    assert answers(embedded.start(cluster, cleanup_mode=None).get_uri())


def test_a_second_start_attaches_and_the_servers_process_stays_the_same(cluster: Path) -> None:
    first = embedded.start(cluster, cleanup_mode=None).get_pid()
    assert embedded.start(cluster, cleanup_mode=None).get_pid() == first


START = """
import sys
from pathlib import Path
from testproject import embedded
embedded.PATIENCE = 60.0
print(embedded.start(Path(sys.argv[1])).get_pid(), flush=True)
input()
"""


def run_holder(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", START, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=embedded.PROJECT,
    )


def test_a_killed_holder_does_not_keep_the_server_running(
    cluster: Path,
) -> None:
    embedded.stop(cluster)
    with run_holder(cluster) as killed:
        assert killed.stdout is not None
        postmaster = psutil.Process(int(killed.stdout.readline()))
        killed.kill()
    assert postmaster.is_running()
    with run_holder(cluster) as last:
        assert last.stdout is not None
        assert int(last.stdout.readline()) == postmaster.pid
        last.communicate("\n")
    gone, _ = psutil.wait_procs([postmaster], timeout=PATIENCE)
    assert gone


def test_processes_that_race_for_a_server_that_was_killed_all_get_it(
    cluster: Path, stranger: int
) -> None:
    embedded.start(cluster, cleanup_mode=None)
    write_pid(cluster, kill_postmaster(cluster), stranger)
    with contextlib.ExitStack() as ending:  # it waits for each of them, also where one fails
        racers = [ending.enter_context(run_holder(cluster)) for _ in range(4)]
        answers_of = [racer.communicate("\n")[0].strip() for racer in racers]
    assert all(racer.returncode == 0 for racer in racers)
    assert all(answer.isdigit() for answer in answers_of)


def test_another_first_migration_gets_another_cluster_for_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tmp_path / "django_jobs" / "migrations" / "0001_initial.py"
    first.parent.mkdir(parents=True)
    monkeypatch.setattr(embedded, "PROJECT", tmp_path)
    directories = set()
    for text in ("one", "another", "one"):
        first.write_text(text)
        directories.add(embedded.demo_directory())
    (parent,) = {directory.parent for directory in directories}
    parent.rmdir()
    assert len(directories) == 2


def test_the_data_lies_outside_the_home_directory() -> None:
    directory = embedded.data_directory("demo")
    assert not directory.resolve().is_relative_to(Path.home().resolve())
    assert directory.parent.stat().st_uid == os.geteuid()


def test_root_is_refused_a_temporary_directory_under_its_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(RuntimeError, match="outside root's home; set DATABASE_URL"):
        embedded.data_directory("demo")


def test_a_place_that_another_user_made_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(RuntimeError, match="belongs to another user; set DATABASE_URL"):
        embedded.data_directory("demo")
