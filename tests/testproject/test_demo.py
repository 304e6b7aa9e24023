"""The ``demo`` command, as a process of its own on a database of its own."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from psycopg import sql

from testproject.demo.running import MANAGE, free_port
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """The URL of a database, empty for the first demo, dropped afterwards. To migrate it takes a
    third of the CPU of a demo."""
    url = os.environ["DATABASE_URL"]
    name = sql.Identifier(f"demo_{uuid.uuid4().hex[:12]}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            yield urlsplit(url)._replace(path=f"/{name._obj[0]}").geturl()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


class Demo:
    """A running ``manage.py demo``, the leader of a process group as in a terminal."""

    def __init__(self, database: str, sources: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(MANAGE), "demo", *arguments],
            env={
                **os.environ,
                "DATABASE_URL": database,
                "DEMO_SOURCES": str(sources),
                "DJANGO_SETTINGS_MODULE": "testproject.settings",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""

    def read_until(self, text: str) -> str:
        """What it printed up to and with the line that holds ``text``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return self.output
        raise AssertionError(f"{text!r} was never printed:\n{self.output}")

    def rest(self) -> str:
        """Wait for its end and return all that it printed."""
        assert self.process.stdout is not None
        self.output += self.process.stdout.read()
        self.process.wait()
        return self.output

    def children(self) -> list[psutil.Process]:
        """Its processes, theirs included."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        """Kill what is left of it, and wait for it."""
        try:
            if self.process.poll() is None:
                for process in stopped_tree(psutil.Process(self.process.pid)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
        finally:
            self.process.kill()  # nothing where it is known to have ended
            self.process.communicate()


def stopped_tree(root: psutil.Process) -> list[psutil.Process]:
    """A process and its offspring, each stopped before its children are asked for, so that none is
    started meanwhile. One that ends meanwhile is left out: jobs that run alone come and go."""
    try:
        root.suspend()
        children = root.children()
    except psutil.NoSuchProcess:
        return []
    return [root, *(one for child in children for one in stopped_tree(child))]


@pytest.fixture
def demo(database: str, tree: Path) -> Iterator[Callable[..., Demo]]:
    """Starts demos, and ends those that a test left running."""
    started: list[Demo] = []

    def start(*arguments: str) -> Demo:
        started.append(Demo(database, tree, *arguments))
        return started[-1]

    yield start
    with contextlib.ExitStack() as ending:
        for one in started:
            ending.callback(one.end)  # each, also where one of them fails


def address_of(demo: Demo) -> tuple[str, int]:
    found = re.search(r"http://([\d.]+):(\d+)/", demo.read_until("Ctrl-C stops it all"))
    assert found
    return found[1], int(found[2])


def status_of(address: tuple[str, int], path: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def assert_gone(processes: list[psutil.Process]) -> None:
    until(lambda: not any(is_alive(one) for one in processes))


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_once_does_all_the_work_and_finds_it_right_also_when_repeated(
    demo: Callable[..., Demo],
) -> None:
    for _ in range(2):
        run = demo("--once")
        output = run.rest()
        assert run.process.returncode == 0, output
        assert "FAILED" not in output
        assert "24 of 24" in output
        assert "demo.always_fails" in output
        assert "crashed 3 times" in output


@pytest.mark.parametrize("arguments", [("demo", "--help"), ("help", "demo"), ()])
def test_help_starts_no_database(arguments: tuple[str, ...]) -> None:
    found = subprocess.run(
        [sys.executable, "-v", str(MANAGE), *arguments],
        env={key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
        | {"DJANGO_SETTINGS_MODULE": "testproject.settings"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "demo" in found.stdout
    assert "import 'testproject.settings'" in found.stderr
    assert "import 'testproject.embedded'" not in found.stderr


def test_once_lists_unfinished_work_when_time_is_up(demo: Callable[..., Demo]) -> None:
    run = demo("--once", "--time-limit", "1")
    output = run.rest()
    assert run.process.returncode == 1
    assert "after 1 s the work is not done" in output


def assert_stops(run: Demo, address: tuple[str, int], number: signal.Signals) -> None:
    until(lambda: len(run.children()) >= 5)  # web server, supervisor, heartbeat, workers
    processes = run.children()
    os.killpg(run.process.pid, number)
    assert "Stopped." in run.rest()
    assert run.process.returncode == 0
    assert_gone(processes)
    with pytest.raises(ConnectionRefusedError):
        status_of(address, "/")


def test_a_signal_to_the_group_stops_everything(demo: Callable[..., Demo]) -> None:
    run = demo("--port", "0")
    address = address_of(run)
    assert status_of(address, "/admin/login/") == 200
    assert_stops(run, address, signal.SIGTERM)


def test_a_second_ctrl_c_does_not_leave_processes_behind(demo: Callable[..., Demo]) -> None:
    run = demo("--port", "0")
    address_of(run)
    processes = run.children()
    os.killpg(run.process.pid, signal.SIGINT)
    run.read_until("Stopping")
    with contextlib.suppress(ProcessLookupError):  # it was faster than this process
        os.killpg(run.process.pid, signal.SIGINT)
    run.rest()
    assert run.process.returncode == 0
    assert_gone(processes)


def command_of(process: psutil.Process) -> list[str]:
    """Its command line; empty for a job's own process that has just ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_death_of_a_child_stops_everything_and_is_reported(demo: Callable[..., Demo]) -> None:
    run = demo("--port", "0")
    address_of(run)
    processes = run.children()
    (web,) = [one for one in processes if "runserver" in command_of(one)]
    web.kill()
    output = run.rest()
    assert run.process.returncode == 1
    assert "the web server ended with code -9" in output
    assert_gone(processes)


def assert_login_opens_the_admin(run: Demo, host: str, port: int) -> None:
    password = re.search(r"Password  (\S+)", run.output)
    assert password
    cookies = log_in(host, port, "demo", password[1])
    pages = re.findall(rf"http://{host}:{port}(/admin/\S+)", run.output)
    assert pages
    with contextlib.closing(http.client.HTTPConnection(host, port, timeout=PATIENCE)) as connection:
        for page in pages:
            connection.request("GET", page, headers={"Cookie": cookies})
            response = connection.getresponse()
            response.read()
            assert (page, response.status) == (page, 200)


def log_in(host: str, port: int, username: str, password: str) -> str:
    """Log in as a browser does; return the cookies."""
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)
    try:
        connection.request("GET", "/admin/login/")
        response = connection.getresponse()
        response.read()
        token = re.search(r"csrftoken=([^;]+)", response.headers["Set-Cookie"])
        assert token
        connection.request(
            "POST",
            "/admin/login/",
            body=f"username={username}&password={password}&csrfmiddlewaretoken={token[1]}",
            headers={
                "Cookie": f"csrftoken={token[1]}",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        response = connection.getresponse()
        response.read()
        assert response.status == 302
        cookies = response.headers.get_all("Set-Cookie") or []
        return "; ".join(cookie.split(";", 1)[0] for cookie in cookies)
    finally:
        connection.close()


def test_a_demo_takes_a_free_port_shows_the_admin_and_refuses_another(
    demo: Callable[..., Demo],
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        busy = listener.getsockname()[1]
        run = demo("--port", str(busy))
        host, port = address_of(run)
    assert port != busy
    assert f"Port {busy} is in use; taking {port}." in run.output
    assert_login_opens_the_admin(run, host, port)
    second = demo("--port", "0")
    assert "another demo runs on this database" in second.rest()
    assert second.process.returncode == 1
    assert run.process.poll() is None
    assert_stops(run, (host, port), signal.SIGHUP)


def test_zero_asks_for_any_free_port() -> None:
    assert free_port(0) > 0
