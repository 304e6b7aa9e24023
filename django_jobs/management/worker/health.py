"""The options of ``jobworker`` for probes over HTTP, and their port."""

from __future__ import annotations

import argparse
import logging
import socket
from functools import partial
from ipaddress import ip_address

from django.core.management.base import CommandError

from ...conf import conf
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
        default="127.0.0.1",
        metavar="HOST",
        help="The address to listen at, such as 0.0.0.0 for all. Default: 127.0.0.1.",
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
    is_local = ip_address(host).is_loopback
    if not is_local and not conf().metrics_token:
        emit("health_metrics_refused", logging.WARNING, host=host, port=port)
    return HealthPort(listener, partial(respond, is_local=is_local))


def port_number(text: str) -> int:
    """The number of a port, or 0, for argparse."""
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")
    return port
