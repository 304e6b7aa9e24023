"""Cursors that note statements which leave state in their session, and which of them are open; the
number of queries of each handler."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from psycopg import Connection, Cursor, ServerCursor

from ..context.attempt import Attempt
from ..context.run_context import running_attempt

if TYPE_CHECKING:
    AnyCursor = Cursor[Any]
else:
    AnyCursor = object

LEADS = re.compile(
    r"(?:SELECT|INSERT INTO|UPDATE|DELETE|WITH|VALUES|MERGE|COPY|NOTIFY|LOCK"
    r"|SAVEPOINT|RELEASE|ROLLBACK TO|SET LOCAL|SET CONSTRAINTS|SET TRANSACTION)\b",
    re.IGNORECASE,
)
"""The beginnings of statements that leave no state, unless they call a function that does."""

NOT_READ = re.compile(r";|--|/\*|U&|(?<!INSERT )(?<!MERGE )\bINTO\b", re.IGNORECASE)
"""A second statement, a comment, an escaped name, ``SELECT INTO``: the rest is not read. A literal
that contains one of these costs an unnecessary reset."""

LOCAL_SETTING = re.compile(r"\bset_config\((?:%s|'[^'%]*'), ?(?:%s|'[^'%]*'), ?true\)", re.I)
"""A setting that ends with its transaction."""

CALL = re.compile(
    r"(?:(\b(?:as|into|copy)\s|::)\s*)?(?<![\w.$\"'!])([\w.$\"'!]+)\s*\(", re.IGNORECASE
)
"""A name before a parenthesis. It is matched from its first character only: tried at each
character, a literal of 40 kB took 34 s. After AS, INTO, COPY or ``::`` it names columns, a table or
a type, and is not a call."""

KEYWORDS = """
    all and any array as asc between by case conflict cross cube desc distinct else end escape
    except exists filter for from full group grouping having ilike in inner intersect is join
    lateral left like limit materialized not offset on or order outer over partition recursive
    returning right rollup row select set sets similar some then to union using values when
    where with within
"""

FUNCTIONS = """
    abs acos age any_value array_agg array_append array_cat array_length array_position
    array_remove array_to_string ascii asin atan atan2 avg bit bit_and bit_or bit_xor bool_and
    bool_or btrim cardinality cast ceil ceiling char char_length character chr clock_timestamp
    coalesce concat concat_ws corr cos cot count covar_pop covar_samp cume_dist current_database
    current_setting currval date date_part date_trunc daterange decimal degrees dense_rank div
    every exp extract first_value float floor format gen_random_uuid generate_series greatest
    hashtext initcap int4range int8range interval isempty isfinite json_agg json_array
    json_object json_object_agg json_to_recordset jsonb_agg jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each
    jsonb_each_text jsonb_extract_path jsonb_extract_path_text jsonb_object_agg
    jsonb_object_keys jsonb_path_exists jsonb_path_query jsonb_path_query_array jsonb_set
    jsonb_to_recordset jsonb_typeof lag last_value lead least left length ln log lower lower_inc
    lower_inf lpad ltrim make_date make_interval max md5 min mod mode nextval now nth_value
    ntile nullif numeric numrange overlay percent_rank percentile_cont percentile_disc
    pg_advisory_xact_lock pg_advisory_xact_lock_shared pg_backend_pid pg_get_serial_sequence
    pg_notify pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared phraseto_tsquery pi
    plainto_tsquery position power radians random rank regexp_replace regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat replace
    reverse right round row_number rpad rtrim setval setweight sha224 sha256 sha384 sha512 sign
    sin split_part sqrt starts_with statement_timestamp stddev_pop stddev_samp string_agg
    string_to_array strpos substr substring sum tan time timestamp timestamptz timezone to_char
    to_date to_json to_jsonb to_number to_regclass to_timestamp to_tsquery to_tsvector
    transaction_timestamp translate trim trunc ts_headline ts_rank ts_rank_cd tsrange tstzrange
    unnest upper upper_inc upper_inf uuidv4 uuidv7 var_pop var_samp varchar varying
    websearch_to_tsquery width_bucket
"""
"""Functions of PostgreSQL that leave no state in the session: those that Django's ORM and this
package use, and some more. Locks of a transaction end with it. A function that is missing here only
costs a reset."""

HARMLESS = frozenset((KEYWORDS + FUNCTIONS).split())

LONGEST_KEPT = 4_000
MOST_KEPT = 2_000
"""The longest statement, in characters, and the number of statements whose verdict is cached: at
most 8 MB. The ORM's statements of some hundred characters take less than 1 MB."""

plain_texts: dict[str, bool] = {}
"""The verdicts by text."""


def is_plain(statement: object) -> bool:
    """Whether the text of this statement shows that it leaves no state in its session. Only text is
    read, and not objects of ``psycopg.sql`` or bytes."""
    if type(statement) is not str:
        return False
    plain = plain_texts.get(statement)
    if plain is None:
        plain = _reads_as_plain(statement)
        if len(statement) <= LONGEST_KEPT and "SAVEPOINT" not in statement:  # numbered
            if len(plain_texts) >= MOST_KEPT:
                plain_texts.clear()
            plain_texts[statement] = plain
    return plain


def _reads_as_plain(statement: str) -> bool:
    if not LEADS.match(statement.lstrip(" \n\t\r(")) or NOT_READ.search(statement):
        return False
    calls = CALL.findall(LOCAL_SETTING.sub("", statement))
    return all(prefix or name.lower() in HARMLESS for prefix, name in calls)


Session = Connection[Any]

touched: WeakSet[Session] = WeakSet()
"""Sessions with a statement that is not plain."""

_remembered: WeakKeyDictionary[Session, WeakSet[Cursor[Any] | ServerCursor[Any]]]
_remembered = WeakKeyDictionary()


def remember(cursor: Cursor[Any] | ServerCursor[Any]) -> None:
    """Let :func:`open_cursors` find this cursor while it is open and something refers to it."""
    if cursor.connection not in _remembered:
        _remembered[cursor.connection] = WeakSet()
    _remembered[cursor.connection].add(cursor)


def open_cursors(raw: Any) -> list[Cursor[Any] | ServerCursor[Any]]:
    found = _remembered.get(raw, ()) if isinstance(raw, Connection) else ()
    return [cursor for cursor in found if not cursor.closed]


class _Watched(AnyCursor):
    """A cursor that notes statements that are not plain. Each goes by one of these four methods."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        # The path of the ORM: one dict lookup.
        if not (type(query) is str and plain_texts.get(query)) and not is_plain(query):
            touched.add(self.connection)
        return super().execute(query, *args, **options)

    def executemany(self, query: Any, *args: Any, **options: Any) -> None:
        if not is_plain(query):
            touched.add(self.connection)
        super().executemany(query, *args, **options)

    def stream(self, query: Any, *args: Any, **options: Any) -> Any:
        if not is_plain(query):
            touched.add(self.connection)
        return super().stream(query, *args, **options)

    def copy(self, statement: Any, *args: Any, **options: Any) -> Any:
        if not is_plain(statement):
            touched.add(self.connection)
        return super().copy(statement, *args, **options)


class _WatchedOnServer(_Watched):
    """A server-side cursor, which may be left open WITH HOLD."""

    def execute(self, query: Any, *args: Any, **options: Any) -> Any:
        touched.add(self.connection)
        return super().execute(query, *args, **options)


@cache
def watched(cursor: Any) -> Any:
    if issubclass(cursor, _Watched):
        return cursor
    watched = _WatchedOnServer if issubclass(cursor, ServerCursor) else _Watched
    return type(f"Watched{cursor.__name__}", (watched, cursor), {})


class _Remembered(AnyCursor):
    """A cursor that a handler may keep for its next call."""

    def __init__(self, connection: Session, *args: Any, **options: Any) -> None:
        super().__init__(connection, *args, **options)
        remember(self)


@cache
def remembered(cursor: Any) -> Any:
    if issubclass(cursor, _Remembered):
        return cursor
    return type(f"Remembered{cursor.__name__}", (_Remembered, cursor), {})


def count_query(
    execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
) -> Any:
    """Count a statement for the run in whose context it is sent. One of ``execute_wrappers``."""
    attempt = running_attempt()
    if attempt is None or (meter := attempt.meter) is None:
        return execute(sql, params, many, context)
    began = time.perf_counter()
    try:
        return execute(sql, params, many, context)
    finally:
        meter.add_query(time.perf_counter() - began)


@contextmanager
def not_counted(attempt: Attempt) -> Iterator[None]:
    """Send statements of this package's own, before the handler begins."""
    meter, attempt.meter = attempt.meter, None
    try:
        yield
    finally:
        attempt.meter = meter
