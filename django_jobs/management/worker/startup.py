"""Before a worker starts: checks of its options and job types, and its port for probes."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from collections.abc import Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.utils.module_loading import module_has_submodule

from ... import registry
from ...conf import BEATS_OF_A_LEASE, conf
from ...domain.hints import did_you_mean
from ...domain.maintenance import MaintenanceTask
from ...models import Queue
from ...worker.events import emit
from ...worker.options import (
    DEFAULT_THREADS,
    MOST_ASYNC_CONCURRENCY,
    HealthPort,
    Options,
    PoolOptions,
    chosen_pools,
    chosen_queues,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
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
    """Listen at the port of the options, if any. Raises ``CommandError`` if that is impossible."""
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
    from ...metrics.exposition import respond  # here, for most workers serve no metrics

    return HealthPort(listener, partial(respond, is_local=is_local))


def port_number(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 65535")
    return port


def check_processes(
    *,
    no_fork: bool,
    processes: int,
    prefork: int | None,
    max_jobs: int | None,
    max_rss: int | None,
    **others: Any,
) -> None:
    """Raise ``CommandError`` for options that need another one, or fork if there is none."""
    if others["parent"] is not None:
        raise CommandError("--parent is an option of --reload: give both")
    if prefork is not None and (
        no_fork or processes != 1 or others["threads"] is not None or others["pool"]
    ):
        raise CommandError(
            "--prefork N is N processes of one thread each: omit --processes, --threads, --pool "
            "and --no-fork"
        )
    if not no_fork:
        if not hasattr(os, "fork"):
            raise CommandError("this system does not support fork: start jobworker with --no-fork")
    elif processes != 1:
        raise CommandError("--no-fork runs one process: omit --processes")
    elif max_jobs is not None or max_rss is not None:
        raise CommandError("--no-fork cannot replace its process: omit --max-jobs and --max-rss")


def thread_pools(
    *,
    pool: Sequence[str] | None,
    queues: str | None,
    threads: int | None,
    prefork: int | None,
    strict: bool,
    async_concurrency: int,
    **others: Any,
) -> tuple[PoolOptions, ...]:
    """The thread pools that the options ask for: those of ``--pool``, or one of all queues and
    threads. Raises ``CommandError`` for options that contradict each other or do not fit."""
    if pool and (queues is not None or threads is not None):
        raise CommandError("--pool names queues and their threads: omit --queues and --threads")
    if async_concurrency > MOST_ASYNC_CONCURRENCY:
        raise CommandError(
            f"--async-concurrency is at most {MOST_ASYNC_CONCURRENCY:,} in a process; for more, "
            "use --processes"
        )
    names = list(Queue.objects.names())
    try:
        if pool:
            return chosen_pools(pool, names)
        shares = chosen_queues(queues, strict, names)
    except ValueError as error:
        raise CommandError(f"{'--pool' if pool else '--queues'}: {error}") from None
    return (PoolOptions(queues=shares, threads=1 if prefork else threads or DEFAULT_THREADS),)


def chosen_options(**options: Any) -> Options:
    """What the options of the command and the settings ask for. Raises ``CommandError``."""
    pools = thread_pools(**options)
    lease = options["lease_seconds"]
    return Options(
        queues=tuple(share for pool in pools for share in pool.queues),
        every_queue=options["queues"] is None and not options["pool"],
        strict=options["strict"],
        processes=options["prefork"] or options["processes"],
        threads=sum(pool.threads for pool in pools),
        async_concurrency=options["async_concurrency"],
        named_pools=pools if options["pool"] else (),
        drain_timeout=options["drain_timeout"],
        burst=options["burst"],
        lease=lease or conf().lease_seconds,
        beat=lease / BEATS_OF_A_LEASE if lease else conf().beat_seconds,
        poll=options["poll_seconds"] or conf().poll_seconds,
        max_jobs=options["max_jobs"],
        max_rss=options["max_rss"],
        name=options["name"] or socket.gethostname(),
        forks=not options["no_fork"],
        health=open_port(**options),
    )


def warn_of_job_types() -> None:
    """Warn if no job type is known, and of each one that is known by chance."""
    if not registry.names():
        emit("no_job_types", logging.WARNING, hint=_why_there_are_none())
    for job_type in registry.known_by_chance():
        module = job_type.handler.__module__
        emit(
            "job_type_by_chance",
            logging.WARNING,
            job_type=job_type.name,
            module=module,
            hint=f"import {module} in the jobs.py of an installed app; a worker that starts with "
            "--skip-checks does not know this job type",
        )


def unknown_types() -> MaintenanceTask:
    """The maintenance task that names types of ready jobs which no worker knows, each once."""
    from ...metrics.unclaimable import take_unclaimable

    named: set[str] = set()

    def look() -> int:
        for backlog in take_unclaimable()[0]:
            if backlog.job_type not in named:
                named.add(backlog.job_type)
                hint = did_you_mean(backlog.job_type, registry.names()) or "start one that does"
                emit(
                    "unknown_job_type",
                    logging.WARNING,
                    job_type=backlog.job_type,
                    jobs=backlog.ready,
                    hint=hint,
                )
        return 0

    return MaintenanceTask(name="unknown_types", every=5.0, batch=1, run_once=look)


def _why_there_are_none() -> str:
    with_jobs = [
        config.name
        for config in apps.get_app_configs()
        if config.module is not None and module_has_submodule(config.module, "jobs")
    ]
    if with_jobs:
        return f"no handler is declared in jobs.py of: {', '.join(with_jobs)}"
    return "no app in INSTALLED_APPS has a jobs.py; is your app missing from INSTALLED_APPS?"
