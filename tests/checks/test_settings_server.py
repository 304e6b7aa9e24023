"""The checks that ask the server, and leave no connection behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_django import Settings

from django_jobs.checks import settings as checks_settings
from tests.checks.test_settings import ids, only, queues, resources
from tests.throwaway import Project, fresh_database

SQL_ASCII = "ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"

ASK = """shell -c "from shop.jobs import greet
greet.enqueue('Zo\\u00eb'); greet.enqueue('Zo\\u00eb', fail=True); greet.enqueue('Al')" """
LOOK = """shell -c "from django_jobs.models import Job
print(list(Job.objects.order_by('id').values_list('status', flat=True)))" """

TESTS = """
from django.test import TransactionTestCase
from shop.models import Order


class {name}(TransactionTestCase):
    def test_an_order(self):
        for number in range(20):
            Order.objects.create(number=number)
        self.assertEqual(Order.objects.count(), 20)

    test_another = test_an_order
"""


@pytest.mark.django_db
def test_a_database_of_another_encoding_is_refused_and_harms_no_other_job(tmp_path: Path) -> None:
    """As ``initdb`` makes it without a locale. It cannot read ``\\u00eb`` in JSON."""
    with fresh_database(SQL_ASCII) as database:
        project = Project(tmp_path, database)
        refused = project.manage("migrate")
        assert refused.returncode == 1
        assert "django_jobs.E013" in refused.stderr
        assert "has the encoding SQL_ASCII" in refused.stderr
        ran = project.manage(
            "migrate --skip-checks -v0", ASK, "jobworker --burst --skip-checks", LOOK
        )
    assert ran.returncode == 0, ran.stderr
    assert "['dead', 'dead', 'succeeded']" in ran.stdout


@pytest.mark.django_db
def test_a_pool_is_not_left_open_for_the_processes_of_parallel_tests(tmp_path: Path) -> None:
    """They are forked after the checks, and would share its sockets."""
    with fresh_database() as database:
        database["OPTIONS"] = {**database["OPTIONS"], "pool": {"min_size": 1, "max_size": 2}}
        project = Project(tmp_path, database)
        for name in ("First", "Second"):
            project.write(f"shop/test_{name.lower()}.py", TESTS.format(name=name))
        ended = project.manage("test --parallel 2 --noinput")
    assert ended.returncode == 0, ended.stderr
    assert "Ran 4 tests" in ended.stderr


@pytest.mark.django_db
def test_a_connection_that_was_open_is_left_open() -> None:
    from django.db import connection

    connection.ensure_connection()
    before = connection.connection
    assert checks_settings.check_server(databases=["default"]) == []
    assert connection.connection is before


def test_autocommit_must_be_on(settings: Settings) -> None:
    from django.db import connections

    settings.DJANGO_JOBS = {"QUEUES": queues(), "RESOURCES": resources()}
    connections.settings["default"]["AUTOCOMMIT"] = False
    try:
        message = only(checks_settings.check_settings())
    finally:
        connections.settings["default"]["AUTOCOMMIT"] = True
    assert ids([message]) == ["E012"]
    assert "transaction.atomic" in str(message.hint)
