"""Indexes that the models declare and the tables lack, and those that are of no use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db.models import Model

from ..lifecycle.history import PartitionedTable
from ..models.database import database_option
from .findings import Finding, found
from .history import PARTITIONS
from .reading import Reader, Statement
from .tables import our_models, our_tables

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
FROM unnest(%(tables)s::text[]) AS ours (name)
CROSS JOIN LATERAL (
    SELECT relid FROM pg_partition_tree(to_regclass(ours.name))
    UNION SELECT to_regclass(ours.name)) AS part
JOIN pg_class AS leaf ON leaf.oid = part.relid
JOIN pg_namespace AS namespace ON namespace.oid = leaf.relnamespace
JOIN pg_index ON pg_index.indrelid = leaf.oid
JOIN pg_class AS index ON index.oid = pg_index.indexrelid
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
