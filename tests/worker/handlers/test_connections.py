"""What a handler leaves on its connection is not there for the next one of its thread."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.db.models import Count, Func, Max
from django.db.models.functions import Upper
from psycopg import sql
from psycopg.rows import dict_row

from django_jobs import cancel, enqueue_many
from django_jobs.worker.handlers import cursors
from django_jobs.worker.handlers.cursors import HARMLESS, is_plain
from tests.app.jobs import noop
from tests.app.models import Effect
from tests.factories import run_sql
from tests.worker.handlers.threads import Handlers

STATE = """
SELECT current_setting('search_path'), current_setting('role'), current_setting('TimeZone'),
       current_setting('statement_timeout'), coalesce(current_setting('app.tenant', true), ''),
       current_setting('default_transaction_read_only'),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_class WHERE relpersistence = 't' AND relname = 'left_behind'),
       (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors WHERE
       name <> ''), (SELECT count(*) FROM pg_listening_channels()),
       current_setting('client_connection_check_interval')
"""


def state() -> list[Any]:
    """What a handler finds: in the session, and on the objects of Django and psycopg."""
    with connection.cursor() as cursor:
        cursor.execute(STATE)
        found = list(cursor.fetchone())
    raw = connection.connection
    return [
        *found,
        *(raw.row_factory.__name__, raw.autocommit, raw.isolation_level, raw.read_only),
        *(len(connection.execute_wrappers), connection.in_atomic_block, connection.autocommit),
        getattr(connection, "tenant", None),
        raw.pgconn.pipeline_status,
    ]


def backend() -> int:
    """The server's process for this thread."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def execute(statement: Any, *parameters: Any) -> Callable[[], None]:
    def handler() -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement, *parameters)

    return handler


def call(name: str, *arguments: Any) -> Callable[[], None]:
    def handler() -> None:
        with connection.cursor() as cursor:
            cursor.callproc(name, list(arguments))

    return handler


def raw(use: Callable[[Any], Any]) -> Callable[[], None]:
    def handler() -> None:
        connection.ensure_connection()
        use(connection.connection)

    return handler


def iterate_and_leave() -> None:
    LEFT_OPEN.append(Effect.objects.all().iterator(chunk_size=1))
    next(LEFT_OPEN[-1])


def mark() -> None:
    """As a project does that keeps its tenant on the wrapper. No query follows."""
    connection.tenant = "acme"  # type: ignore[attr-defined]


def append_wrapper_and_close() -> None:
    connection.execute_wrappers.append(lambda execute, *rest: execute(*rest))
    connection.close()


LEFT_OPEN: list[Any] = []

LEAVES: dict[str, Callable[[], Any]] = {
    "composed": execute(sql.SQL("SET search_path TO {}").format(sql.Identifier("tenant1"))),
    "composed role": execute(sql.SQL("SET ROLE pg_monitor")),
    "comment": execute("/* tracing */ SET statement_timeout = '7s'"),
    "line comment": execute("-- why\nSET statement_timeout = '7s'"),
    "inner comment": execute("SELECT set_config/**/('app.tenant', '1', false)"),
    "second statement": execute("SELECT 1; SET statement_timeout = '7s'"),
    "bytes": execute(b"SET statement_timeout = '7s'"),
    "block": execute("DO $$ BEGIN PERFORM set_config('app.tenant', '1', false); END $$"),
    "session authorization": execute("SET SESSION AUTHORIZATION pg_monitor"),
    "characteristics": execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY"),
    "raw connection": raw(lambda raw: raw.execute("SET app.tenant = '1'")),
    "raw cursor": raw(lambda raw: raw.cursor(row_factory=dict_row).execute("SET app.tenant = '1'")),
    "many": raw(
        lambda raw: raw.cursor().executemany(
            "SELECT set_config('app.tenant', %s, false)", [["1"], ["2"]]
        )
    ),
    "stream": raw(
        lambda raw: list(raw.cursor().stream("SELECT set_config('app.tenant', '1', false)"))
    ),
    "copy": raw(
        lambda raw: (
            raw.cursor()
            .copy("COPY (SELECT set_config('app.tenant', '1', false)) TO STDOUT")
            .__enter__()
            .read()
        )
    ),
    "named cursor": raw(lambda raw: raw.cursor("kept", withhold=True).execute("SELECT 1")),
    "function": execute("SELECT set_config('app.tenant', %s, false)", ["1"]),
    "function, in SELECT ... FROM": execute(
        "SELECT * FROM Set_Config('app.tenant', '1', %s)", [False]
    ),
    "quoted function": execute("SELECT \"set_config\"('app.tenant', '1', false)"),
    "escaped function": execute(
        "SELECT U&\"set!005Fconfig\" UESCAPE '!' ('app.tenant', '1', false)"
    ),
    "qualified function": execute("SELECT pg_catalog.set_config('app.tenant', '1', false)"),
    "own function": execute("SELECT enter_tenant('1')"),
    "own procedure": execute("CALL enter_tenant_too('1')"),
    "callproc": call("set_config", "app.tenant", "1", False),
    "callproc of a lock": call("pg_advisory_lock", 1),
    "lock": execute("SELECT PG_ADVISORY_LOCK(1)"),
    "shared lock": execute("SELECT pg_try_advisory_lock_shared(1)"),
    "temporary": execute("CREATE LOCAL TEMP TABLE left_behind (id int)"),
    "temporary, of a query": execute("SELECT 1 AS id INTO TEMP left_behind"),
    "prepared": execute("PREPARE left_behind AS SELECT 1"),
    "listening": execute("LISTEN left_behind"),
    "declared": execute("DECLARE left_behind CURSOR WITH HOLD FOR SELECT 1"),
    "iterator": iterate_and_leave,
    "pipeline": raw(lambda raw: raw.pipeline().__enter__()),
    "statement of a pipeline": raw(
        lambda raw: (raw.pipeline().__enter__(), raw.execute("SET app.tenant = '1'"))
    ),
    "own check of clients": execute("SET client_connection_check_interval = 0"),
    "row factory": raw(lambda raw: setattr(raw, "row_factory", dict_row)),
    "read only": raw(lambda raw: setattr(raw, "read_only", True)),
    "autocommit": raw(lambda raw: setattr(raw, "autocommit", False)),
    "wrapper": lambda: connection.execute_wrappers.append(lambda execute, *rest: execute(*rest)),
    "wrapper of a closed connection": append_wrapper_and_close,
    "attribute of the wrapper": mark,
    "transaction": lambda: transaction.set_autocommit(False),
    "atomic": lambda: transaction.atomic().__enter__(),
    "begun": execute("BEGIN"),
}

OWN = """
CREATE FUNCTION enter_tenant(name text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM set_config('app.tenant', name, false); END $$;
CREATE PROCEDURE enter_tenant_too(name text) LANGUAGE plpgsql AS
$$ BEGIN PERFORM set_config('app.tenant', name, false); END $$;
"""


@pytest.fixture
def own_functions(transactional_db: None) -> Iterator[None]:
    run_sql(OWN)
    yield
    run_sql("DROP FUNCTION enter_tenant; DROP PROCEDURE enter_tenant_too")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # open cursors
def test_state_that_a_handler_leaves_does_not_leak_into_the_next(
    handlers: Handlers, own_functions: None
) -> None:
    Effect.objects.bulk_create([Effect(note="a"), Effect(note="b")])
    clean = handlers.run(state)
    found = {}
    for how, leave in LEAVES.items():
        handlers.run(leave)
        found[how] = handlers.run(state)
        LEFT_OPEN.clear()
    gc.collect()
    assert found == dict.fromkeys(LEAVES, clean)


def write_with_the_orm() -> None:
    with transaction.atomic():
        effect = Effect.objects.create(note="Plain")
        with transaction.atomic():
            Effect.objects.select_for_update().filter(pk=effect.pk).update(note=Upper("note"))
        Effect.objects.bulk_create([Effect(note=str(number)) for number in range(20)])
    Effect.objects.get_or_create(note="plain")
    Effect.objects.filter(note__icontains="PLA", created_at__date__gt="2020-01-01").count()
    list(Effect.objects.values("note").annotate(many=Count("pk"), last=Max("created_at")))
    list(Effect.objects.filter(pk=1).union(Effect.objects.filter(pk__in=[1, 2, 3]))[:3])
    Effect.objects.filter(pk__in=Effect.objects.filter(note="1").values("pk")).delete()


def ask_for_jobs() -> None:
    with transaction.atomic():
        first = noop.enqueue()
        noop.using(idempotency_key="only one", delay=5).enqueue()
        enqueue_many(noop, [{}] * 600)
    cancel(first.pk)


def enter_transaction_settings() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant', %s, true)", ["1"])
        cursor.execute("SET LOCAL statement_timeout = '7s'")
        cursor.execute("SELECT pg_advisory_xact_lock(1)")


@pytest.mark.parametrize("work", [write_with_the_orm, ask_for_jobs, enter_transaction_settings])
def test_plain_statements_keep_the_session_without_a_reset(
    handlers: Handlers, work: Callable[[], None]
) -> None:
    before = handlers.run(state)
    server, wrapper = handlers.run(backend), handlers.run(lambda: connections["default"])
    handlers.run(work)
    assert handlers.run(lambda: connections["default"]) is wrapper  # after a reset it is a new one
    assert handlers.run(backend) == server
    assert handlers.run(state) == before


def test_an_iterator_that_a_handler_leaves_ends_no_transaction_of_the_next(
    handlers: Handlers,
) -> None:
    """The garbage collector closes its cursor at any time."""

    def iterate() -> Any:
        Effect.objects.bulk_create(Effect(note=f"{number}") for number in range(3))
        left = Effect.objects.iterator(chunk_size=1)
        next(left)
        return left, backend()

    left, session = handlers.run(iterate)

    def close_in_a_transaction() -> tuple[int, int]:
        with transaction.atomic():
            backend()
            left.close()
            return Effect.objects.count(), backend()

    assert handlers.run(close_in_a_transaction) == (3, session)


def test_a_session_is_used_again_after_a_reset(handlers: Handlers) -> None:
    server = handlers.run(backend)
    handlers.run(execute("SET app.tenant = '1'"))
    assert handlers.run(backend) == server
    handlers.run(lambda: transaction.atomic().__enter__())
    assert handlers.run(backend) != server


def test_settings_of_connection_created_survive_a_reset(
    handlers: Handlers,
) -> None:
    def set_up(connection: BaseDatabaseWrapper, **_: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET app.tenant = 'nobody'")
        connection.execute_wrappers.append(lambda execute, *rest: execute(*rest))

    connection_created.connect(set_up)
    try:
        fresh = handlers.run(state)
        assert fresh[4] == "nobody"
        handlers.run(execute("SET app.tenant = '1'"))
        assert handlers.run(state) == fresh
        wrapper = handlers.run(lambda: connections["default"])
        handlers.run(write_with_the_orm)
        assert handlers.run(lambda: connections["default"]) is wrapper
    finally:
        connection_created.disconnect(set_up)


def test_a_session_that_cannot_be_reset_is_closed(handlers: Handlers) -> None:
    def end_own_session() -> None:
        execute("SET app.tenant = '1'")()
        with pytest.raises(DatabaseError):
            execute("SELECT pg_terminate_backend(pg_backend_pid())")()

    server = handlers.run(backend)
    handlers.run(end_own_session)
    assert handlers.run(backend) != server


@pytest.mark.parametrize("how", ["transaction", "begun", "atomic"])
def test_a_transaction_is_left_open_only_in_a_session_that_lives(
    handlers: Handlers, how: str
) -> None:
    def leave_and_end_own_session() -> None:
        LEAVES[how]()
        with pytest.raises(DatabaseError):
            execute("SELECT pg_terminate_backend(pg_backend_pid())")()

    def leave() -> None:
        LEAVES[how]()
        execute("SELECT 1")()

    handlers.run(leave)
    assert handlers.left_open
    handlers.run(leave_and_end_own_session)
    assert not handlers.left_open
    handlers.run(backend)
    assert not handlers.left_open


@pytest.mark.django_db(transaction=True)
def test_a_session_with_prepared_statements_of_psycopg_is_closed() -> None:
    options = connections["default"].settings_dict["OPTIONS"]
    before = dict(options)
    options.update(server_side_binding=True, prepare_threshold=0)
    handlers = Handlers()  # whose connections copy what is set now
    try:
        server = handlers.run(backend)
        handlers.run(write_with_the_orm)
        assert handlers.run(backend) == server
        handlers.run(execute("SET app.tenant = '1'"))
        handlers.run(write_with_the_orm)
        assert handlers.run(backend) != server
    finally:
        options.clear()
        options.update(before)
        handlers.close()


def django_functions(base: type[Func] = Func) -> Iterator[str]:
    """The names that the classes of Django write."""
    for kind in base.__subclasses__():
        if kind.__module__.startswith("django.db.models") and kind.function:
            yield kind.function.lower()
        yield from django_functions(kind)


NOT_OF_POSTGRESQL = {"instr", "sha1", "collate"}
"""Of other databases, or of an extension."""


def test_every_function_that_the_orm_writes_is_known_to_be_harmless() -> None:
    assert set(django_functions()) - HARMLESS <= NOT_OF_POSTGRESQL


VOLATILE = """
    clock_timestamp currval gen_random_uuid nextval pg_advisory_xact_lock pg_notify random setval
    pg_advisory_xact_lock_shared pg_try_advisory_xact_lock pg_try_advisory_xact_lock_shared
    uuidv4 uuidv7
"""
"""These give another answer each time, or act; what they do to a session ends with its
transaction, or is the position of a sequence."""


@pytest.mark.django_db
def test_the_server_calls_no_other_harmless_function_volatile() -> None:
    rows = run_sql(
        "SELECT DISTINCT proname FROM pg_proc WHERE provolatile = 'v' AND proname = ANY(%s)",
        [sorted(HARMLESS)],
    )
    assert {name for (name,) in rows} <= set(VOLATILE.split())  # PostgreSQL 18 knows more of them


@pytest.mark.parametrize(
    "statement, plain",
    [
        ('SELECT "app_effect"."id" FROM "app_effect" WHERE "app_effect"."id" IN (%s, %s)', True),
        ('(SELECT 1) UNION (SELECT 2) LIMIT 21', True),
        ('INSERT INTO "app_effect" ("note") VALUES (%s) RETURNING "app_effect"."id"', True),
        ('WITH a(b) AS (SELECT 1) SELECT * FROM a', False),  # b could be an argument
        ('SELECT * INTO x FROM y', False),
        ("SELECT set_config('a.b', %s, true)", True),
        ("SELECT set_config('a.b', %s, false)", False),
        ("SELECT set_config(%s, %s, %s)", False),
        ("SELECT CAST(a AS numeric(10, 2)), b::varchar(3)", True),
        ("SET LOCAL ROLE a", True),
        ("SET ROLE a", False),
        ("SET SESSION a = 1", False),
        ('SAVEPOINT "s1_x1"', True),
        (b"SELECT 1", False),
        (sql.SQL("SELECT 1"), False),
        ("", False),
    ],
)  # fmt: skip
def test_plain_statements_are_recognised_by_their_text(statement: Any, plain: bool) -> None:
    for _ in range(2):
        assert is_plain(statement) is plain


def test_a_long_literal_is_parsed_in_linear_time() -> None:
    """It would take minutes if each character of it were tried as the beginning of a name."""
    assert is_plain(f"INSERT INTO app_effect (note) VALUES ('{'f' * 1_000_000}')")


def test_the_cache_of_statements_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursors, "MOST_KEPT", 10)
    for number in range(100):
        assert is_plain(f"SELECT {number}")
        assert is_plain(f'SAVEPOINT "s{number}"')
    assert is_plain("SELECT " + "1, " * 5_000 + "1")
    assert len(cursors.plain_texts) <= 10
    assert not any("SAVEPOINT" in text for text in cursors.plain_texts)
