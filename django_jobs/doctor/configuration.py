"""Settings that do not fit each other, the fleet or the server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Any

from django.conf import settings
from django.core.checks import ERROR, WARNING
from django.core.checks.registry import registry as system_checks

from .. import registry
from ..conf import BEATS_OF_A_LEASE, conf
from ..models import Queue, Resource, Tenant
from ..models.database import fetch, jobs_connection, migrate_command
from ..models.named_row import NamedRow
from ..models.worker import IS_ALIVE
from ..worker.connections import IDLE_SECONDS, TRANSPORT
from .findings import Finding, Reader, Severity, Statement, found
from .work import MOST_LISTED

SILENCE_SECONDS = TRANSPORT["keepalives_idle"] + (
    TRANSPORT["keepalives_interval"] * TRANSPORT["keepalives_count"]
)
"""After this time a worker notices that packets are lost, and connects again."""
STATEMENT_SECONDS = 5.0
"""The worker's own limit of a claim."""

# Commands on one host have one name, unless they are given others.
LEASES = Statement(
    f"""
SELECT name, min(round(extract(epoch FROM lease_expires_at - heartbeat_at)))::float8 AS lease
FROM django_jobs_worker AS worker
WHERE {IS_ALIVE}
GROUP BY name
ORDER BY 2, 1
LIMIT 20
"""
)
# What a new session of this role in this database has, in milliseconds.
TIME_OUTS = Statement(
    """
SELECT name, reset_val::float8 / 1000 AS seconds FROM pg_settings
WHERE unit = 'ms' AND reset_val <> '0' AND name = ANY(ARRAY[
    'statement_timeout', 'idle_session_timeout', 'idle_in_transaction_session_timeout',
    'transaction_timeout'])
ORDER BY name
"""
)

MODELS: Mapping[str, type[Queue | Resource | Tenant]] = {
    "QUEUES": Queue,
    "RESOURCES": Resource,
    "TENANTS": Tenant,
}
ROWS = Statement(
    "\nUNION ALL\n".join(
        f"SELECT '{setting}' AS setting, name, to_jsonb(row) AS columns "
        f"FROM {model._meta.db_table} AS row WHERE name = ANY(%({setting})s::text[])"
        for setting, model in MODELS.items()
    ),
    lambda: {setting: list(entries) for setting, entries in _entries().items()},
)
COLUMNS = {"strict": ("priority_weight",), "rate": ("rate", "rate_seconds")}
"""Of the options that are not the name of a column."""

OF_SOURCE = {
    "global": "ROLE ALL",
    "database": "DATABASE {database}",
    "user": "ROLE {role}",
    "database user": "ROLE {role} IN DATABASE {database}",
}
# The sources are those that handlers' sessions leave as they are.
UNCHECKED = Statement(
    """
SELECT source, quote_ident(current_database()) AS database, quote_ident(session_user) AS role
FROM pg_settings
WHERE name = 'client_connection_check_interval' AND setting = '0' AND source = ANY(%(sources)s)
""",
    lambda: {"sources": list(OF_SOURCE)},
)

DATE_STYLE = Statement("SELECT current_setting('DateStyle') AS style")


def examine_date_style(read: Reader) -> Iterator[Finding]:
    """Whether psycopg can read the server's times."""
    ((style,),) = (row.values() for row in read(DATE_STYLE))
    if not style.startswith("ISO"):
        yield found(
            "D213",
            f"The server's DateStyle is {style}, in which psycopg reads no times: no schedule "
            "fires, and Django reads no DateTimeField.",
            "Set it for the role and the database, and start workers again:",
            f"ALTER ROLE {_role()} SET DateStyle = ISO;",
            setting="DateStyle",
            style=style,
        )


def examine_abandoned(read: Reader) -> Iterator[Finding]:
    """Whether the server goes on with a statement whose client has gone, because somebody wants
    that: else workers set the interval."""
    for row in read(UNCHECKED):
        of = OF_SOURCE[row["source"]].format(**row)
        yield found(
            "D214",
            f"client_connection_check_interval is 0, set by ALTER {of}. So the server "
            "completes the statement of a handler whose process was killed, and commits it, while "
            "the next attempt runs.",
            "Workers set half a second if nobody sets 0. Remove the setting, and start them again:",
            f"ALTER {of} RESET client_connection_check_interval;",
            setting="client_connection_check_interval",
            source=row["source"],
        )


def examine_lease(read: Reader) -> Iterator[Finding]:
    """Leases that a short loss of packets outlasts."""
    leases = {"LEASE_SECONDS": conf().lease_seconds}
    leases |= {f"the worker {row['name']}": row["lease"] for row in read(LEASES)}
    for of, lease in leases.items():
        is_own = lease != conf().lease_seconds  # --lease-seconds
        beat = lease / BEATS_OF_A_LEASE if is_own else conf().beat_seconds
        needed = beat + SILENCE_SECONDS
        if lease < needed:
            yield found(
                "D211",
                f"The lease of {of} is {lease:g} s. A worker notices lost packets after "
                f"{SILENCE_SECONDS} s, up to {beat:g} s after its last heartbeat: "
                "too late, so its jobs also run elsewhere.",
                f"Raise LEASE_SECONDS or --lease-seconds to {SILENCE_SECONDS * 2} s or more.",
                of=of,
                lease_seconds=lease,
                needed_seconds=needed,
            )


def examine_time_outs(read: Reader) -> Iterator[Finding]:
    """Time-outs of the server that end sessions or statements of workers."""
    time_outs = {row["name"]: row["seconds"] for row in read(TIME_OUTS)}
    for name, problem, seconds in time_out_problems(time_outs):
        yield found(
            "D212",
            f"The server's {name} of {seconds:g} s {problem}.",
            "Turn it off, or raise it, for the role of the workers:",
            f"ALTER ROLE {_role()} SET {name} = 0;",
            setting=name,
            seconds=seconds,
        )


def time_out_problems(seconds: Mapping[str, float]) -> Iterator[tuple[str, str, float]]:
    """(name, problem, seconds) of the time-outs that are too short for a worker."""
    if (idle := seconds.get("idle_session_timeout", IDLE_SECONDS)) < IDLE_SECONDS:
        kept = f"ends the worker's idle connections, which it keeps for {IDLE_SECONDS:g} s"
        yield "idle_session_timeout", kept, idle
    if (statement := seconds.get("statement_timeout", STATEMENT_SECONDS)) < STATEMENT_SECONDS:
        ended = f"ends claims and settles that may take {STATEMENT_SECONDS:g} s"
        yield "statement_timeout", ended, statement
    for name in ("idle_in_transaction_session_timeout", "transaction_timeout"):
        if name in seconds and (longer := exactly_once_for(seconds[name])):
            more = f" and {len(longer) - 1} more" if len(longer) > 1 else ""
            held = f"is shorter than the transaction of {longer[0]}{more} may be (exactly_once)"
            yield name, held, seconds[name]


def exactly_once_for(seconds: float) -> list[str]:
    """The job types whose transaction may be open for longer."""
    job_types = map(registry.get, registry.names())
    return [
        one.name
        for one in job_types
        if one.delivery == "exactly_once" and (one.timeout is None or one.timeout > seconds)
    ]


def examine_checks() -> Iterator[Finding]:
    """The system checks of django_jobs, under their ids. Those of other apps may do anything."""
    ours = [
        check
        for check in system_checks.get_checks(include_deployment_checks=not settings.DEBUG)
        if check.__module__.startswith("django_jobs.")
    ]
    databases = [jobs_connection().alias]
    messages = chain.from_iterable(check(app_configs=None, databases=databases) for check in ours)
    for message in messages:
        id_ = message.id or ""
        if id_.startswith("django_jobs.") and message.level >= WARNING:
            yield Finding(
                id=id_,
                severity=Severity.ERROR if message.level >= ERROR else Severity.WARNING,
                problem=str(message.msg),
                advice=str(message.hint or ""),
            )


def _role() -> str:
    ((role,),) = fetch("SELECT quote_ident(session_user)", {})
    return str(role)


def examine_rows(read: Reader) -> Iterator[Finding]:
    """Rows without what their entry of a setting says: ``migrate`` changes none that exists. What
    the entry leaves out is edited in the admin alone."""
    rows = {(row["setting"], row["name"]): json.loads(row["columns"]) for row in read(ROWS)}
    yield from islice(_differing(rows), MOST_LISTED)


def _differing(rows: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Finding]:
    for setting, entries in _entries().items():
        for name, options in sorted(entries.items()):
            what, row = MODELS[setting]._meta.verbose_name, rows.get((setting, name))
            is_of_task = setting == "RESOURCES" and _is_of_task(name)
            if row is None and is_of_task:
                continue  # the first message makes it
            if row is None:
                yield found(
                    "D314",
                    f"The {what} {name!r} of {setting} has no row.",
                    "Run migrate, which makes it:",
                    migrate_command(),
                    setting=setting,
                    name=name,
                    changed=[],
                )
            elif changed := _changed(MODELS[setting].configured(name, options), options, row):
                source = "the rate_limit of its task" if is_of_task else setting
                yield found(
                    "D314",
                    f"The {what} {name!r} does not have what {source} says. Other values have: "
                    f"{', '.join(changed)}.",
                    "No row that exists is changed. Edit the row in the admin, or the "
                    f"{'task' if is_of_task else 'setting'}, so that both say the same.",
                    setting=setting,
                    name=name,
                    changed=changed,
                )


def _entries() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    rates = {name: {"rate": rate} for name, rate in registry.rates().items() if _is_of_task(name)}
    resources = {**rates, **conf().resources}
    return {"QUEUES": conf().queues, "RESOURCES": resources, "TENANTS": conf().tenants}


def _is_of_task(resource: str) -> bool:
    """Whether its rate is that of a job type, which makes the row, and no entry of the setting."""
    return resource in registry.rates() and resource not in conf().resources


def _changed(configured: NamedRow, options: Mapping[str, Any], row: Mapping[str, Any]) -> list[str]:
    """The columns that the options decide, and that are others in the row."""
    given = {
        option: value
        for option, value in options.items()
        if value is not None and value is not False
    }
    columns = {f"breaker_{option}" for option in given.pop("breaker", ())}
    columns.update(*(COLUMNS.get(option, (option,)) for option in given))
    return sorted(name for name in columns & row.keys() if getattr(configured, name) != row[name])
