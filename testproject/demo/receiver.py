"""A receiver of webhooks that does not always answer as one would wish."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

RETRY_AFTER = 2
"""Seconds that a busy receiver asks for."""
SLOW_SECONDS = 3.0
"""Longer than the sender waits for an answer."""


class Script(StrEnum):
    """How the first request of a delivery is answered. All later ones are accepted."""

    ACCEPTS = "accepts"
    BUSY = "busy"
    BROKEN = "broken"
    SLOW = "slow"


class Receiver:
    """Listens on the loopback while the context lasts. The path, ``/<script>/<delivery id>``, says
    how to answer.

    ``requests`` counts the requests of each delivery and ``accepted`` those answered with 200.
    """

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="receiver"
        )

    def url(self, script: Script, delivery_id: str) -> str:
        """Where to send a delivery that is to be answered by ``script``."""
        return f"http://127.0.0.1:{self._server.server_port}/{script}/{delivery_id}"

    def answer(self, script: Script, delivery_id: str) -> int | None:
        """The status to answer a request with; None where the sender is left waiting."""
        with self._lock:
            self.requests[delivery_id] += 1
            if self.requests[delivery_id] == 1:
                match script:
                    case Script.BUSY:
                        return 429
                    case Script.BROKEN:
                        return 500
                    case Script.SLOW:
                        return None
            self.accepted[delivery_id] += 1
            return 200

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    receiver: Receiver
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A sender that went away, as one does whose process was killed, is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        script, _, delivery_id = self.path.lstrip("/").partition("/")
        if script not in list(Script) or not delivery_id:
            self.send_error(404)
            return
        status = self.server.receiver.answer(Script(script), delivery_id)
        if status is None:
            self.server.receiver.closing.wait(SLOW_SECONDS)
            return
        with contextlib.suppress(ConnectionError):
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", str(RETRY_AFTER))
            self.send_header("Content-Length", "0")
            self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """The demo tells what arrived; a line for each request would drown it."""
