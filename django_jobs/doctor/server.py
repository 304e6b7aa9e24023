"""The connection to the database: notifications, poolers, clocks, and how many there may be."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from threading import Timer
from typing import Any

import psycopg

from ..models.database import fetch, fetch_named, jobs_connection
from ..models.worker import IS_ALIVE
from ..worker.connections import NO_SESSION, unpooled, with_session
from ..worker.options import HEARTBEAT_CONNECTIONS, connections_of
from .findings import CannotExamine, Finding, Reader, Rows, Statement, found

CHANNEL = "django_jobs_doctor"
LISTEN_SECONDS = 2.0
ANSWER_SECONDS = 2.0
"""For connecting, for a session of a pooler, and for a statement of these connections."""
MOST_SKEW = 1.0
"""Seconds that a clock may differ. Log lines of two hosts are then in a wrong order."""
USED_UP = 0.9

# The limits of a role and a database count all of their sessions, in all of the server's databases.
# Without pg_monitor the type of other roles' sessions is null. Those of the server have no user, as
# those that are connecting.
LIMITS = Statement(
    """
SELECT current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true)::integer, 0) AS server,
    (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
        AS database,
    (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = session_user) AS role,
    quote_ident(current_database()) AS database_name, quote_ident(session_user) AS role_name,
    (SELECT count(*) FROM pg_stat_activity
     WHERE (backend_type = 'client backend' OR backend_type IS NULL)
       AND usesysid IS NOT NULL AND datid IS NOT NULL) AS used
"""
)
FLEET = Statement(
    f"""
SELECT name, host, threads, async_slots > 0 AS on_loop FROM django_jobs_worker AS worker
WHERE {IS_ALIVE}
"""
)
# Of each host the clock that is farthest away, and the names of workers that found it so.
SKEWED = Statement(
    f"""
SELECT host, (array_agg(clock_skew ORDER BY abs(clock_skew) DESC))[1] AS skew,
    (array_agg(DISTINCT name::text ORDER BY name::text))[:5] AS workers
FROM django_jobs_worker AS worker
WHERE {IS_ALIVE}
  AND abs(clock_skew) > %(most)s::float8
GROUP BY host ORDER BY max(abs(clock_skew)) DESC, host LIMIT 20
""",
    lambda: {"most": MOST_SKEW},
)
# The limit is of the transaction, so that nobody inherits it from a pool.
OWN_SESSION = "SELECT pg_backend_pid(), set_config('statement_timeout', %s, true)"


def examine_listening() -> Iterator[Finding]:
    """Whether a notification arrives in a second session; else whether a pooler is in the way."""
    try:
        with _own_connection() as listener:
            arrives, session = _notification_arrives(listener)
            claimed = listener.info.backend_pid
    except _NoSession:
        yield _no_session()
        return
    if arrives:
        return
    yield found(
        "D201",
        f"A notification did not arrive within {LISTEN_SECONDS:g} s. Workers poll instead, so jobs "
        "may start up to POLL_SECONDS later.",
        "Give the workers a direct connection to the server, or a pooler in session mode.",
        pooled=claimed != session,
    )
    if claimed != session:
        yield from _pooled(jobs_connection().settings_dict)


def _no_session() -> Finding:
    needed = _needed(fetch_named(FLEET.sql, {}))
    return found(
        "D206",
        f"A connection was accepted, and had no session for {ANSWER_SECONDS:g} s: all of a "
        "pooler's are in use, or the server hangs. So it is not known whether notifications "
        "arrive. Handlers wait for such a session for five seconds, then their jobs are snoozed.",
        f"The live workers may need {needed} sessions, and more for isolated jobs and the site: "
        "raise default_pool_size of PgBouncer, or give them a direct connection.",
        needed=needed,
    )


def _pooled(settings: dict[str, Any]) -> Iterator[Finding]:
    """What a pooler in transaction mode needs. That it is one is a guess: it does not say so."""
    needs = []
    if not settings.get("DISABLE_SERVER_SIDE_CURSORS"):
        needs.append("DISABLE_SERVER_SIDE_CURSORS = True, or iterator() fails")
    if settings["OPTIONS"].get("prepare_threshold") is not None:
        needs.append('OPTIONS["prepare_threshold"] = None, if it is a PgBouncer before 1.21')
    if needs:
        yield found(
            "D202",
            "The server names another session than the connection does, and notifications do not "
            "arrive: the connection probably goes through a pooler in transaction mode. Its "
            f"settings lack {' and '.join(needs)}.",
            "Set that in DATABASES, or use a direct connection.",
            needs=needs,
        )


def _notification_arrives(listener: psycopg.Connection[Any]) -> tuple[bool, int]:
    """Whether it does, and the session of ``listener`` by the server's word.

    It is sent from another connection: a session gets its own with the answer, also behind a pooler
    that delivers none.
    """
    test = f"{random.getrandbits(64)}"
    with listener.transaction():
        session, _ = listener.execute(OWN_SESSION, [f"{ANSWER_SECONDS}s"]).fetchone() or (0, "")
        listener.execute(f"LISTEN {CHANNEL}")
    with _own_connection() as sender, sender.transaction():
        sender.execute(OWN_SESSION, [f"{ANSWER_SECONDS}s"])
        sender.execute("SELECT pg_notify(%s, %s)", [CHANNEL, test])
    until = time.monotonic() + LISTEN_SECONDS
    while (left := until - time.monotonic()) > 0:
        for notice in listener.notifies(timeout=left, stop_after=1):
            if notice.payload == test:
                return True, session
    return False, session


class _NoSession(Exception):
    """A pooler has none for a connection that it accepted."""


@contextmanager
def _own_connection() -> Iterator[psycopg.Connection[Any]]:
    """A connection that is shut if it is not done in time, such as when packets are lost."""
    parameters = unpooled(jobs_connection()).get_connection_params()
    parameters |= {"autocommit": True, "connect_timeout": round(ANSWER_SECONDS)}
    try:
        with closing(psycopg.connect(**parameters)) as opened:
            with_session(opened, patience=ANSWER_SECONDS)
            timer = Timer(2 * ANSWER_SECONDS + LISTEN_SECONDS, _shut, [opened.fileno()])
            timer.start()
            try:
                yield opened
            finally:
                timer.cancel()
                timer.join()
    except psycopg.OperationalError as error:
        if NO_SESSION in str(error):
            raise _NoSession from error
        reason = f"a connection of its own failed, or got no answer in time: {error}"
        raise CannotExamine(" ".join(reason.split())) from error


def _shut(descriptor: int) -> None:
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


def examine_clock(read: Reader) -> Iterator[Finding]:
    """How far the clocks of this host, and of those of live workers, are from the database's."""
    yield from _clock_of_this_host()
    for row in read(SKEWED):
        host, skew, workers = row["host"], row["skew"], row["workers"]
        names = " and ".join(filter(None, [", ".join(workers[:-1]), workers[-1]]))
        of = "the workers" if len(workers) > 1 else "the worker"
        yield found(
            "D203",
            f"The clock of the host {host}, of {of} {names}, "
            f"is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the database's, by their "
            "heartbeats. What handlers read from it, and the times of log lines, are as wrong.",
            "Synchronize the clocks of both:",
            "timedatectl status",
            host=host,
            skew_seconds=skew,
            workers=workers,
        )


def _clock_of_this_host() -> Iterator[Finding]:
    before = datetime.now(UTC)
    ((there,),) = fetch("SELECT clock_timestamp()", {})
    after = datetime.now(UTC)
    slack = (after - before).total_seconds() / 2
    skew = (before + (after - before) / 2 - there).total_seconds()
    if abs(skew) - slack > MOST_SKEW:
        yield found(
            "D203",
            f"The clock of this host is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} "
            f"the database's (±{slack:.3f} s). Leases and due times are by the database's clock; "
            "a run_at computed here, and the times of log lines, are by this host's.",
            "Synchronize the clocks of both:",
            "timedatectl status",
            skew_seconds=skew,
            uncertainty_seconds=slack,
        )


def examine_connections(read: Reader) -> Iterator[Finding]:
    """Whether the server allows as many connections as the live workers may need."""
    (row,) = read(LIMITS)
    limits = {name: row[name] for name in ("server", "database", "role") if row[name] is not None}
    of, limit = min(limits.items(), key=lambda item: item[1])
    needed = _needed(read(FLEET))
    if needed > limit:
        yield found(
            "D204",
            f"The live workers may need {needed} connections, without those of isolated jobs and "
            f"the site, and the {of} allows {limit}. Handlers then wait, and jobs are snoozed.",
            *_raising(of, needed + 50, row),
            needed=needed,
            allowed=limit,
            limit_of=of,
        )
    if row["used"] >= USED_UP * row["server"]:
        yield found(
            "D205",
            f"{row['used']} of the server's {row['server']} connections are in use.",
            "See who holds them, and close idle ones or raise max_connections:",
            "SELECT usename, application_name, state, count(*) FROM pg_stat_activity "
            "GROUP BY 1, 2, 3 ORDER BY 4 DESC;",
            used=row["used"],
            allowed=row["server"],
        )


def _raising(of: str, number: int, names: dict[str, Any]) -> tuple[str, str]:
    """How to raise the limit of the server, the database or the role, and the statement."""
    if of == "server":
        how = "Run fewer threads, or raise the limit, as a superuser, with a restart:"
        return how, f"ALTER SYSTEM SET max_connections = {number};"
    how = "Run fewer threads, or raise the limit of the {of}, as a superuser:"
    return how.format(of=of), f"ALTER {of.upper()} {names[f'{of}_name']} CONNECTION LIMIT {number};"


def _needed(fleet: Rows) -> int:
    return fleet_needs((one["name"], one["host"], one["threads"], one["on_loop"]) for one in fleet)


def fleet_needs(workers: Iterable[tuple[str, str, int, bool]]) -> int:
    """The most connections that these worker processes need, by (name, host, threads, on_loop).
    Those with the same name and host are taken as of one command."""
    workers = list(workers)
    commands = {(name, host) for name, host, _, _ in workers}
    return HEARTBEAT_CONNECTIONS * len(commands) + sum(
        connections_of(threads, on_loop=on_loop) for _, _, threads, on_loop in workers
    )
