"""A mail server and a webhook that keep what they receive."""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Receiver:
    """``received`` are its messages, ``status`` is what it answers, and ``first`` what it answers
    before. A webhook keeps the ``requests``: headers and body."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.requests: list[tuple[Message, bytes]] = []
        self.status = 200
        self.first: list[int] = []
        self.port = 0

    def answer(self, message: Any) -> int:
        """The status with which a message that was just kept is answered."""
        return self.first.pop(0) if self.first else self.status


@contextmanager
def serving(server: socketserver.TCPServer, receiver: Receiver) -> Iterator[Receiver]:
    """The receiver, while a thread serves it."""
    receiver.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def webhook(given: Receiver | None = None) -> Iterator[Receiver]:
    """An HTTP server that keeps what is posted, as JSON."""
    receiver = given or Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.requests.append((self.headers, body))
            message = json.loads(body)
            receiver.received.append(message)
            self.send_response(receiver.answer(message))
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler), receiver):
        yield receiver


@contextmanager
def mail_server() -> Iterator[Receiver]:
    """An SMTP server that keeps the text of each mail. With a ``status`` of 500 or more it refuses
    them."""
    receiver = Receiver()

    class Handler(socketserver.StreamRequestHandler):
        def answer(self, text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        def handle(self) -> None:
            self.answer("220 ready")
            while line := self.rfile.readline().decode().strip():
                verb = line.split()[0].upper()
                if verb == "DATA":
                    self.answer("354 end with a dot")
                    lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
                    receiver.received.append("".join(lines))
                if verb == "MAIL" and receiver.status >= 500:
                    self.answer("550 refused")
                elif verb == "QUIT":
                    self.answer("221 bye")
                    return
                else:
                    self.answer("250 ok")

    with serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler), receiver):
        yield receiver
