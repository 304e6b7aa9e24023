"""``jobstatus``: the queues and the workers at a glance."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_jobs.lifecycle import operating
from tests.app.jobs import noop
from tests.factories import boot_worker, claim_ready, make_dead, run_sql


def status(*arguments: str) -> str:
    out = StringIO()
    call_command("jobstatus", *arguments, stdout=out)
    return out.getvalue()


def row_of(name: str, shown: str) -> list[str]:
    return next(line.split() for line in shown.splitlines() if line.startswith(name))


class Impatient(StringIO):
    """An output whose reader presses Ctrl-C after the third look."""

    looks = 0

    def write(self, text: str) -> int:
        self.looks += "QUEUE" in text
        if self.looks == 3:
            raise KeyboardInterrupt
        return super().write(text)


@pytest.mark.django_db
def test_it_shows_each_queue_on_a_line() -> None:
    make_dead()
    noop.enqueue()
    noop.using(delay=60).enqueue()
    operating.pause(["bulk"])
    shown = status()
    assert row_of("QUEUE", shown) == [
        "QUEUE",
        "STATE",
        "READY",
        "OLDEST",
        "RUNNING",
        "LIMIT",
        "SCHEDULED",
        "DEAD",
    ]
    assert row_of("default", shown) == ["default", "open", "1", "0s", "0", "-", "1", "1"]
    assert row_of("bulk", shown)[1] == "paused"
    assert row_of("emails", shown)[5] == "2"


@pytest.mark.django_db
def test_ages_are_told_in_the_unit_that_fits() -> None:
    noop.enqueue()
    for seconds, told in ((90, "90s"), (600, "10m"), (10_800, "3h"), (345_600, "4d")):
        run_sql(
            "UPDATE django_jobs_job SET available_at = now() - make_interval(secs => %s)",
            [seconds],
        )
        assert row_of("default", status())[3] == told


@pytest.mark.django_db
def test_it_shows_the_workers_that_are_alive_and_says_where_there_is_none() -> None:
    assert "No worker is alive." in status()
    noop.enqueue()
    claim_ready(boot_worker("web-1"))
    boot_worker("web-2", lease=-1)
    shown = status()
    assert row_of("web-1", shown)[2:7] == ["running", "testhost", "4711", "1", "1"]
    assert "no heartbeat" in next(line for line in shown.splitlines() if "web-2" in line)


@pytest.mark.django_db
def test_json_holds_the_same_for_machines() -> None:
    noop.enqueue()
    boot_worker("web-1")
    told = json.loads(status("--json"))
    ready = {queue["name"]: queue["ready"] for queue in told["queues"]}
    assert (ready["default"], ready["bulk"]) == (1, 0)
    (worker,) = told["workers"]
    assert (worker["name"], worker["queues"]) == ("web-1", ["default"])
    assert told["unknown_job_types"] == []


@pytest.mark.django_db
def test_jobs_that_no_living_worker_knows_are_shown() -> None:
    noop.enqueue()
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.from_view'")
    assert "knows" not in status()
    boot_worker("web-1")
    told = "1 ready job of a type no live worker knows: shop.from_view"
    assert status().rstrip().endswith(told)
    assert json.loads(status("--json"))["unknown_job_types"] == [
        {"job_type": "shop.from_view", "ready": 1}
    ]


@pytest.mark.django_db(transaction=True)
def test_watching_shows_it_again_until_the_reader_has_had_enough() -> None:
    out = Impatient()
    call_command("jobstatus", "--watch", "0.1", stdout=out)
    assert out.getvalue().count("QUEUE  ") == 2


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1e9"])
def test_an_interval_that_makes_no_sense_is_refused(seconds: str) -> None:
    with pytest.raises(CommandError, match="--watch takes"):
        status(f"--watch={seconds}")
