"""Columns: times with PostgreSQL's range, numbers, tags. And what a table says of its columns in a
line: indexes and constraints."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import TYPE_CHECKING, Any, Self

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.expressions import Col, Subquery
from django.db.models.functions import Now
from psycopg.pq import Format
from psycopg.types.numeric import FloatLoader

if TYPE_CHECKING:
    Expression = models.Expression
    TimestampField, FloatField = models.DateTimeField, models.FloatField
    """For django-stubs, which knows their types with null=True and without."""
else:
    Expression = object


FIRST_DAY, LAST_DAY = datetime.min.date(), datetime.max.date()
"""On these days some time zone has a date that Python cannot represent."""


class DistantTime(datetime):
    """A time that Python cannot represent: ``infinity``, a year after 9999 or before 1.

    It compares like the first or the last ``datetime``. ``text`` is what PostgreSQL shows. A
    conversion to another time zone does not change it.
    """

    text: str

    @classmethod
    def of(cls, text: str) -> DistantTime:
        is_past = text.startswith(("-", "0001")) or text.endswith("BC")
        edge = datetime.min if is_past else datetime.max
        distant = cls.combine(edge.date(), edge.time(), UTC)
        distant.text = text
        return distant

    def astimezone(self, tz: tzinfo | None = None) -> Self:
        return self


class ReadableTime(Expression):
    """Mixed into an expression that yields a timestamp. It is selected as text, so that one row
    that psycopg cannot read does not fail the whole query. It is read in UTC, as by
    :func:`~django_jobs.models.database.jobs_cursor`."""

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        # Within another statement the type matters, and DISTINCT compares it with the ORDER BY.
        query, vendor = compiler.query, compiler.connection.vendor
        if query.subquery or query.distinct or vendor != "postgresql":
            return sql, params
        return f"({sql})::text", params

    def get_db_converters(self, connection: Any) -> list[Any]:
        return [*super().get_db_converters(connection), _as_time]


class TimestampColumn(ReadableTime, Col):
    """A column of timestamps."""


class TimestampSubquery(ReadableTime, Subquery):
    """A subquery that yields a timestamp."""


class TimestampNow(ReadableTime, Now):
    """The time of the database's clock."""


class TimestampMax(ReadableTime, models.Max):
    """The latest timestamp."""


if not TYPE_CHECKING:

    class TimestampField(models.DateTimeField):
        """A ``DateTimeField`` that gives a :class:`DistantTime` where that raises ``DataError``."""

        def deconstruct(self) -> Any:
            name, _path, args, options = super().deconstruct()
            return name, "django.db.models.DateTimeField", args, options

        def get_col(self, alias: str, output_field: Any = None) -> Col:
            return TimestampColumn(alias, self, output_field)

        def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
            if isinstance(value, DistantTime):
                return value.text
            return super().get_db_prep_value(value, connection, prepared)

    class FloatField(models.FloatField):
        """A ``FloatField`` that gives a ``float`` whatever the loader of the project gives."""

        def deconstruct(self) -> Any:
            name, _path, args, options = super().deconstruct()
            return name, "django.db.models.FloatField", args, options

        def from_db_value(self, value: Any, expression: Any, connection: Any) -> float | None:
            return None if value is None else float(value)


FLOAT8 = 701


def read_floats(cursor: Any) -> None:
    """Let the cursor read numbers as ``float``, which arithmetic and JSON need. A project may have
    registered another loader, such as one that gives a ``Decimal``."""
    if not _gives_floats(cursor.adapters.get_loader(FLOAT8, Format.TEXT)):
        cursor.adapters.register_loader("float8", FloatLoader)


@cache
def _gives_floats(loader: Any) -> bool:
    return type(loader(FLOAT8).load(b"1.5")) is float


def _as_time(value: Any, expression: Any, connection: Any) -> Any:
    if not isinstance(value, str):
        return value.astimezone(UTC) if getattr(value, "tzinfo", None) else value
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return DistantTime.of(value)
    if read.date() in (FIRST_DAY, LAST_DAY):
        return DistantTime.of(value)
    return read.astimezone(UTC)


LOOSE: dict[str, Any] = {"db_constraint": False, "db_index": False}
"""Of a foreign key that nothing in the database guards: a constraint on runs costs a quarter of the
throughput. An index of several columns begins with it, or none is needed."""


def count_or_none(name: Any, help_text: Any) -> models.PositiveIntegerField[int | None, int | None]:
    """A number of at least 1, or none."""
    least = [MinValueValidator(1)]
    return models.PositiveIntegerField(
        name, null=True, blank=True, validators=least, help_text=help_text
    )


class TagsField(models.Field):  # type: ignore[type-arg]
    """A list of texts. Django's ``ArrayField`` needs ``django.contrib.postgres`` as an app."""

    def db_type(self, connection: Any) -> str:
        return "text[]"


@TagsField.register_lookup
class Contains(models.Lookup):
    """``tags__contains=["vip"]``: rows with all of these tags."""

    lookup_name = "contains"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        column, parameters = self.process_lhs(compiler, connection)
        return f"{column} @> %s::text[]", [*parameters, list(self.rhs)]


class TagsIndex(models.Index):
    """A GIN index: each tag has a list of its rows."""

    suffix = "gin"

    def create_sql(
        self, model: Any, schema_editor: Any, using: str = " USING gin", **kwargs: Any
    ) -> Any:
        return super().create_sql(model, schema_editor, using=using, **kwargs)


def index(name: str, columns: str, **condition: Any) -> models.Index:
    """An index of these columns; with a ``condition``, terms of a ``Q``, of rows that meet it."""
    return models.Index(fields=columns.split(), name=name, condition=_all_of(condition))


def unique(name: str, columns: str, **condition: Any) -> models.UniqueConstraint:
    """A constraint that no two of the rows that meet the ``condition`` have the same."""
    fields = tuple(columns.split())
    return models.UniqueConstraint(fields=fields, name=name, condition=_all_of(condition))


def check(name: str, either: models.Q | None = None, **terms: Any) -> models.CheckConstraint:
    """A constraint that each row meets this, or all of these terms."""
    return models.CheckConstraint(name=name, condition=either or models.Q(**terms))


def positive_or_none(name: str, column: str) -> models.CheckConstraint:
    """A constraint that the column is null or at least 1."""
    return check(name, models.Q(**{f"{column}__isnull": True}) | models.Q(**{f"{column}__gte": 1}))


def _all_of(condition: dict[str, Any]) -> models.Q | None:
    return models.Q(**condition) if condition else None
