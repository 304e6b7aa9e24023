"""Dead rows, and who keeps vacuum from removing them; storage parameters; indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import apps
from django.db.models import Model

from ..lifecycle.history import PartitionedTable
from ..models.database import database_option
from .findings import CannotExamine, Finding, Reader, Statement, age, found
from .history import PARTITIONS

MOST_DEAD_PER_START = 10
"""How often autovacuum could have started by now, by the number of dead rows."""
FEWEST_DEAD = 20_000
"""Fewer dead rows are no problem: a page has about ten, and a claim reads past it in 0.1 ms."""

# All tables with rows, partitions instead of the partitioned tables. Storage parameters of a table
# override the server's.
TABLES = Statement(
    """
SELECT leaf.relname AS name, leaf.reltuples::bigint AS rows, leaf.reloptions AS options,
    EXISTS (SELECT FROM pg_options_to_table(leaf.reloptions)
            WHERE option_name = 'autovacuum_enabled' AND NOT option_value::boolean)
        AS autovacuum_off,
    coalesce(stat.n_dead_tup, 0) AS dead, coalesce(stat.n_live_tup, 0) AS live,
    extract(epoch FROM clock_timestamp() - greatest(stat.last_autovacuum, stat.last_vacuum))::float8
        AS vacuumed_seconds,
    coalesce((SELECT option_value::float8 FROM pg_options_to_table(leaf.reloptions)
              WHERE option_name = 'autovacuum_vacuum_threshold'),
             current_setting('autovacuum_vacuum_threshold')::float8)
    + greatest(leaf.reltuples, 0)
    * coalesce((SELECT option_value::float8 FROM pg_options_to_table(leaf.reloptions)
                WHERE option_name = 'autovacuum_vacuum_scale_factor'),
               current_setting('autovacuum_vacuum_scale_factor')::float8) AS starts_at
FROM unnest(%(tables)s::text[]) AS ours (name)
CROSS JOIN LATERAL (
    SELECT relid FROM pg_partition_tree(to_regclass(ours.name)) WHERE isleaf
    UNION SELECT to_regclass(ours.name)) AS part
JOIN pg_class AS leaf ON leaf.oid = part.relid AND leaf.relkind = 'r'
LEFT JOIN pg_stat_user_tables AS stat ON stat.relid = leaf.oid
ORDER BY leaf.relname
""",
    lambda: {"tables": our_tables()},
)
SERVER = Statement(
    "SELECT name, setting FROM pg_settings WHERE name IN ('autovacuum', 'track_counts')"
)

PARAMETERS = {
    "django_jobs_job_live": (
        *("autovacuum_vacuum_scale_factor=0.01", "autovacuum_vacuum_threshold=1000"),
        *("autovacuum_vacuum_cost_delay=0", "autovacuum_analyze_scale_factor=0.02"),
        "autovacuum_vacuum_insert_scale_factor=0.1",
    ),
    "django_jobs_worker": (
        *("autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=500"),
        "fillfactor=50",
    ),
}
"""What ``migrate`` sets. Others may choose other values; a missing one was lost."""


def our_tables() -> list[str]:
    """The tables of the models, without their partitions."""
    return [model._meta.db_table for model in our_models()]


def our_models() -> list[type[Model]]:
    models = apps.get_app_config("django_jobs").get_models()
    return [model for model in models if not model._meta.proxy]


def examine_server(read: Reader) -> Iterator[Finding]:
    """Whether autovacuum can run at all."""
    for row in read(SERVER):
        if row["setting"] == "off":
            name = row["name"]
            yield found(
                "D102",
                f"The server's {name} is off, so dead rows are never removed and the tables grow.",
                "Turn it on, as a superuser:",
                f"ALTER SYSTEM SET {name} = on;",
                "SELECT pg_reload_conf();",
                setting=name,
            )


def examine_tables(read: Reader) -> Iterator[Finding]:
    """Dead rows, autovacuum and storage parameters of each table."""
    for table in read(TABLES):
        yield from _table(table)


def _table(table: dict[str, Any]) -> Iterator[Finding]:
    name, options = table["name"], table["options"] or []
    if table["autovacuum_off"]:
        yield found(
            "D103",
            f"Autovacuum is off for {name}, so its dead rows are never removed.",
            "Turn it on, as the owner of the table:",
            f"ALTER TABLE {name} RESET (autovacuum_enabled);",
            table=name,
        )
    if table["dead"] >= max(FEWEST_DEAD, MOST_DEAD_PER_START * table["starts_at"]):
        since = table["vacuumed_seconds"]
        yield found(
            "D101",
            f"{name} has {table['dead']:,} dead rows and {table['live']:,} live ones. Autovacuum "
            f"starts at {table['starts_at']:,.0f}; the last vacuum was "
            f"{'never seen' if since is None else age(since) + ' ago'}.",
            "If a finding D111, D112 or D113 names a holder of an old snapshot, end it first: "
            "vacuum cannot remove rows that it may still see. Then:",
            f"VACUUM (VERBOSE, ANALYZE) {name};",
            table=name,
            dead=table["dead"],
            live=table["live"],
            autovacuum_starts_at=round(table["starts_at"]),
            vacuumed_seconds=since,
        )
    given = {option.partition("=")[0] for option in options}
    if lost := [one for one in PARAMETERS.get(name, ()) if one.partition("=")[0] not in given]:
        yield found(
            "D104",
            f"{name} has lost storage parameters that migrate sets: {', '.join(lost)}.",
            "Set them again, as the owner of the table:",
            f"ALTER TABLE {name} SET ({', '.join(lost)});",
            table=name,
            lost=lost,
        )


BLOATED_BYTES = 16 * 2**20
"""A smaller index stays in memory, however empty it is."""
BLOATED_TIMES = 4
"""How often an index of its entries would fit into a bloated one."""

# Each index of our tables and their partitions, and of the large ones how many bytes they need, if
# their entries were ever counted: the view pg_stats is slow. An entry has its columns, a header of
# 8 bytes, a pointer of 4 and some alignment; a page is 70 percent full after random inserts. The
# partitions of days have indexes like those of the default one, with names that PostgreSQL chose.
INDEXES = Statement(
    """
SELECT leaf.relname AS table_name, index.relname AS name,
    index.oid::regclass::text AS quoted, pg_index.indisvalid AS valid,
    index.relname ~ '_cc(new|old)[0-9]*$' AS is_leftover,
    CASE WHEN leaf.relispartition THEN split_part(pg_get_indexdef(index.oid), ' USING ', 2) END
        AS definition, pg_index.indisunique AS is_unique,
    pg_relation_size(index.oid) AS bytes, greatest(index.reltuples, 0)::bigint AS entries,
    CASE WHEN pg_relation_size(index.oid) >= %(large)s AND index.reltuples >= 0 THEN (
        index.reltuples * (20 + (
            SELECT coalesce(sum(coalesce(stats.avg_width, 16)), 16)
            FROM pg_attribute AS attribute LEFT JOIN pg_stats AS stats
                ON stats.schemaname = namespace.nspname AND stats.tablename = leaf.relname
                AND stats.attname = attribute.attname
            WHERE attribute.attrelid = leaf.oid AND attribute.attnum = ANY(pg_index.indkey)
        )) / 0.7)::bigint END AS needed_bytes
FROM pg_class AS leaf
JOIN pg_namespace AS namespace ON namespace.oid = leaf.relnamespace
JOIN pg_index ON pg_index.indrelid = leaf.oid
JOIN pg_class AS index ON index.oid = pg_index.indexrelid
WHERE leaf.oid = ANY(ARRAY(
    SELECT part.relid FROM unnest(%(tables)s::text[]) AS ours (name)
    CROSS JOIN LATERAL (
        SELECT relid FROM pg_partition_tree(to_regclass(ours.name))
        UNION SELECT to_regclass(ours.name)) AS part))
ORDER BY leaf.relname, index.relname
""",
    lambda: {"tables": our_tables(), "large": BLOATED_BYTES},
)


def declared_indexes() -> list[tuple[str, str, type[Model]]]:
    """(name, table, model) of the indexes and unique constraints that the models declare."""
    return [
        (one.name, model._meta.db_table, model)
        for model in our_models()
        for one in (*model._meta.indexes, *model._meta.constraints)
        if getattr(one, "fields", ())
    ]


def examine_indexes(read: Reader) -> Iterator[Finding]:
    """Missing, invalid, left over and bloated indexes."""
    rows = read(INDEXES)
    there = {row["name"] for row in rows}
    for name, table, model in declared_indexes():
        if name not in there:
            yield found(
                "D121",
                f"The index {name} of {table} is missing, so statements read the whole table; a "
                "unique one guards nothing.",
                "Make it again. Print its statement with sqlmigrate, and run it with CONCURRENTLY "
                "(on the partition django_jobs_job_live or django_jobs_run_default, if the table "
                "is partitioned):",
                f"manage.py sqlmigrate django_jobs 0001{database_option()} | grep '\"{name}\"'",
                index=name,
                table=table,
                model=model.__name__,
            )
    for partitioned, statement in PARTITIONS.items():
        yield from _partitions(partitioned, [row["name"] for row in read(statement)], rows)
    for row in rows:
        yield from _index(row)


def _partitions(
    table: PartitionedTable, partitions: Sequence[str], rows: Sequence[dict[str, Any]]
) -> Iterator[Finding]:
    """The indexes of the default partition that other partitions lack."""
    like = {row["definition"]: row for row in rows if row["table_name"] == table.default}
    for partition in partitions:
        there = {row["definition"] for row in rows if row["table_name"] == partition}
        for definition in like.keys() - there:
            index = like[definition]
            unique = "UNIQUE " if index["is_unique"] else ""
            yield found(
                "D121",
                f"{partition} has no index like {index['name']}, so statements read the whole "
                "partition.",
                "Build it:",
                f"CREATE {unique}INDEX CONCURRENTLY ON {partition} USING {definition};",
                index=index["name"],
                table=partition,
            )


def _index(row: dict[str, Any]) -> Iterator[Finding]:
    name, table = row["name"], row["table_name"]
    facts = {"index": name, "table": table, "bytes": row["bytes"]}
    size = f"{row['bytes'] / 2**20:,.1f} MB"
    if row["is_leftover"]:
        yield found(
            "D123",
            f"{name} on {table} ({size}) is left over from an interrupted REINDEX CONCURRENTLY. "
            "Each write still pays for it.",
            "Drop it:",
            f"DROP INDEX CONCURRENTLY {row['quoted']};",
            **facts,
        )
    elif not row["valid"]:
        yield found(
            "D122",
            f"The index {name} on {table} is invalid: no statement uses it, and each write pays "
            "for it. Its build was interrupted.",
            "Build it again:",
            f"REINDEX INDEX CONCURRENTLY {row['quoted']};",
            **facts,
        )
    elif row["needed_bytes"] is not None and row["bytes"] >= BLOATED_TIMES * row["needed_bytes"]:
        yield found(
            "D124",
            f"The index {name} on {table} takes {size}, and its {row['entries']:,} entries need "
            f"about {row['needed_bytes'] / 2**20:,.1f} MB (by PostgreSQL's statistics).",
            "Build it again, when no old transaction is open (D111):",
            f"REINDEX INDEX CONCURRENTLY {row['quoted']};",
            entries=row["entries"],
            needed_bytes=row["needed_bytes"],
            **facts,
        )


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
