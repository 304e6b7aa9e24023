"""Numbers of type ``float8``, for which a project may have registered another loader."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from django.db import models
from psycopg.pq import Format
from psycopg.types.numeric import FloatLoader

FLOAT8 = 701

if TYPE_CHECKING:
    FloatField = models.FloatField
    """For django-stubs, which knows its types with null=True and without."""
else:

    class FloatField(models.FloatField):
        """A ``FloatField`` that gives a ``float``, also if the project's loader does not."""

        def deconstruct(self) -> Any:
            name, _path, args, options = super().deconstruct()
            return name, "django.db.models.FloatField", args, options

        def get_db_converters(self, connection: Any) -> list[Any]:
            converters = super().get_db_converters(connection)
            session = connection.connection if connection.vendor == "postgresql" else None
            if session is None or gives_floats(session.adapters):
                return converters
            return [*converters, _as_float]


def read_floats(cursor: Any) -> None:
    """Let the cursor read numbers as ``float``, which arithmetic and JSON need. A project may have
    registered another loader, such as one that gives a ``Decimal``."""
    if not gives_floats(cursor.adapters):
        cursor.adapters.register_loader("float8", FloatLoader)


def gives_floats(adapters: Any) -> bool:
    """Whether what psycopg reads as float8 with these adapters is a ``float``."""
    return _gives_floats(adapters.get_loader(FLOAT8, Format.TEXT))


@cache
def _gives_floats(loader: Any) -> bool:
    return type(loader(FLOAT8).load(b"1.5")) is float


def _as_float(value: Any, expression: Any, connection: Any) -> float | None:
    return None if value is None else float(value)
