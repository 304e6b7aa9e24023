"""Who holds a snapshot for so long that vacuum cannot remove dead rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from .findings import CannotExamine, Finding, Reader, Statement, age, found

OLD_SECONDS = 600.0
"""A transaction that is open for longer keeps the dead rows of that time."""
OLD_TRANSACTIONS = 1_000_000
"""A slot has no time. A busy fleet needs some hours for as many transactions."""

# Of this database alone: only its snapshots hold back vacuum in its tables. A walsender has no
# database, and holds back all of them by the feedback of its standby; the server does not say since
# when. A vacuum holds back no other one.
SESSIONS = Statement(
    """
SELECT pid, usename AS role, application_name AS application, client_addr::text AS address, state,
    backend_type, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
    age(coalesce(backend_xmin, backend_xid)) AS transactions,
    left(query, 1000) AS query
FROM pg_stat_activity
WHERE (datname = current_database() OR backend_type = 'walsender')
  AND pid <> pg_backend_pid() AND leader_pid IS NULL
  AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  AND (clock_timestamp() - xact_start >= make_interval(secs => %(old)s)
       OR backend_type = 'walsender' AND age(backend_xmin) >= %(transactions)s)
ORDER BY xact_start
LIMIT 5
""",
    lambda: {"old": OLD_SECONDS, "transactions": OLD_TRANSACTIONS},
)
PREPARED = Statement(
    """
SELECT quote_literal(gid) AS gid, owner,
    extract(epoch FROM clock_timestamp() - prepared)::float8 AS seconds
FROM pg_prepared_xacts
WHERE database = current_database()
  AND clock_timestamp() - prepared >= make_interval(secs => %(old)s)
ORDER BY prepared
LIMIT 5
""",
    lambda: {"old": OLD_SECONDS},
)
SLOTS = Statement(
    """
SELECT slot_name AS name, slot_type AS type, active, age(xmin) AS transactions
FROM pg_replication_slots
WHERE xmin IS NOT NULL AND age(xmin) >= %(old)s
ORDER BY age(xmin) DESC
LIMIT 5
""",
    lambda: {"old": OLD_TRANSACTIONS},
)
# A column list of names alone cannot hold a literal or a comment, so what follows is a table.
STATEMENT = re.compile(
    r"""\s*(?:autovacuum:\s)?(?:
        (?P<verb>INSERT\s+INTO|UPDATE|DELETE\s+FROM|COPY|LOCK\s+TABLE|VACUUM|ANALYZE)
        |(?P<select>SELECT)\s[\w\s.,*"]{1,1000}?\sFROM
    )\s+(?P<table>(?:"?[a-z_]\w{0,62}"?\.)?"?[a-z_]\w{0,62}"?)(?![\w".])
    |\s*(?P<word>[a-z_]{2,20})\b""",
    re.IGNORECASE | re.VERBOSE | re.ASCII,
)
SEES_SESSIONS = Statement(
    "SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS all, quote_ident(current_user) AS role"
)


def examine_sessions(read: Reader) -> Iterator[Finding]:
    """Sessions with an old transaction; without the right, those of the own role."""
    for row in read(SESSIONS):
        row["query"] = beginning_of(row["query"] or "")
        who = f"role {row['role']}" + (f", {row['application']}" if row["application"] else "")
        if row["seconds"] is None:
            yield found(
                "D111",
                f"Session {row['pid']} ({who}) sends to a standby, and a query there holds a "
                f"snapshot: {row['transactions']:,} transactions began since, and vacuum keeps all "
                "rows that died since.",
                "End the query on the standby, or bound it there by max_standby_streaming_delay "
                "with hot_standby_feedback off.",
                **row,
            )
            continue
        yield found(
            "D111",
            f"Session {row['pid']} ({who}) has a transaction open for {age(row['seconds'])}; "
            f"{row['transactions']:,} others began since, and vacuum keeps all rows that died "
            f"since. It is {row['state']}{': ' if row['query'] else '.'}{row['query']}",
            "Let it end, or end it:",
            f"SELECT pg_terminate_backend({row['pid']});",
            **row,
        )
    (sees,) = read(SEES_SESSIONS)
    if not sees["all"]:
        grant = f"GRANT pg_monitor TO {sees['role']};"
        raise CannotExamine(f"sessions of other roles need pg_monitor: {grant}")


def beginning_of(statement: str) -> str:
    """What it does and with which table, such as ``SELECT … FROM shop_order``, if that is clear.
    Never a value, a comment or what follows: the server keeps statements cut, in midst of them."""
    known = STATEMENT.match(statement)
    if known is None:
        return ""
    verb = known["verb"] or known["word"] or "SELECT … FROM"
    return " ".join([*verb.upper().split(), *filter(None, [known["table"]])])


def examine_prepared(read: Reader) -> Iterator[Finding]:
    """Prepared transactions that were neither committed nor rolled back."""
    for row in read(PREPARED):
        yield found(
            "D112",
            f"The prepared transaction {row['gid']} of {row['owner']} has been open for "
            f"{age(row['seconds'])}; vacuum keeps all rows that died since.",
            "Ask who prepared it, and commit it or roll it back:",
            f"ROLLBACK PREPARED {row['gid']};",
            **row,
        )


def examine_slots(read: Reader) -> Iterator[Finding]:
    """Replication slots that hold the snapshot of a standby which is gone or far behind."""
    for row in read(SLOTS):
        yield found(
            "D113",
            f"The replication slot {row['name']} is {'' if row['active'] else 'not '}in use and "
            f"holds a snapshot since which {row['transactions']:,} transactions began; vacuum "
            "keeps all rows that died since.",
            "Start its standby again, or drop the slot if there is none:",
            f"SELECT pg_drop_replication_slot('{row['name']}');",
            **row,
        )
