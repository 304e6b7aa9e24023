"""The server of probes and its clients: those that ask, and those that do harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping

import pytest
from django.db import OperationalError

from django_jobs.worker.health import server
from django_jobs.worker.health.server import MOST_BYTES, MOST_CLIENTS, HealthServer
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import HealthPort
from tests.factories import run_sql
from tests.worker.processes import PATIENCE

from .scoreboards import LEASE, claiming


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has as much time as a test waits, unless the test is about that time."""
    monkeypatch.setattr(server, "CLIENT_SECONDS", PATIENCE)
    monkeypatch.setattr(server, "SCRAPE_SECONDS", PATIENCE)


@pytest.fixture
def scoreboard() -> Scoreboard:
    """That of a tree with one worker process, which lives and claims."""
    return claiming()


@contextlib.contextmanager
def serving(
    scoreboard: Scoreboard, scrape: Callable[[Mapping[str, str]], tuple[int, str, bytes]] | None
) -> Iterator[tuple[str, int]]:
    """A server of this scoreboard; where it listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    port = HealthPort(listener, scrape)
    task = loop.create_task(HealthServer(port, scoreboard, LEASE).serve())

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()
    loop.call_soon_threadsafe(task.cancel)
    thread.join()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture
def address(scoreboard: Scoreboard) -> Iterator[tuple[str, int]]:
    """A server without metrics."""
    with serving(scoreboard, None) as listening:
        yield listening


@pytest.fixture
def scraped(scoreboard: Scoreboard, scrape: Scrapes) -> Iterator[tuple[str, int]]:
    """A server with metrics."""
    with serving(scoreboard, scrape) as listening:
        yield listening
        scrape.go_on.set()


def ask(address: tuple[str, int], request: bytes) -> str:
    """All that the server answers until it closes."""
    with socket.create_connection(address, timeout=PATIENCE) as client:
        client.sendall(request)
        return all_of(client)


def all_of(client: socket.socket) -> str:
    parts = []
    try:
        while part := client.recv(4096):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts).decode()


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join((f"{method} {path} HTTP/1.1", "Host: test", *headers, "\r\n")).encode()


def test_an_answer_has_a_status_a_length_and_a_body(address: tuple[str, int]) -> None:
    head, _, body = ask(address, get("/readyz?verbose")).partition("\r\n\r\n")
    assert head.splitlines()[0] == "HTTP/1.1 200 OK"
    assert "Content-Length: 3" in head
    assert "Connection: close" in head
    assert body == "ok\n"


def test_head_has_the_same_answer_without_its_body(address: tuple[str, int]) -> None:
    with_body = ask(address, get("/healthz"))
    assert ask(address, get("/healthz", method="HEAD")) == with_body.removesuffix("ok\n")


def test_problems_are_lines_of_text_or_json(
    address: tuple[str, int], scoreboard: Scoreboard
) -> None:
    scoreboard.status.draining = True
    scoreboard.status.is_connected = False
    text = ask(address, get("/readyz"))
    assert text.startswith("HTTP/1.1 503 Service Unavailable\r\n")
    lines = text.partition("\r\n\r\n")[2].splitlines()
    assert lines == ["draining", "the heartbeat process has no connection to the database"]
    answer = ask(address, get("/readyz", "accept: text/html, application/json"))
    assert answer.startswith("HTTP/1.1 503 ")
    shown = json.loads(answer.partition("\r\n\r\n")[2])
    assert (shown["ok"], shown["problems"]) == (False, lines)
    assert shown["processes"] == [{"pid": 0, "worker": 1, "problem": ""}]


@pytest.mark.parametrize(
    "request_, status",
    [
        (get("/"), 404),
        (get("/healthz/"), 404),
        (get("/../healthz"), 404),
        (get("/metrics"), 404),
        (get("/healthz", method="POST"), 405),
        (b"\r\n\r\n", 404),
        (b"\x16\x03\x01\xff\x00\r\n\r\n", 404),
        (b"GET\r\n\r\n", 404),
    ],
)
def test_other_requests_are_refused(address: tuple[str, int], request_: bytes, status: int) -> None:
    assert ask(address, request_).startswith(f"HTTP/1.1 {status} ")


def test_a_request_that_is_too_long_is_dropped(address: tuple[str, int]) -> None:
    assert ask(address, b"GET /healthz HTTP/1.1\r\n" + b"x" * 2 * MOST_BYTES) == ""
    assert ask(address, get("/healthz")).startswith("HTTP/1.1 200 ")


def test_a_slow_client_holds_up_no_other_and_is_dropped(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, rest = get("/healthz")[:16], get("/healthz")[16:]
    with socket.create_connection(address, timeout=PATIENCE) as slow:
        slow.sendall(begin)
        assert ask(address, get("/healthz")).startswith("HTTP/1.1 200 ")
        slow.sendall(rest)
        assert all_of(slow).startswith("HTTP/1.1 200 ")
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.5)
    with socket.create_connection(address, timeout=PATIENCE) as slow:
        slow.sendall(begin)
        assert all_of(slow) == ""


def test_many_idle_clients_keep_no_probe_out(address: tuple[str, int]) -> None:
    idle = [socket.create_connection(address, timeout=PATIENCE) for _ in range(3 * MOST_CLIENTS)]
    try:
        assert ask(address, get("/healthz")).startswith("HTTP/1.1 200 ")
        for dropped in idle[:MOST_CLIENTS]:
            assert all_of(dropped) == ""
        idle[-1].sendall(get("/readyz"))  # the youngest are kept
        assert all_of(idle[-1]).startswith("HTTP/1.1 200 ")
    finally:
        for client in idle:
            client.close()


class Scrapes:
    """A scrape that the test holds up, and counts."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.began = threading.Semaphore(0)
        self.at_once, self.most_at_once, self.times = 0, 0, 0

    def __call__(self, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        self.times += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        self.began.release()
        self.go_on.wait(PATIENCE)
        self.at_once -= 1
        return 200, headers.get("Accept", "none"), b"jobs 1\n"


@pytest.fixture
def scrape() -> Scrapes:
    return Scrapes()


def test_a_scrape_gets_the_headers_and_its_answer_is_passed_on(
    scraped: tuple[str, int], scrape: Scrapes
) -> None:
    scrape.go_on.set()
    head, _, body = ask(scraped, get("/metrics", "ACCEPT: application/openmetrics-text")).partition(
        "\r\n\r\n"
    )
    assert "Content-Type: application/openmetrics-text" in head
    assert body == "jobs 1\n"
    assert ask(scraped, get("/metrics", method="HEAD")).endswith("\r\n\r\n")
    assert ask(scraped, get("/metrics", method="PUT")).startswith("HTTP/1.1 405 ")


def test_a_scrape_that_hangs_holds_up_no_probe_and_begins_no_second_one(
    scraped: tuple[str, int], scrape: Scrapes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        monkeypatch.setattr(server, "SCRAPE_SECONDS", 0.5)
        assert ask(scraped, get("/metrics")) == ""  # dropped: it took too long
        monkeypatch.setattr(server, "SCRAPE_SECONDS", PATIENCE)
        assert ask(scraped, get("/readyz")).startswith("HTTP/1.1 200 ")
    assert scrape.began.acquire(timeout=PATIENCE)
    assert scrape.times == 1
    scrape.go_on.set()
    assert ask(scraped, get("/metrics")).endswith("jobs 1\n")


def test_scrapes_at_the_same_time_are_made_one_after_the_other(
    scraped: tuple[str, int], scrape: Scrapes
) -> None:
    clients = [socket.create_connection(scraped, timeout=PATIENCE) for _ in range(4)]
    for client in clients:
        client.sendall(get("/metrics"))
    assert scrape.began.acquire(timeout=PATIENCE)
    assert ask(scraped, get("/healthz")).startswith("HTTP/1.1 200 ")
    scrape.go_on.set()
    for client in clients:
        with client:
            assert all_of(client).endswith("jobs 1\n")
    assert (scrape.times, scrape.most_at_once) == (4, 1)


@pytest.mark.django_db(transaction=True)
def test_a_statement_that_takes_too_long_is_ended_although_its_client_has_left(
    scoreboard: Scoreboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = iter(["SELECT pg_sleep(90)", "SELECT 1"])

    def scrape(_: Mapping[str, str]) -> tuple[int, str, bytes]:
        try:
            run_sql(next(statements))
        except OperationalError:
            return 503, "text/plain", b""
        return 200, "text/plain", b"jobs 1\n"

    with serving(scoreboard, scrape) as address:
        monkeypatch.setattr(server, "SCRAPE_SECONDS", 0.5)
        assert ask(address, get("/metrics")) == ""
        monkeypatch.setattr(server, "SCRAPE_SECONDS", PATIENCE)
        assert ask(address, get("/metrics")).endswith("jobs 1\n")
