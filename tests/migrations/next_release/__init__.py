"""The migrations of a release to come: those of the package, and one that uses each operation for
tables in use. A value of ``MIGRATION_MODULES``."""

from django_jobs import migrations

__path__ = [*__path__, *migrations.__path__]
