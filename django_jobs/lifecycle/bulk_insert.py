"""Insert many new jobs by COPY, the fastest way, while the next are made. Keys have to be free."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, repeat
from typing import Any, Generic, NamedTuple, TypeVar

from ..domain.gates import Gates
from ..exceptions import EnqueueError
from ..models.database import DROPPING, fetch, jobs_connection
from .job_columns import (
    COMMON_COLUMNS,
    DUE,
    GATE_COLUMNS,
    LIVE_TABLE,
    NOW,
    NewJobs,
    gate_values,
    listed,
    timing,
)

S = TypeVar("S")
T = TypeVar("T")

BATCH_BYTES = 32 * 2**20
"""The most bytes of a batch, but for its last items: with payloads of 1 MB, 5,000 jobs took 5 GB
more than once."""

FIRST, PART = 16, 250
"""Items that are made before their bytes are counted: at first, and at most. These rows are sent
at once, which PostgreSQL writes while the next ones are made."""


class ReadAhead(Generic[S, T]):
    """Batches of what ``make`` returns for each value of a source.

    With ``early``, the values of the next batch are read before a batch is written, and its items
    made meanwhile. Then the values must not change later, and ``make`` must not use the connection.
    Errors are raised when the batch is taken to which they belong. ``size`` returns the bytes of
    items.
    """

    def __init__(
        self,
        source: Iterable[S],
        make: Callable[[S], T],
        *,
        early: bool,
        size: Callable[[list[T]], int] = lambda items: 0,
    ) -> None:
        self._source = iter(source)
        self._make = make
        self._early = early
        self._size = size
        self._values: list[S] = []
        self._made: list[T] = []
        self._made_bytes = 0
        self._error: Exception | None = None
        self.is_over = False
        """Whether all items were taken, once that is known."""

    def take(self, count: int) -> list[T]:
        """The next ``count`` items, fewer if they are large, and at the end."""
        items: list[T] = []
        size, part = 0, FIRST
        while len(items) < count and size < BATCH_BYTES:
            more = self._next(min(part, count - len(items)))
            if not more:
                break
            items += more
            size += self._size(more)
            left = (BATCH_BYTES - size) * len(items) // max(size, 1)
            part = max(1, min(2 * part, PART, left))
        self._made_bytes = self._size(self._made)
        return items

    def _next(self, count: int) -> list[T]:
        """Some of the next items; none at the end."""
        if self._made:
            more = self._made[:count]
            del self._made[:count], self._values[: len(more)]
            return more
        if values := self._values[:count]:
            del self._values[:count]
            return list(map(self._make, values))
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        more = list(map(self._make, islice(self._source, count)))
        self.is_over = len(more) < count
        return more

    def skip(self, count: int) -> int:
        """Take ``count`` items without keeping them. Returns how many there were."""
        return sum(1 for _ in map(self._make, islice(self._source, count)))

    def read(self, count: int) -> None:
        """Read the values of the next ``count`` items, if that may be early."""
        if not self._early or self._error is not None:
            return
        try:
            self._values += islice(self._source, max(count - len(self._values), 0))
        except Exception as error:
            self._error = error

    def make(self, count: int) -> None:
        """Make ``count`` more of the items that were read, unless those made are a batch."""
        if self._made_bytes >= BATCH_BYTES:
            return
        made = len(self._made)
        with suppress(Exception):  # it is made again, and raises, when its batch is taken
            self._made += map(self._make, self._values[made : made + count])
        self._made_bytes += self._size(self._made[made:])


def insert(columns: Mapping[str, str], source: str = "") -> str:
    """The INSERT of new jobs with these columns, each with its expression: of one, or of each row
    of ``source``, which begins with FROM. PostgreSQL plans one row of VALUES in a quarter of the
    time of a SELECT."""
    values = listed(columns.values())
    rows = f"SELECT\n    {values}\n{source}" if source else f"VALUES (\n    {values})"
    return f"""INSERT INTO {LIVE_TABLE} (
    {listed(columns)})
{rows}"""


IDS = """ids AS MATERIALIZED (
    SELECT pg_get_serial_sequence('django_jobs_job', 'id')::regclass AS sequence
)"""
"""The part of a statement from which each new job gets its id: ``nextval(ids.sequence)``."""

Item = tuple[str, str | None, Gates | None]
"""What many jobs do not have in common: payload (JSON text), idempotency key and gates."""

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
"""The characters that COPY's text format reserves. JSON as we write it has only the backslash."""
BACKSLASH, ESCAPED = "\\", "\\\\"

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


class NumberedSteps(NamedTuple):
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
