"""Between two tests, empty the tables that were written, and no others."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper

from django_jobs.apps import seed, take_over

FEW_PAGES = 16
"""A table of no more pages is emptied by DELETE. To truncate what a test of one job had written,
with the 21 indexes of the live jobs, took 40 ms."""

# Of a partitioned table, its partitions. One that was analyzed is truncated: then the planner knows
# as little of it as before.
WRITTEN = """
SELECT coalesce(leaf.relid, named.oid)::regclass::text,
    pg_relation_size(coalesce(leaf.relid, named.oid))
        <= %s * current_setting('block_size')::bigint AND of_one.reltuples < 0
FROM pg_class AS named LEFT JOIN LATERAL pg_partition_tree(named.oid) AS leaf ON leaf.isleaf
    JOIN pg_class AS of_one ON of_one.oid = coalesce(leaf.relid, named.oid)
WHERE named.relname = ANY(%s) AND named.relkind IN ('r', 'p')
    AND named.relnamespace = current_schema()::regnamespace
    AND pg_relation_size(coalesce(leaf.relid, named.oid)) > 0
"""
OF_MIGRATE = {"django_content_type", "auth_permission"}
"""Written by ``migrate``, and by no test."""

OF_SEED = {"django_jobs_queue", "django_jobs_resource", "django_jobs_tenant"}
OF_TAKE_OVER = {
    "django_jobs_jobtypedefaults", "django_jobs_schedule", "django_jobs_workflowdefinition"
}  # fmt: skip
SEEDED = OF_SEED | OF_TAKE_OVER
"""Written after ``migrate``, and by few tests."""
CONTENTS = " UNION ALL ".join(
    f"SELECT '{table}', md5(string_agg(one::text, ' ' ORDER BY one::text)) FROM {table} AS one"
    for table in sorted(SEEDED)
)

_seeded: dict[str, dict[str, str | None]] = {}
"""By database, the contents of those tables after they were seeded."""


class Command(flush.Command):
    """Django's own truncates all tables, and sends ``post_migrate`` to all apps."""

    def handle(self, **options: Any) -> None:
        """Between tests, which count on no numbers, as ``TransactionTestCase`` says by
        ``reset_sequences``. For all others it is Django's command."""
        if options.get("reset_sequences", True):
            super().handle(**options)
            return
        using = options["database"]
        connection = connections[using]
        name = connection.settings_dict["NAME"]
        tables = set(connection.introspection.django_table_names()) - OF_MIGRATE
        with connection.cursor() as cursor:
            before, found = _seeded.get(name, {}), _contents(cursor)
            changed = {table for table in SEEDED if before.get(table, "") != found[table]}
            with transaction.atomic(using=using):
                _empty(cursor, tables - (SEEDED - changed))
            if changed & OF_SEED:
                seed(using=using)
            if changed & OF_TAKE_OVER:
                take_over(using=using)
            if changed:
                _seeded[name] = _contents(cursor)


def _contents(cursor: CursorWrapper) -> dict[str, str | None]:
    cursor.execute(CONTENTS)
    return dict(cursor.fetchall())


def _empty(cursor: CursorWrapper, tables: set[str]) -> None:
    cursor.execute(WRITTEN, [FEW_PAGES, list(tables)])
    written = cursor.fetchall()
    # First: no table can be truncated whose deleted rows have foreign keys to be checked yet.
    if large := [name for name, is_small in written if not is_small]:
        cursor.execute(f"TRUNCATE {', '.join(large)} CASCADE")
    if small := [name for name, is_small in written if is_small]:
        cursor.execute(";".join(f"DELETE FROM {name}" for name in small))
