"""Serves ``/healthz``, ``/readyz`` and ``/metrics``, in a process that runs nothing else.

It reads the scoreboard, so it answers while the heartbeat process hangs or is replaced, and without
the database. The supervisor opens the port and keeps it open, so a new server serves it after a
crash. One thread serves all clients, and a scrape of metrics, which may wait for the database, has
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from dataclasses import asdict, dataclass
from http import HTTPStatus

from ..ipc.pipes import CRASHED, MessagePipe
from ..ipc.scoreboard import Scoreboard
from ..options import HealthPort
from .report import HealthReport, liveness, readiness

CLIENT_SECONDS = 5.0
"""A client has to send its request and read the answer in this time."""

MOST_CLIENTS = 64
"""Connections at a time. One more ends the oldest."""

MOST_BYTES = 8_192
"""Of a request."""

TEXT, JSON = "text/plain; charset=utf-8", "application/json"


@dataclass(frozen=True, slots=True)
class Response:
    """What a client gets."""

    status: HTTPStatus
    body: str
    content_type: str = TEXT


class HealthServer:
    """Serves one port. ``lease`` is in seconds."""

    def __init__(self, port: HealthPort, scoreboard: Scoreboard, lease: float) -> None:
        self._port = port
        self._scoreboard = scoreboard
        self._lease = lease
        self._clients: dict[asyncio.Task[None], None] = {}

    def run(self) -> None:
        """Serve until the process exits."""
        asyncio.run(self.serve())

    async def serve(self) -> None:
        """Serve until cancelled."""
        listener = self._port.listener
        server = await asyncio.start_server(self._serve_one, sock=listener, limit=MOST_BYTES)
        await server.serve_forever()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= MOST_CLIENTS:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[task] = None
        try:
            # A client may close, send too much or nothing, and be ended for a newer one.
            with contextlib.suppress(
                OSError, TimeoutError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError
            ):
                async with asyncio.timeout(CLIENT_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_encoded(head, self._response(head)))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    def _response(self, head: bytes) -> Response:
        request, *headers = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        report = {"/healthz": liveness, "/readyz": readiness}.get(path)
        if report is None:
            return Response(HTTPStatus.NOT_FOUND, "not found\n")
        if method not in ("GET", "HEAD"):
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD\n")
        accepts = [line for line in headers if line.lower().startswith("accept:")]
        return _rendered(report(self._scoreboard, self._lease), any(JSON in one for one in accepts))


def _rendered(report: HealthReport, as_json: bool) -> Response:
    status = HTTPStatus.OK if report.is_ok else HTTPStatus.SERVICE_UNAVAILABLE
    if as_json:
        return Response(status, json.dumps({"ok": report.is_ok, **asdict(report)}), JSON)
    return Response(status, "\n".join(report.problems or ("ok",)) + "\n")


def _encoded(head: bytes, response: Response) -> bytes:
    body = response.body.encode()
    lines = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        "\r\n",
    )
    return "\r\n".join(lines).encode() + (b"" if head.startswith(b"HEAD ") else body)


def run(pipe: MessagePipe, port: HealthPort, scoreboard: Scoreboard, lease: float) -> int:
    """Serve until the supervisor kills this process or exits."""
    threading.Thread(target=_exit_with, args=(pipe,), daemon=True).start()
    HealthServer(port, scoreboard, lease).run()
    return CRASHED


def _exit_with(supervisor: MessagePipe) -> None:
    with contextlib.suppress(EOFError):
        while True:
            supervisor.receive(None)
    os._exit(0)
