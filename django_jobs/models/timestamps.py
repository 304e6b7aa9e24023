"""Times as PostgreSQL has them: more than Python can hold."""

from __future__ import annotations

from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models.expressions import Col, Subquery

if TYPE_CHECKING:
    Expression = models.Expression
    TimestampField = models.DateTimeField
    """What django-stubs knows the types of, with null=True and without."""
else:
    Expression = object


FIRST_DAY, LAST_DAY = datetime.min.date(), datetime.max.date()
"""On these some clock on Earth shows a date that Python does not have."""


class DistantTime(datetime):
    """A time that no clock of Python's shows: ``infinity``, a year after 9999 or before 1.

    It compares as the last or the first moment that Python has; ``text`` is PostgreSQL's. Every
    conversion to another time zone leaves it as it is.
    """

    text: str

    @classmethod
    def of(cls, text: str) -> DistantTime:
        """The time that PostgreSQL writes as ``text``."""
        is_past = text.startswith(("-", "0001")) or text.endswith("BC")
        edge = datetime.min if is_past else datetime.max
        distant = cls.combine(edge.date(), edge.time(), UTC)
        distant.text = text
        return distant

    def astimezone(self, tz: tzinfo | None = None) -> Self:
        return self


class ReadableTime(Expression):
    """Mixed into an expression that yields a timestamp: selected as text, so that one row that
    psycopg cannot read does not fail the query, and with it all other rows."""

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


def _as_time(value: Any, expression: Any, connection: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        return DistantTime.of(value)
    if read.date() in (FIRST_DAY, LAST_DAY):
        return DistantTime.of(value)
    return read.astimezone(connection.timezone)
