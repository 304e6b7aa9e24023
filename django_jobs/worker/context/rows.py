"""Iterates over the rows of a query by key, from where the last attempt stopped."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import FieldDoesNotExist
from django.db.models import CompositePrimaryKey, Field, Model, QuerySet
from django.db.models.query import ModelIterable

from ..events import emit
from .steps import not_async

if TYPE_CHECKING:
    from .run_context import RunContext

M = TypeVar("M", bound=Model)

STATE = "iterate"
"""The key of the position in a checkpoint."""


class Rows(Generic[M]):
    """An iterator over the rows of a query, sync and async. Made by ``RunContext.iterate``.

    A row is done when the next one is requested, or when :meth:`done` is called.
    """

    def __init__(self, run: RunContext, rows: QuerySet[M], key: str, chunk: int) -> None:
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ValueError(f"chunk is a number of rows and at least 1, not {chunk!r}")
        self._field = _unique_field(rows, key)
        self._by = f"{rows.model._meta.label}.{self._field.name}"
        self._run = run
        self._rows = rows
        self._size = chunk
        self._ahead: deque[tuple[M, str]] = deque()
        self._position: str | None = None
        self._in_hand = False
        self._done = 0
        self._total: int | None = None
        self._at_end = False

    def __iter__(self) -> Iterator[M]:
        return self

    def __next__(self) -> M:
        self._finish_row()
        if self._run._has_to_stop() or not self._ahead:
            with not_async("`async for` with run.iterate(...)"):
                self._go_on()
        if not self._ahead:
            raise StopIteration
        return self._take()

    def __aiter__(self) -> AsyncIterator[M]:
        return self

    async def __anext__(self) -> M:
        self._finish_row()
        if self._run._has_to_stop() or not self._ahead:
            await sync_to_async(self._go_on)()
        if not self._ahead:
            raise StopAsyncIteration
        return self._take()

    def done(self) -> None:
        """Mark the current row as done. Inside ``transaction.atomic()`` the checkpoint is part of
        that transaction and commits or rolls back with the changes to the row. Raises
        ``ValueError`` before the first row."""
        if self._total is None:
            raise ValueError(
                "done() requires a current row; the loop over these rows has not started"
            )
        self._finish_row()

    def _finish_row(self) -> None:
        if not self._in_hand:
            return
        self._in_hand = False
        self._done += 1
        total = max(self._total or 0, self._done)
        self._run._report(self._done / total, f"{self._done:,} of {total:,}")
        self._run._keep(
            {STATE: {"by": self._by, "after": self._position, "done": self._done, "total": total}}
        )

    def _take(self) -> M:
        row, self._position = self._ahead.popleft()
        self._in_hand = True
        return row

    def _go_on(self) -> None:
        """Stop if a stop is requested; read more rows if none is left."""
        if self._run._has_to_stop():
            self._run._stop_handler()
        if self._total is None:
            self._begin()
        if not self._ahead and not self._at_end:
            self._read()

    def _begin(self) -> None:
        saved = self._run.saved_checkpoint
        state = saved.get(STATE) if isinstance(saved, dict) else None
        if isinstance(state, dict) and state.get("by") == self._by:
            self._position, self._done = state["after"], state["done"]
            self._total = state["total"]
            return
        if saved is not None:  # saved by other code
            run = self._run
            fields = {"job_id": run.job_id, "job_type": run.job_type, "attempt": run.attempt}
            emit("checkpoint_ignored", logging.WARNING, **fields, wanted=self._by)
        self._total = self._rows.count()

    def _read(self) -> None:
        name = self._field.attname  # for a relation its column, not the order of its table
        rows = self._rows.order_by(name)
        if self._position is not None:
            rows = rows.filter(**{f"{name}__gt": self._field.to_python(self._position)})
        read = list(rows[: self._size])
        self._at_end = len(read) < self._size
        last = self._position
        for row in read:
            at = str(self._field.value_to_string(row))
            if at != last:  # a join may return a row twice
                self._ahead.append((row, at))
            last = at


def _unique_field(rows: Any, key: str) -> Field[Any, Any]:
    """The field named ``key``. Raises ``ValueError`` if the rows cannot be iterated by it."""
    if not isinstance(rows, QuerySet):
        raise ValueError(f"iterate() takes a queryset, not {type(rows).__name__}")
    query, options = rows.query, rows.model._meta
    if query.is_sliced or query.combinator or query.distinct_fields:
        raise ValueError(
            "iterate() takes no slice, union or DISTINCT ON, because it reads the rows in parts"
        )
    if not issubclass(rows._iterable_class, ModelIterable):
        raise ValueError("iterate() takes a queryset of model instances, not of values()")
    try:
        field = options.pk if key == "pk" else options.get_field(key)
    except FieldDoesNotExist:
        raise ValueError(f"{options.label} has no field {key!r}") from None
    if not isinstance(field, Field) or isinstance(field, CompositePrimaryKey):
        raise ValueError(f"{options.label}.{key} is not a single column")
    alone = {constraint.fields for constraint in options.total_unique_constraints}
    if field.null or not (field.unique or (field.name,) in alone):
        raise ValueError(
            f"{options.label}.{key} is not unique or may be null, so rows could be lost"
        )
    names = {key, field.name, field.attname, "pk" if field.primary_key else key}
    if query.extra_order_by or (
        query.order_by and not (len(query.order_by) == 1 and query.order_by[0] in names)
    ):
        raise ValueError(f"iterate() sorts by {key}; remove the other order_by()")
    return field
