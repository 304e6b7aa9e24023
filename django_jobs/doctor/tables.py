"""Dead rows, autovacuum and the storage parameters of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.db.models import Model

from .findings import Finding, age, found
from .reading import Reader, Statement

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
    """The models with a table."""
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
