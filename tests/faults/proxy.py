"""A TCP proxy in front of a PostgreSQL that loses, holds up or delays what passes through it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import quote

from tests.patience import PATIENCE

READY = b"Z\x00\x00\x00\x05"
"""How a server's message begins that ends its answer (ReadyForQuery)."""

ENCRYPTION = {number.to_bytes(4) for number in (80_877_103, 80_877_104)}
"""What a client may ask for before it begins: SSLRequest and GSSENCRequest."""


class Heard:
    """Reads from what a client sends, in pieces, which statements it executes. The text of one that
    psycopg prepares is sent once; what executes it has its name."""

    def __init__(self) -> None:
        self._rest = b""
        self._has_begun = False  # what it begins with has no byte for its kind
        self._prepared: dict[bytes, bytes] = {}

    def read(self, data: bytes) -> bytes:
        """The texts of the messages that are whole now."""
        self._rest += data
        said = b""
        while (end := self._end()) <= len(self._rest):
            message, self._rest = self._rest[:end], self._rest[end:]
            kind, body = (message[:1], message[5:]) if self._has_begun else (b"", message[4:])
            self._has_begun = self._has_begun or body not in ENCRYPTION
            if kind == b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text
            else:
                said += self._prepared[body.split(b"\0", 2)[1]] if kind == b"B" else body
        return said

    def _end(self) -> int:
        begin = 1 if self._has_begun else 0
        length = self._rest[begin : begin + 4]
        return begin + int.from_bytes(length) if len(length) == 4 else len(self._rest) + 1


class Proxy:
    """Listens on a port of its own inside the ``with`` block.

    ``delay`` holds up every question by so many seconds. Sockets are shut and not merely closed,
    else the peer would never see it.
    """

    def __init__(self, settings: Mapping[str, Any], host: str = "127.0.0.1") -> None:
        """``settings`` are Django's of the database to stand in front of."""
        self.server = address_of(settings)
        self.delay = 0.0
        self.was_cut = threading.Event()
        self.at_cut: Callable[[], None] | None = None
        self._settings = settings
        self._flows = threading.Event()
        self._flows.set()
        self._cut_at, self._after = b"", b""
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((host, 0))

    def __enter__(self) -> Self:
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *error: object) -> None:
        _shut(self._listener)
        self._acceptor.join(PATIENCE)
        self._listener.close()
        self.cut_all()
        self.let_pass()
        for thread in self._threads:
            thread.join(PATIENCE)

    @property
    def url(self) -> str:
        """For a process that is to connect through it."""
        name, user, password = (str(self._settings[key]) for key in ("NAME", "USER", "PASSWORD"))
        host, port = self._listener.getsockname()
        return f"postgresql://{user}:{quote(password)}@{host}:{port}/{name}?sslmode=disable"

    def swallow(self) -> None:
        """A black hole: take everything and pass nothing on, until :meth:`let_pass`."""
        self._flows.clear()

    def let_pass(self) -> None:
        """Pass on, also what was swallowed of connections that are still open."""
        self._flows.set()

    def cut_all(self) -> None:
        """End all connections."""
        while self._sockets:
            _shut(self._sockets.pop())

    def cut_after(self, text: str, *, on_one_that_said: str = "") -> None:
        """Cut the next connection that sends ``text``, once the server has done it: the answer is
        lost. ``on_one_that_said`` is what it must have sent before. ``at_cut``, if set, is called
        in place of a cut."""
        self.was_cut.clear()
        self._after, self._cut_at = on_one_that_said.encode(), text.encode()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            family = socket.AF_UNIX if isinstance(self.server, str) else socket.AF_INET
            server = socket.socket(family, socket.SOCK_STREAM)
            try:
                server.connect(self.server)
            except OSError:
                client.close()
                server.close()
                continue
            self._sockets += [client, server]
            lost = threading.Event()
            for pump in (self._ask, self._answer):
                thread = threading.Thread(target=pump, args=(client, server, lost), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _ask(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        said = b""
        heard = Heard()
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                self._flows.wait()
                time.sleep(self.delay)
                new = heard.read(data)
                said = (said + new)[-1_000_000:]
                if self._cut_at and self._cut_at in new and self._after in said:
                    self._cut_at = b""
                    lost.set()
                server.sendall(data)
        _shut(server)

    def _answer(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                self._flows.wait()
                if not lost.is_set():
                    client.sendall(data)
                elif data[-6:-1] == READY:
                    (self.at_cut or partial(_shut, server))()
                    self.was_cut.set()
        _shut(client)
        client.close()
        server.close()


def address_of(settings: Mapping[str, Any]) -> Any:
    """Where the server of Django's ``settings`` listens: a path, or host and port."""
    host = settings["HOST"] or settings.get("OPTIONS", {}).get("host", "/var/run/postgresql")
    port = int(settings["PORT"] or 5432)
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
