"""Between two tests, empty the tables that were written, and no others."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush
from django.db import connections

from django_jobs.apps import seed, take_over

WRITTEN = """
SELECT coalesce(leaf.relid, named.oid)::regclass::text
FROM pg_class AS named LEFT JOIN LATERAL pg_partition_tree(named.oid) AS leaf ON leaf.isleaf
WHERE named.relname = ANY(%s) AND named.relkind IN ('r', 'p')
    AND named.relnamespace = current_schema()::regnamespace
    AND pg_relation_size(coalesce(leaf.relid, named.oid)) > 0
"""
"""Of a partitioned table, its partitions."""
OF_MIGRATE = {"django_content_type", "auth_permission"}
"""Written by ``migrate``, and by no test."""


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
        tables = set(connection.introspection.django_table_names()) - OF_MIGRATE
        with connection.cursor() as cursor:
            cursor.execute(WRITTEN, [list(tables)])
            written = ", ".join(name for (name,) in cursor.fetchall())
            if written:
                cursor.execute(f"TRUNCATE {written} CASCADE")
        seed(using=using)
        take_over(using=using)
