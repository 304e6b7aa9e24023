"""``jobcheck``: what is stored, tried with the code of today."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_jobs import PayloadError, chain, schedule
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.workflows.results import taken_results
from django_jobs.management import payload_check
from django_jobs.models import Job, Schedule
from tests.app.flow_jobs import send_parcel
from tests.app.jobs import add, noop
from tests.app.version_jobs import greet
from tests.commands import printed
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.worker.processes import manage

pytestmark = pytest.mark.django_db


def check(*arguments: str) -> str:
    return printed("jobcheck", "--pending", *arguments)


def fails(*arguments: str) -> str:
    out = StringIO()
    with pytest.raises(CommandError) as failure:
        call_command("jobcheck", "--pending", *arguments, stdout=out)
    assert failure.value.returncode == 1
    return out.getvalue()


def stored(job_type: str = "app.noop", version: int = 1, payload: Any = None) -> int:
    """A ready job as some other code wrote it."""
    job = noop.enqueue()
    run_sql(
        "UPDATE django_jobs_job SET job_type = %s, payload_version = %s, payload = %s::jsonb"
        " WHERE id = %s",
        [job_type, version, json.dumps({} if payload is None else payload), job.pk],
    )
    return job.pk


def ship(order_id: int, note: str = "") -> None: ...


def test_a_result_that_the_handler_of_a_step_no_longer_takes_is_reported() -> None:
    chain(add.step(first=1), send_parcel.step(order_id=7).taking(stock="add")).start()
    assert check() == "Checked 2 live jobs and 0 schedules.\n"
    with declared(ship, name="test.ship") as job_type:
        run_sql("UPDATE django_jobs_job SET job_type = 'test.ship' WHERE job_type LIKE '%parcel'")
        text = fails()
        assert "stock" in text
        assert "test.ship" in text
        settle_one(claim_ready(register_worker())[0], Succeeded(result="3"))
        (held,) = claim_ready(register_worker(job_types={"test.ship": 1}))
        assert job_type.takes_more_than({"order_id": 7})
        with pytest.raises(PayloadError, match="stock"):
            job_type.check_payload({"order_id": 7} | taken_results(held))


def test_without_stored_jobs_nothing_is_reported() -> None:
    assert check() == "Checked 0 live jobs and 0 schedules.\n"


def test_readable_payloads_pass_including_older_versions_and_names() -> None:
    add.enqueue(1)
    add.enqueue(1, second=2)
    greet.enqueue("Ada", "Lovelace")
    stored("app.greet", 1, {"name": "Ada Lovelace"})
    stored("app.old_name", 1, {"note": "x"})
    Schedule.objects.create(name="tick", job_type="app.old_name", every=60)
    assert check() == "Checked 5 live jobs and 1 schedule.\n"


@pytest.mark.parametrize(
    "job_type, version, payload, why",
    [
        ("app.gone", 1, {}, "no handler is registered for 'app.gone'"),
        ("app.greet", 4, {}, "version 4 is newer than the handler's, 3"),
        ("app.break_upgrade", 1, {}, "there is no upgrade from version 1"),
        ("app.break_upgrade", 3, {}, "the upgrade from version 3 gave a NoneType, not a dict"),
        ("app.greet", 1, {"who": "Ada"}, "the upgrade from version 1 raised KeyError"),
        ("app.add", 1, {"first": 1, "third": 3}, "got first, third"),
        ("app.add", 1, {}, "got no arguments"),
        ("app.add", 1, [1], "its payload is not a dict of arguments"),
        ("app.add", 1, "text", "its payload is not a dict of arguments"),
    ],
)
def test_unreadable_jobs_are_reported_with_their_number_and_lowest_id(
    job_type: str, version: int, payload: Any, why: str
) -> None:
    noop.enqueue()
    first = stored(job_type, version, payload)
    stored(job_type, version, payload)
    shown = fails()
    (line,) = [line for line in shown.splitlines() if line.startswith(job_type)]
    assert line.split()[:4] == [job_type, str(version), "2", str(first)]
    assert why in line
    assert shown.endswith("Checked 3 live jobs and 0 schedules.\n")


def test_jobs_with_the_same_problem_share_one_line() -> None:
    first = stored("app.gone", 1, {"a": 1})
    stored("app.gone", 1, {"b": 1})
    (output,) = json.loads(fails("--json"))["listed_jobs"]
    assert (output["jobs"], output["lowest_id"]) == (2, first)


@pytest.mark.parametrize("status", ["scheduled", "waiting", "blocked", "ready"])
def test_all_live_jobs_are_checked(status: str) -> None:
    run_sql("UPDATE django_jobs_job SET status = %s WHERE id = %s", [status, stored("app.gone")])
    assert "app.gone" in fails()


def test_running_jobs_are_checked_and_ended_ones_are_not() -> None:
    make_dead()
    enqueue_and_claim()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.gone'")
    (output,) = json.loads(fails("--json"))["listed_jobs"]
    assert output["jobs"] == 1


def test_a_payload_that_python_cannot_read_is_reported() -> None:
    id_ = stored()
    run_sql(
        "UPDATE django_jobs_job SET payload = ('{\"n\": ' || repeat('9', 5000) || '}')::jsonb"
        " WHERE id = %s",
        [id_],
    )
    assert "its payload cannot be read (ValueError)" in fails()


def test_schedules_are_tried_too_unless_they_are_disabled() -> None:
    Schedule.objects.create(name="fits", job_type="app.noop", every=60)
    Schedule.objects.create(name="off", job_type="app.gone", every=60, enabled=False)
    assert "2" not in check()
    Schedule.objects.create(name="gone", job_type="app.gone", every=60)
    Schedule.objects.create(name="newer", job_type="app.greet", every=60, payload_version=4)
    shown = fails()
    assert "gone      app.gone   1        no handler is registered for 'app.gone'" in shown
    assert "version 4 is newer" in shown
    assert shown.endswith("Checked 0 live jobs and 3 schedules.\n")


def test_declared_schedules_show_the_rows_that_migrate_writes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("django_jobs.registry._schedules", {})
    schedule("nightly", "app.noop", every=60)
    Schedule.objects.create(name="nightly", job_type="app.gone", every=60)
    Schedule.objects.create(name="of_before", job_type="app.gone", every=60, declared=True)
    assert check() == "Checked 0 live jobs and 0 schedules.\n"


def test_json_is_one_object() -> None:
    assert json.loads(check("--json")) == {
        "jobs": 0,
        "schedules": 0,
        "unreadable_jobs": 0,
        "unreadable_schedules": 0,
        "listed_jobs": [],
        "listed_schedules": [],
    }
    first = stored("app.gone")
    output = json.loads(fails("--json"))
    assert output["unreadable_jobs"] == 1
    assert output["listed_jobs"] == [
        {
            "job_type": "app.gone",
            "version": 1,
            "jobs": 1,
            "lowest_id": first,
            "problem": "no handler is registered for 'app.gone'",
        }
    ]


def test_many_problems_are_all_counted_and_listed_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payload_check, "MOST_LISTED_PROBLEMS", 3)

    def handler(**given: Any) -> None: ...

    with declared(handler, name="app.anything") as anything:
        anything.enqueue_many({f"key_{n}": n} for n in range(20))
        assert check().startswith("Checked 20 live jobs")
    run_sql("UPDATE django_jobs_job SET job_type = 'app.gone_' || id")
    for n in range(5):
        Schedule.objects.create(name=f"s{n}", job_type="app.gone", every=60)
    output = json.loads(fails("--json"))
    assert (output["unreadable_jobs"], len(output["listed_jobs"])) == (20, 3)
    assert (output["unreadable_schedules"], len(output["listed_schedules"])) == (5, 3)


def test_nothing_is_changed() -> None:
    stored("app.greet", 1, {"name": "Ada Lovelace"})
    before = list(Job.objects.values())
    check()
    assert list(Job.objects.values()) == before


@pytest.mark.django_db(transaction=True)
def test_the_command_line_exits_with_0_1_or_2() -> None:
    def exit_code(*arguments: str) -> int:
        return manage("jobcheck", "--skip-checks", *arguments)[0]

    assert exit_code("--pending") == exit_code() == 0
    stored("app.gone")
    assert exit_code("--pending") == 1
    assert exit_code("--pendign") == 2


def test_an_upgrade_may_ask_the_database() -> None:
    def look_up(payload: dict[str, Any]) -> dict[str, Any]:
        return {"count": Job.objects.count()}

    def handler(count: int) -> None:
        """Takes what was counted."""

    with declared(handler, version=2, upgrades={1: look_up}) as counting:
        stored(counting.name)
        assert check() == "Checked 1 live job and 0 schedules.\n"
