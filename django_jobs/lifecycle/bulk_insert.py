"""Insert many new jobs by COPY, the fastest way. Has no ON CONFLICT: keys have to be free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

from ..domain.gates import Gates
from ..exceptions import EnqueueError
from ..models.database import DROPPING, fetch, jobs_connection
from .job_columns import (
    COMMON_COLUMNS,
    DUE,
    GATE_COLUMNS,
    IDS,
    LIVE_TABLE,
    NOW,
    NewJobs,
    gate_values,
    listed,
    timing,
)

Item = tuple[str, str | None, Gates | None]
"""Of each of many jobs, what they do not have in common: payload (JSON text), idempotency key and
gates."""

# An id for each row, because COPY returns none, and the values of a due time, which all rows have
# in common, as text.
TIMING = timing("now", "at")
ALLOCATE = f"""
WITH due AS MATERIALIZED (
    SELECT {NOW} AS now, {DUE} AS at
), {IDS}
SELECT ARRAY(SELECT nextval(ids.sequence) FROM generate_series(1, %(count)s)),
    {listed(f"({expression})::text" for expression in TIMING.values())}
FROM due, ids
"""

COPIED = ("id", "idempotency_key", "payload", *COMMON_COLUMNS, *TIMING)


def copy(*columns: str, table: str = LIVE_TABLE) -> str:
    return f"""
COPY {table} (
    {listed(columns)}) FROM STDIN
"""


COPY, COPY_GATED = copy(*COPIED), copy(*COPIED, *GATE_COLUMNS)
OF_STEPS = ("workflow_run_id", "step")
COPIES = {
    (False, False): COPY,
    (True, False): COPY_GATED,
    (False, True): copy(*COPIED, *OF_STEPS),
    (True, True): copy(*COPIED, *GATE_COLUMNS, *OF_STEPS),
}
"""By whether some have gates, and whether they are steps of a workflow."""

ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
"""The characters that COPY's text format reserves. JSON as we write it contains only the backslash
of these."""
BACKSLASH, ESCAPED = "\\", "\\\\"

PART = 250
"""Rows that are sent at once. PostgreSQL writes them while the next ones are made."""

Meanwhile = Callable[[int], None]
"""Called while PostgreSQL writes rows, with their number. It must not use the connection."""


class RowsDropped(EnqueueError):
    """A trigger of the project's dropped new rows."""


def rows_dropped(rows: int = 1, table: str = LIVE_TABLE) -> RowsDropped:
    """The error for new rows of a table that are not there, although nothing refused them."""
    names = [name for (name,) in fetch(DROPPING.format(table=table), {})]
    by = f"a trigger ({', '.join(names)})" if names else "a trigger"
    return RowsDropped(
        f"{by} of {table} dropped {rows} of the new rows: it returned NULL before INSERT"
    )


def not_written(key: str, *tables: str) -> EnqueueError:
    """The error for a ``key`` that no row holds, although none could be written for it."""
    for table in tables or (LIVE_TABLE, "django_jobs_uniquekey"):
        if fetch(DROPPING.format(table=table), {}):
            return rows_dropped(table=table)
    return EnqueueError(f"{key} kept changing hands; try again")


def nothing(rows: int) -> None:
    """There is nothing to do meanwhile."""


@dataclass(frozen=True, slots=True)
class NumberedSteps:
    """Jobs that are steps of ``run``, with the names ``resize[0]``, ``resize[1]`` and so on."""

    run: int
    name: str
    first: int = 0

    def ends(self, ends: Iterable[str]) -> Iterator[str]:
        """The rest of each row, after its other columns."""
        name = _field(self.name)
        for number, end in enumerate(ends, self.first):
            yield f"{end}\t{self.run}\t{name}[{number}]"


def copy_in(
    new: NewJobs,
    items: Sequence[Item],
    steps: NumberedSteps | None = None,
    *,
    meanwhile: Meanwhile = nothing,
) -> list[int]:
    """Insert a job for each item; return their ids in order. Takes two round trips.

    Rows are written in the order of their keys, so that two requests for the same keys do not wait
    for each other. Raises ``IntegrityError`` if a live job holds one of them, and
    :class:`RowsDropped`.
    """
    ((ids, *values),) = fetch(ALLOCATE, {**new.parameters, "count": len(items)})
    gated = any(gates is not None for _, _, gates in items)
    ends: Iterable[str]
    if gated:
        ends = _gated_ends(new, dict(zip(TIMING, values, strict=True)), items)
    else:
        ends = repeat(fields_of((*new.columns.values(), *values)), len(items))
    if steps is not None:
        ends = steps.ends(ends)
    rows = list(zip(ids, items, ends, strict=True))
    if any(key is not None for _, key, _ in items):
        rows.sort(key=lambda row: row[1][1] or "")
    copy_rows(COPIES[gated, steps is not None], (_line(*row) for row in rows), meanwhile)
    return list(ids)


def copy_rows(statement: str, rows: Iterable[str], meanwhile: Meanwhile = nothing) -> None:
    """Write lines of COPY, if there are any. Raises :class:`RowsDropped`."""
    lines, written = iter(rows), 0
    part = list(islice(lines, PART))
    if not part:
        return
    connection = jobs_connection()
    # Django wraps the errors of execute() and not those of copy().
    with connection.cursor() as cursor:
        with connection.wrap_database_errors, cursor.copy(statement) as copied:
            while part:
                copied.write("".join(part))
                meanwhile(len(part))
                written += len(part)
                part = list(islice(lines, PART))
        if cursor.rowcount < written:
            raise rows_dropped(written - cursor.rowcount, statement.split()[1])


def _line(id_: int, item: Item, end: str) -> str:
    payload, key, _ = item
    return f"{id_}\t{_field(key)}\t{payload.replace(BACKSLASH, ESCAPED)}\t{end}\n"


def _gated_ends(new: NewJobs, computed: Mapping[str, str], items: Sequence[Item]) -> Iterator[str]:
    """The rest of each row, after its payload."""
    status = "scheduled" if computed["status"] == "scheduled" else "blocked"
    plain = fields_of({**new.columns, **computed}.values())
    gated = fields_of({**new.columns, **computed, "status": status}.values())
    for _, _, gates in items:
        yield f"{plain if gates is None else gated}\t{fields_of(gate_values(gates).values())}"


def fields_of(values: Iterable[Any]) -> str:
    """Values as a part of a line of COPY."""
    return "\t".join(_field(value) for value in values)


def _field(value: Any) -> str:
    return "\\N" if value is None else str(value).translate(ESCAPES)
