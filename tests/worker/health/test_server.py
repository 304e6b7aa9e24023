"""The server of probes and its clients: those that ask, and those that do harm."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from django_jobs.worker.health import server
from django_jobs.worker.health.server import MOST_BYTES, MOST_CLIENTS, HealthServer
from django_jobs.worker.ipc.scoreboard import Scoreboard
from django_jobs.worker.options import HealthPort

LEASE = 30.0


@pytest.fixture
def scoreboard() -> Scoreboard:
    """That of a tree with one worker process, which lives and claims."""
    made = Scoreboard(1)
    made.status.beat()
    made.status.turned_at = time.monotonic()
    made.status.is_connected = True
    slot = made.slots[0]
    slot.register(7, time.monotonic() + LEASE)
    slot.note_settling(connected=True)
    slot.note_round(1.0)
    return made


@pytest.fixture
def address(scoreboard: Scoreboard) -> Iterator[tuple[str, int]]:
    """Where a server of this scoreboard listens."""
    listener = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    serving = loop.create_task(HealthServer(HealthPort(listener), scoreboard, LEASE).serve())

    def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(serving)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()
    loop.call_soon_threadsafe(serving.cancel)
    thread.join()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def ask(address: tuple[str, int], request: bytes) -> str:
    """All that the server answers until it closes."""
    with socket.create_connection(address, timeout=60) as client:
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
    assert shown["processes"] == [{"pid": 0, "worker": 7, "problem": ""}]


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
    monkeypatch.setattr(server, "CLIENT_SECONDS", 0.5)
    with socket.create_connection(address, timeout=60) as slow:
        slow.sendall(b"GET /healthz HTT")
        assert ask(address, get("/healthz")).startswith("HTTP/1.1 200 ")
        assert all_of(slow) == ""


def test_many_idle_clients_keep_no_probe_out(address: tuple[str, int]) -> None:
    idle = [socket.create_connection(address, timeout=60) for _ in range(3 * MOST_CLIENTS)]
    try:
        assert ask(address, get("/healthz")).startswith("HTTP/1.1 200 ")
        for dropped in idle[:MOST_CLIENTS]:
            assert all_of(dropped) == ""
        idle[-1].sendall(get("/readyz"))  # the youngest are kept
        assert all_of(idle[-1]).startswith("HTTP/1.1 200 ")
    finally:
        for client in idle:
            client.close()
