"""``jobquarantine``: hold the jobs of a type from the command line."""

from __future__ import annotations

import getpass
import json
import socket
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_jobs.lifecycle import quarantining
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import Job, Quarantine
from tests.app.jobs import noop
from tests.factories import boot_worker, run_sql

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("jobquarantine", *arguments, stdout=out)
    return out.getvalue().strip()


def test_a_type_is_quarantined_with_who_and_why() -> None:
    told = run("add", "app.noop", "--reason", "eats memory")
    assert told == "app.noop: quarantined. What runs goes on."
    row = Quarantine.objects.get()
    assert (row.reason, row.by) == ("eats memory", f"{getpass.getuser()}@{socket.gethostname()}")
    assert run("add", "app.noop") == "app.noop: it was quarantined before."


def test_a_release_lets_its_jobs_go() -> None:
    noop.enqueue()
    run("add", "app.noop")
    quarantining.hold("default")
    assert run("release", "app.noop") == "app.noop: released."
    assert Job.objects.get().status == "ready"
    assert run("release", "app.noop") == "app.noop: it is not quarantined."


def test_all_names_of_a_type_are_told() -> None:
    assert run("add", "app.old_name").count("quarantined.") == 3
    assert run("release", "app.present_name").count("released.") == 3


def test_the_list_shows_what_is_in_force_and_how_much_it_holds() -> None:
    assert run("list") == "Nothing is quarantined."
    noop.enqueue_many({} for _ in range(3))
    run("add", "app.noop", "--reason", "eats memory")
    quarantining.quarantine("app.add")
    quarantining.release("app.add")
    quarantining.hold("default")
    run_sql("UPDATE django_jobs_quarantine SET since = now() - interval '3 hours'")
    heads, row = run("list").splitlines()
    assert heads.split() == ["JOB", "TYPE", "SINCE", "HELD", "BY", "REASON"]
    assert row.split()[:3] == ["app.noop", "3h", "3"]
    assert row.endswith("eats memory")


def test_a_misspelt_name_is_refused_with_those_that_are_near() -> None:
    with pytest.raises(CommandError, match="did you mean app"):
        run("add", "app.nop")
    assert not Quarantine.objects.exists()


def test_a_type_that_only_a_worker_knows_is_taken() -> None:
    boot_worker()
    run_sql("""UPDATE django_jobs_worker SET job_types = '["other.service"]'""")
    assert run("add", "other.service") == "other.service: quarantined. What runs goes on."
    run("release", "other.service")
    run_sql("DELETE FROM django_jobs_worker")
    assert "quarantined." in run("add", "other.service")


def test_a_snapshot_and_jobstatus_tell_of_it() -> None:
    noop.enqueue()
    quarantining.quarantine("app.noop", reason="crashed 10 times in 600 s")
    quarantining.hold("default")
    (told,) = take_snapshot().quarantines
    assert (told.job_type, told.held, told.by) == ("app.noop", 1, "")
    assert 0 <= told.since_seconds < 600
    out = StringIO()
    call_command("jobstatus", stdout=out)
    line = out.getvalue().strip().splitlines()[-1]
    assert line.startswith("Quarantined ")
    assert line.endswith(" ago, 1 held: app.noop: crashed 10 times in 600 s")
    out = StringIO()
    call_command("jobstatus", "--json", stdout=out)
    assert json.loads(out.getvalue())["quarantines"][0]["held"] == 1
    (queue,) = [one for one in take_snapshot().queues if one.name == "default"]
    assert (queue.ready, queue.oldest_ready_seconds) == (0, None)
