"""``jobquarantine``: block the jobs of a type from the command line."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Sequence

import pytest
from django.core.management import CommandError

from django_jobs.lifecycle.operations import quarantines
from django_jobs.metrics import unclaimable as counts
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import Job, Quarantine
from tests.app.jobs import add, noop
from tests.commands import printed
from tests.factories import register_worker, run_sql
from tests.moments import moment

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    return printed("jobquarantine", *arguments).strip()


def test_add_stores_operator_and_reason() -> None:
    output = run("add", "app.noop", "--reason", "eats memory")
    assert output == "app.noop: quarantined. Running jobs are not stopped."
    row = Quarantine.objects.get()
    assert (row.reason, row.by) == ("eats memory", f"{getpass.getuser()}@{socket.gethostname()}")


def test_a_second_quarantine_shows_the_first_and_keeps_it() -> None:
    quarantines.quarantine("app.noop", reason="eats memory", by="ada")
    run_sql("UPDATE django_jobs_quarantine SET since = now() - interval '3 hours'")
    already = "app.noop: already quarantined, for 3h, by ada: eats memory"
    assert run("add", "app.noop") == already
    assert run("add", "app.noop", "--reason", "eats memory") == already
    output = run("add", "app.noop", "--reason", "and leaks").splitlines()
    assert output == [already, "app.noop: the reason was not changed."]
    assert Quarantine.objects.get().reason == "eats memory"
    run_sql("UPDATE django_jobs_quarantine SET by = '', reason = ''")
    assert run("add", "app.noop") == "app.noop: already quarantined, for 3h, by a worker"


def test_a_new_alias_of_a_quarantined_type_is_quarantined() -> None:
    quarantines.quarantine("app.old_name")
    Quarantine.objects.exclude(job_type="app.old_name").delete()
    output = run("add", "app.old_name")
    assert output.count(": quarantined.") == 2
    assert output.count("app.old_name: already quarantined") == 1


def test_lifting_a_quarantine_unblocks_its_jobs() -> None:
    noop.enqueue()
    run("add", "app.noop")
    quarantines.block("default")
    assert run("lift", "app.noop") == "app.noop: lifted."
    assert Job.objects.get().status == "ready"


@pytest.mark.parametrize(
    "quarantined, asked, hint",
    [
        ((), "app.noop", "no job type is"),
        (("app.noop",), "app.nop", r"did you mean 'app\.noop'\?"),
        (("shop.resize", "mail.send"), "x", r"quarantined job types: mail\.send, shop\.resize"),
        ([f"shop.resize_{n}" for n in range(11)], "x", "jobquarantine list shows the .* types"),
    ],
)
def test_lifting_an_unquarantined_type_fails_with_a_hint(
    quarantined: Sequence[str], asked: str, hint: str
) -> None:
    for name in quarantined:
        quarantines.quarantine(name)
    with pytest.raises(CommandError, match=rf"^'{asked}' is not quarantined; {hint}$") as refused:
        run("lift", asked)
    assert refused.value.returncode == 1
    assert set(quarantines.in_force()) == set(quarantined)


def test_a_type_quarantined_under_another_name_is_lifted() -> None:
    quarantines.quarantine("app.old_name")
    Quarantine.objects.exclude(job_type="app.old_name").delete()
    assert run("lift", "app.present_name") == "app.old_name: lifted."


def test_all_names_of_a_type_are_registered() -> None:
    assert run("add", "app.old_name").count("quarantined.") == 3
    assert run("lift", "app.present_name").count("lifted.") == 3


def test_the_list_shows_quarantines_and_their_blocked_jobs() -> None:
    assert run("list") == "No job type is quarantined."
    noop.enqueue_many({} for _ in range(3))
    run("add", "app.noop", "--reason", "eats memory")
    quarantines.quarantine("app.add")
    quarantines.lift("app.add")
    quarantines.block("default")
    run_sql("UPDATE django_jobs_quarantine SET since = now() - interval '3 hours'")
    heads, row = run("list").splitlines()
    assert heads.split() == ["JOB", "TYPE", "SINCE", "BLOCKED", "BY", "REASON"]
    assert row.split()[:3] == ["app.noop", "3h", "3"]
    assert row.endswith("eats memory")


def test_a_misspelt_name_is_refused_with_similar_ones() -> None:
    with pytest.raises(CommandError, match="did you mean 'app"):
        run("add", "app.nop")
    assert not Quarantine.objects.exists()


def test_a_type_that_only_a_worker_knows_is_accepted() -> None:
    register_worker()
    run_sql("""UPDATE django_jobs_worker SET job_types = '["other.service"]'""")
    assert (
        run("add", "other.service") == "other.service: quarantined. Running jobs are not stopped."
    )
    run("lift", "other.service")
    run_sql("DELETE FROM django_jobs_worker")
    assert "quarantined." in run("add", "other.service")


def test_a_type_that_only_jobs_have_is_accepted() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.from_view'")
    assert (
        run("add", "shop.from_view") == "shop.from_view: quarantined. Running jobs are not stopped."
    )


def test_a_snapshot_and_jobstatus_show_it() -> None:
    noop.enqueue()
    quarantines.quarantine("app.noop", reason="crashed 10 times in 600 s")
    quarantines.block("default")
    with moment() as now:
        (output,) = take_snapshot().quarantines
    assert (output.job_type, output.blocked, output.by) == ("app.noop", 1, "")
    assert output.since_seconds in now.since(Quarantine.objects.get().since)
    line = printed("jobstatus").strip().splitlines()[-1]
    assert line.startswith("Quarantined ")
    assert line.endswith(" ago, 1 blocked: app.noop: crashed 10 times in 600 s")
    assert json.loads(printed("jobstatus", "--json"))["quarantines"][0]["blocked"] == 1
    (queue,) = [one for one in take_snapshot().queues if one.name == "default"]
    assert (queue.ready, queue.oldest_ready_seconds) == (0, None)


def test_options_of_django_are_accepted_after_the_action() -> None:
    assert run("list", "-v", "2", "--settings", "tests.settings") == "No job type is quarantined."


def test_jobs_that_wait_at_their_gates_are_counted_too() -> None:
    noop.using(concurrency_key="one").enqueue_many({} for _ in range(3))
    noop.using(concurrency_key="two").enqueue()
    add.using(concurrency_key="one").enqueue(first=1)
    quarantines.quarantine("app.noop")
    assert take_snapshot().quarantines[0].blocked == 4
    assert run("list").splitlines()[1].split()[2] == "4"
    assert " ago, 4 blocked: app.noop" in printed("jobstatus")


def test_a_count_that_did_not_read_all_of_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    add.using(concurrency_key="one", priority=9).enqueue_many({"first": n} for n in range(3))
    noop.using(concurrency_key="one").enqueue()
    quarantines.quarantine("app.noop")
    monkeypatch.setitem(counts.PARAMETERS, "head", 3)
    assert " ago, 0+ blocked: app.noop" in printed("jobstatus")
