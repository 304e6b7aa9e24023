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
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http import HTTPStatus

from ..connections import drop_connection, own_connection
from ..ipc.pipes import CRASHED, MessagePipe
from ..ipc.scoreboard import Scoreboard, WorkerSlot
from ..options import HealthPort, Scrape
from ..statement_timeout import StatementTimeout

SUPERVISOR_SECONDS = 5.0
"""The supervisor wakes up every second, and takes three at most to end the heartbeat process."""

CLAIM_SECONDS = 10.0
"""A claimer's round may begin so much later than planned. Statements end after five seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """A worker process. ``problem`` is why it does not claim; empty if it does."""

    pid: int
    worker: int
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """``problems`` of the whole tree, and its worker processes. ``is_ok`` without problems."""

    problems: tuple[str, ...]
    processes: tuple[ProcessReport, ...] = ()

    @property
    def is_ok(self) -> bool:
        return not self.problems


def hung_after(lease: float) -> float:
    """Seconds after which the supervisor kills a heartbeat process that does not turn."""
    return max(0.75 * lease, 3.0)


def liveness(scoreboard: Scoreboard, lease: float) -> HealthReport:
    """Whether supervisor and heartbeat run. A database that is away changes nothing: the heartbeat
    continues to try. ``lease`` is in seconds."""
    now, status = time.monotonic(), scoreboard.status
    problems = []
    if (late := now - status.turned_at) > SUPERVISOR_SECONDS:
        problems.append(f"the supervisor has not run for {late:.0f} s")
    limit = hung_after(lease)
    # A restart does not bring back a database that does not answer; the supervisor replaces the
    # heartbeat process at the limit. Otherwise the answer is no while it hangs, which is before.
    limit = limit + SUPERVISOR_SECONDS if status.is_renewing else limit / 2
    if (late := now - status.beat_at) > limit:
        problems.append(f"the heartbeat process has not run for {late:.0f} s")
    return HealthReport(problems=tuple(problems))


def readiness(scoreboard: Scoreboard, lease: float) -> HealthReport:
    """Whether at least one worker process claims jobs. ``lease`` is in seconds."""
    status, now = scoreboard.status, time.monotonic()
    problems = list(liveness(scoreboard, lease).problems)
    if status.draining:
        problems.append("draining")
    if not status.is_connected:
        problems.append("the heartbeat process has no connection to the database")
    processes = tuple(
        ProcessReport(
            pid=slot.process, worker=slot.worker, problem=_why_it_does_not_claim(slot, lease, now)
        )
        for slot in scoreboard.slots
    )
    if all(process.problem for process in processes):
        problems += [
            f"worker process {number}: {process.problem}"
            for number, process in enumerate(processes, 1)
        ]
    return HealthReport(problems=tuple(problems), processes=processes)


def _why_it_does_not_claim(slot: WorkerSlot, lease: float, now: float) -> str:
    if not slot.worker:
        return "not registered"
    if slot.draining:
        return "draining"
    if not slot.is_safe(lease):
        return "its lease was not renewed"
    if not slot.settles:
        return "its settler has no connection to the database"
    if slot.claim_failed:
        return "its last claim failed"
    if not slot.round_due:
        return "it has not claimed yet"
    if (late := now - slot.round_due) > CLAIM_SECONDS:
        return f"it should have claimed {late:.0f} s ago"
    return ""


CLIENT_SECONDS = 5.0
"""A client has to send its request in this time."""

SCRAPE_SECONDS = 15.0
"""A client has to read its answer in this time. Metrics may wait for the database."""

ENFORCE_SECONDS = 1.0
"""Seconds between two checks whether a scrape takes too long."""

MOST_CLIENTS = 64
"""Connections at a time. One more ends the oldest."""

MOST_BYTES = 8_192
"""Of a request."""

TEXT, JSON = "text/plain; charset=utf-8", "application/json"


Response = tuple[int, str, bytes]
"""Status, content type and body, as of a scrape."""


class HealthServer:
    """Serves one port. ``lease`` is in seconds."""

    def __init__(self, port: HealthPort, scoreboard: Scoreboard, lease: float) -> None:
        self._port = port
        self._scoreboard = scoreboard
        self._lease = lease
        self._clients: dict[asyncio.Task[None], None] = {}
        self._scraper = Scraper(port.scrape) if port.scrape else None

    def run(self) -> None:
        asyncio.run(self.serve())

    async def serve(self) -> None:
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
                async with asyncio.timeout(CLIENT_SECONDS) as limit:
                    head = await reader.readuntil(b"\r\n\r\n")
                    limit.reschedule(asyncio.get_running_loop().time() + SCRAPE_SECONDS)
                    writer.write(_encoded(head, await self._response(head)))
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._clients.pop(task, None)
            writer.transport.abort()

    async def _response(self, head: bytes) -> Response:
        request, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        report = {"/healthz": liveness, "/readyz": readiness}.get(path)
        if report is None and (path != "/metrics" or self._scraper is None):
            return 404, TEXT, b"not found\n"
        if method not in ("GET", "HEAD"):
            return 405, TEXT, b"GET or HEAD\n"
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().title(): value.strip() for name, _, value in pairs}
        if report is not None:
            as_json = JSON in headers.get("Accept", "")
            return _rendered(report(self._scoreboard, self._lease), as_json)
        assert self._scraper is not None
        return await self._scraper.scrape(headers)


class Scraper:
    """Scrapes metrics on a thread that has a connection while it does. One scrape at a time; others
    wait. A statement that takes too long is ended."""

    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape
        self._deadline = StatementTimeout()
        self._executor = ThreadPoolExecutor(1, "django_jobs-scrape", self._connect)
        self._under_way: asyncio.Task[Response] | None = None

    async def scrape(self, headers: Mapping[str, str]) -> Response:
        """Scrape once. The scrape continues, and has its limit, if its client leaves."""
        while self._under_way is not None and not self._under_way.done():
            await asyncio.wait({self._under_way})
        scraping = self._under_way = asyncio.create_task(self._limited(headers))
        await asyncio.wait({scraping})
        return scraping.result()

    async def _limited(self, headers: Mapping[str, str]) -> Response:
        loop = asyncio.get_running_loop()
        scraping = loop.run_in_executor(self._executor, self._run, headers)
        while not (await asyncio.wait({scraping}, timeout=ENFORCE_SECONDS))[0]:
            await loop.run_in_executor(None, self._deadline.enforce)
        return scraping.result()

    def _connect(self) -> None:
        own_connection()
        self._deadline.watch()

    def _run(self, headers: Mapping[str, str]) -> Response:
        try:
            return self._scrape(headers)
        finally:
            drop_connection()


def _rendered(report: HealthReport, as_json: bool) -> Response:
    status = 200 if report.is_ok else 503
    if as_json:
        return status, JSON, json.dumps({"ok": report.is_ok, **asdict(report)}).encode()
    return status, TEXT, ("\n".join(report.problems or ("ok",)) + "\n").encode()


def _encoded(head: bytes, response: Response) -> bytes:
    status, content_type, body = response
    lines = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {content_type}",
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
