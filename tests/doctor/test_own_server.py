"""What only a server of a test's own can have: settings, prepared transactions and slots."""

from __future__ import annotations

import contextlib
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from tests import forking
from tests.clusters import FAST, PROJECT, Cluster

EXAMINE = """
import json
from django_jobs.doctor import examination, tables
tables.OLD_SECONDS, tables.OLD_TRANSACTIONS = 0.0, 1
print(json.dumps(examination.diagnose().as_json(), default=str))
"""
SETTINGS = ("max_prepared_transactions = 2", "max_connections = 12", "autovacuum = on")


@pytest.fixture(scope="module")
def own() -> Iterator[Cluster]:
    with Cluster() as own:
        for setting in SETTINGS:
            own.execute(f"ALTER SYSTEM SET {setting}")
        own.stop(FAST)
        own.start()
        yield own


def found(own: Cluster, number: str) -> list[dict[str, Any]]:
    """The findings of one id, with what is old at once."""
    command = ["shell", "--no-imports", "-c", EXAMINE]
    if forking.IS_POSSIBLE:
        code, printed = forking.template(PROJECT, own.environment).run(command)
    else:
        whole = [sys.executable, "-m", "django", *command]
        ran = subprocess.run(whole, env=own.environment, capture_output=True, text=True)
        code, printed = ran.returncode, ran.stdout
    assert code == 0, printed
    diagnosis = json.loads(printed.splitlines()[-1])
    assert diagnosis["not_examined"] == []
    return [one for one in diagnosis["findings"] if one["id"] == f"django_jobs.{number}"]


def set_server(own: Cluster, setting: str) -> None:
    own.execute(f"ALTER SYSTEM SET {setting}")
    own.execute("SELECT pg_reload_conf()")


def test_a_server_without_autovacuum_is_found(own: Cluster) -> None:
    assert not found(own, "D102")
    set_server(own, "autovacuum = off")
    (off,) = found(own, "D102")
    for command in off["commands"]:
        own.execute(command)
    assert not found(own, "D102")


def test_a_forgotten_prepared_transaction_is_found(own: Cluster) -> None:
    assert not found(own, "D112")
    with psycopg.connect(own.url) as connection:
        connection.execute("CREATE TABLE forgotten (n integer)")
        connection.execute("PREPARE TRANSACTION 'it''s forgotten'")
    (forgotten,) = found(own, "D112")
    own.execute(*forgotten["commands"])
    assert not found(own, "D112")


def standby(own: Cluster, slot: str = "") -> psycopg.pq.PGconn:
    """A connection that sends the feedback of a standby with a long query, as a standby sends
    it."""
    ((xmin,),) = own.fetch("SELECT pg_current_xact_id()::text")
    url = urlsplit(own.url)
    replica = url._replace(query="&".join(filter(None, (url.query, "replication=true")))).geturl()
    sender = psycopg.pq.PGconn.connect(replica.encode())
    assert sender.status == psycopg.pq.ConnStatus.OK, sender.error_message
    ((at,),) = own.fetch("SELECT pg_current_wal_lsn()::text")
    sender.send_query(f"START_REPLICATION {slot} PHYSICAL {at}".encode())
    sender.get_result()
    sender.put_copy_data(struct.pack("!cqIIII", b"h", 0, int(xmin), 0, 0, 0))
    sender.flush()
    return sender


def test_a_standby_whose_query_holds_back_vacuum_is_found(own: Cluster) -> None:
    sender = standby(own)
    held = "SELECT backend_xmin IS NOT NULL FROM pg_stat_activity WHERE backend_type = 'walsender'"
    while own.fetch(held) != [(True,)]:
        pass
    for _ in range(3):
        own.fetch("SELECT pg_current_xact_id()")
    (session,) = found(own, "D111")
    assert "sends to a standby" in session["problem"]
    assert session["facts"]["seconds"] is None
    sender.finish()


def test_a_slot_whose_standby_is_gone_is_found(own: Cluster) -> None:
    own.execute("SELECT pg_create_physical_replication_slot('standby')")
    assert not found(own, "D113")
    sender = standby(own, "SLOT standby")
    held = "SELECT xmin IS NOT NULL FROM pg_replication_slots"
    while own.fetch(held) != [(True,)]:
        pass
    sender.finish()
    for _ in range(3):
        own.fetch("SELECT pg_current_xact_id()")
    while own.fetch("SELECT active FROM pg_replication_slots") != [(False,)]:
        pass
    (slot,) = found(own, "D113")
    assert "standby is not in use" in slot["problem"]
    own.execute(*slot["commands"])
    assert not found(own, "D113")


def test_connections_that_are_nearly_used_up_are_found(own: Cluster) -> None:
    assert not found(own, "D205")
    with contextlib.ExitStack() as opened:
        for _ in range(8):
            opened.enter_context(psycopg.connect(own.url))
        (full,) = found(own, "D205")
    assert full["facts"]["allowed"] == 9
