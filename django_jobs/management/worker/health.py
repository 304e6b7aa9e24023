"""The options of ``jobworker`` for probes over HTTP, and their port."""

from __future__ import annotations

import argparse
import logging
import socket

from django.core.management.base import CommandError

from ...metrics.views import respond
from ...worker.events import emit
from ...worker.options import HealthPort


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--health-port`` and ``--health-host``."""
    parser.add_argument(
        "--health-port",
        type=port_number,
        metavar="PORT",
        help="Serve /healthz, /readyz and /metrics at this port; 0 for any that is free.",
    )
    parser.add_argument(
        "--health-host",
        default="0.0.0.0",  # noqa: S104 — probes come from outside the container
        metavar="HOST",
        help="The address to listen at. Default: 0.0.0.0.",
    )


def open_port(*, health_port: int | None, health_host: str, **others: object) -> HealthPort | None:
    """Listen at the port of the options; None without one. Raises ``CommandError`` if that is not
    possible."""
    if health_port is None:
        return None
    try:
        family, *_, address = socket.getaddrinfo(
            health_host, health_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server(address, family=family, dualstack_ipv6=both)
    except OSError as error:
        raise CommandError(
            f"--health-port: cannot listen at {health_host} port {health_port}: {error}"
        ) from None
    host, port = listener.getsockname()[:2]
    emit("health_server_listens", logging.INFO, host=host, port=port)
    return HealthPort(listener, respond)


def port_number(text: str) -> int:
    """The number of a port, or 0, for argparse."""
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")
    return port
