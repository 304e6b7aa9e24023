"""Jobs and workflows that nothing will run."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from django_jobs import chain
from django_jobs.api.generations import GENERATION, MANY
from django_jobs.doctor.schedules import examine_schedules
from django_jobs.doctor.work import (
    MOST_COUNTED,
    examine_compensations,
    examine_generations,
    examine_payloads,
    examine_queues,
    examine_types,
    examine_workflows,
)
from django_jobs.lifecycle.operations import workflows
from django_jobs.metrics.unclaimable import take_unclaimable
from django_jobs.models import Job, Queue, Worker
from tests.app.flow_jobs import send_parcel
from tests.app.jobs import add, noop
from tests.app.version_jobs import greet
from tests.factories import (
    claim_ready,
    declared,
    due_schedule,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.test_opening import DEAD, OK, finish
from tests.workflows import saga, start_graph

from .finding import diagnosis_of, findings

pytestmark = pytest.mark.django_db


def test_ready_jobs_without_a_living_worker_are_found() -> None:
    assert not findings(examine_queues, "D301")
    noop.enqueue()
    (none,) = findings(examine_queues, "D301")
    assert none.facts == {"queues": ["default"]}
    register_worker(lease=-1)
    assert findings(examine_queues, "D301")
    register_worker()
    assert not diagnosis_of(examine_queues).findings


def test_due_jobs_that_no_living_worker_makes_ready_are_found() -> None:
    noop.using(delay=3600).enqueue()
    noop.using(queue="bulk", delay=60).enqueue()
    noop.using(queue="emails", delay=60).enqueue()
    Queue.objects.filter(name="emails").update(paused_at="2026-01-01T00:00Z")
    assert not findings(examine_queues, "D301")
    run_sql("UPDATE django_jobs_job SET available_at = available_at - interval '130 s'")
    (none,) = findings(examine_queues, "D301")
    assert none.facts == {"queues": ["bulk"]}
    noop.enqueue()
    (none,) = findings(examine_queues, "D301")
    assert none.facts == {"queues": ["bulk", "default"]}
    register_worker()
    assert not diagnosis_of(examine_queues).findings


def test_a_queue_that_no_living_worker_serves_is_found() -> None:
    register_worker(queues=["default"])
    noop.using(queue="bulk").enqueue_many([{}] * 3)
    (unserved,) = findings(examine_queues, "D302")
    assert unserved.facts == {"queue": "bulk", "waiting": 3}
    assert unserved.commands == ("manage.py jobworker --queues bulk",)
    bulk = Queue.objects.filter(name="bulk")
    bulk.update(paused_at="2026-01-01T00:00Z")
    assert not findings(examine_queues, "D302")
    bulk.delete()
    (gone,) = findings(examine_queues, "D302")
    assert gone.problem == "The queue 'bulk' has no row, so no worker claims its 3 jobs."
    register_worker(queues=["bulk"])  # which claims none of them
    assert findings(examine_queues, "D302") == [gone]
    Queue.objects.create(name="bulk")
    assert not findings(examine_queues, "D302")
    Worker.objects.filter(queues=["bulk"]).update(status="draining")  # it takes no more of them
    assert findings(examine_queues, "D302")
    Worker.objects.update(lease_expires_at="2026-01-01T00:00Z")
    (none,) = findings(examine_queues, "D301")
    assert none.facts == {"queues": ["bulk"]}


def test_jobs_at_their_gates_wait_for_a_worker_too() -> None:
    register_worker(queues=["bulk"])
    noop.using(concurrency_key="one").enqueue_many([{}] * 2)
    assert not Job.objects.filter(status="ready")
    (unserved,) = findings(examine_queues, "D302")
    assert unserved.facts == {"queue": "default", "waiting": 2}
    Worker.objects.all().delete()
    (none,) = findings(examine_queues, "D301")
    assert none.facts == {"queues": ["default"]}


def test_types_of_jobs_that_are_due_next_are_looked_at_before_they_are_ready() -> None:
    register_worker()
    noop.using(delay=3600).enqueue_many([{}] * 3)
    add.using(delay=3600).enqueue(1)
    noop.using(delay=60).enqueue()
    run_sql(
        "UPDATE django_jobs_job SET job_type = 'shop.gone' WHERE available_at > now() + '9 min'"
        " AND job_type = 'app.noop'"
    )
    run_sql("UPDATE django_jobs_job SET payload_version = 7 WHERE job_type = 'app.add'")
    (unknown,) = findings(examine_types, "D303")
    assert unknown.facts == {"job_type": "shop.gone", "jobs": 3}
    assert "knows the type shop.gone: 3 jobs wait" in unknown.problem
    (unread,) = findings(examine_types, "D304")
    assert unread.facts == {"job_type": "app.add", "version": 7, "jobs": 1}
    assert take_unclaimable() == ((), ())


def test_types_and_versions_that_no_living_worker_knows_are_found() -> None:
    register_worker()
    noop.enqueue_many([{}] * 2)
    add.enqueue(1)
    assert not diagnosis_of(examine_types).findings
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone' WHERE job_type = 'app.noop'")
    run_sql("UPDATE django_jobs_job SET payload_version = 7 WHERE job_type = 'app.add'")
    (unknown,) = findings(examine_types, "D303")
    assert unknown.facts == {"job_type": "shop.gone", "jobs": 2}
    (newer,) = findings(examine_types, "D304")
    assert newer.facts == {"job_type": "app.add", "version": 7, "jobs": 1}


def test_jobs_that_were_counted_to_a_bound_are_said_to_be_at_least_as_many() -> None:
    register_worker()
    noop.using(delay=60).enqueue_many([{}] * (MOST_COUNTED + 5))
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone'")
    (unknown,) = findings(examine_types, "D303")
    assert unknown.facts == {"job_type": "shop.gone", "jobs": MOST_COUNTED}
    assert ": 1,000+ jobs wait" in unknown.problem
    run_sql("UPDATE django_jobs_job SET job_type = 'app.noop', payload_version = 7")
    (newer,) = findings(examine_types, "D304")
    assert ": 1,000+ jobs wait" in newer.problem


def test_payloads_that_this_code_cannot_read_are_found() -> None:
    first = add.enqueue(1)
    add.enqueue(2)
    add.using(delay=60).enqueue(3)
    assert not findings(examine_payloads, "D305")
    run_sql("""UPDATE django_jobs_job SET payload = '{"other": "secret"}'""")
    (unreadable,) = findings(examine_payloads, "D305")
    assert unreadable.facts == {"job_type": "app.add", "jobs": 3, "lowest_id": first.pk}
    assert "secret" not in unreadable.problem
    run_sql("UPDATE django_jobs_job SET payload = %s::jsonb", ['{"first": ' + "9" * 5001 + "}"])
    (unreadable,) = findings(examine_payloads, "D305")
    assert "cannot be read (ValueError)" in unreadable.problem
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone'")
    assert not findings(examine_payloads, "D305")  # no code of this process


def test_a_step_that_takes_the_result_of_another_is_no_finding() -> None:
    chain(add.step(first=1), send_parcel.step(order_id=7).taking(stock="add")).start()
    settle_one(claim_ready(register_worker())[0], OK)
    assert not findings(examine_payloads, "D305")
    run_sql("UPDATE django_jobs_dependency SET takes = NULL")
    (unreadable,) = findings(examine_payloads, "D305")
    assert unreadable.facts["job_type"] == "app.send_parcel"


def test_a_payload_that_is_newer_than_this_code_is_left_to_the_workers() -> None:
    greet.enqueue(first="Ada", last="Lovelace")
    run_sql("UPDATE django_jobs_job SET payload_version = 99")
    (newer,) = findings(examine_payloads, "D305")
    assert "newer than the handler's" in newer.problem
    register_worker(job_types={greet.name: 99})
    assert not findings(examine_payloads, "D305")
    run_sql("UPDATE django_jobs_worker SET lease_expires_at = now() - interval '1 s'")
    assert findings(examine_payloads, "D305")


def old_name(first: int) -> None: ...


def test_an_old_name_of_a_job_type_is_known_without_a_worker() -> None:
    with declared(old_name, name="test.new", aliases=["test.old"]):
        due_schedule(job_type="test.old")
        assert not findings(examine_schedules, "D306")
        add.enqueue(1)
        run_sql("UPDATE django_jobs_job SET job_type = 'test.old'")
        assert not findings(examine_payloads, "D305")
        run_sql("""UPDATE django_jobs_job SET payload = '{"other": 1}'""")
        (unreadable,) = findings(examine_payloads, "D305")
        assert unreadable.facts["job_type"] == "test.old"


def test_what_an_upgrade_raises_is_named_without_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(greet.upgrades, 1, lambda payload: {"who": int(payload["name"])})
    greet.enqueue(first="Ada", last="Lovelace")
    run_sql("""UPDATE django_jobs_job SET payload_version = 1, payload = '{"name": "card 4711"}'""")
    (unreadable,) = findings(examine_payloads, "D305")
    assert unreadable.problem.endswith("the upgrade from version 1 raised ValueError.")
    assert "4711" not in str(unreadable)


def test_a_run_of_a_workflow_that_cannot_end_is_found() -> None:
    run = start_graph({"a": "", "b": "a"})
    assert not findings(examine_workflows, "D308")
    Job.objects.filter(workflow_run=run, step="a").delete()
    stuck = findings(examine_workflows, "D308")
    assert [one.facts["run"] for one in stuck] == [run.pk]
    assert "step b" in stuck[0].problem


def test_a_run_with_many_stuck_steps_is_read_as_one() -> None:
    run = start_graph({"a": "", **{f"b{number}": "a" for number in range(50)}})
    Job.objects.filter(workflow_run=run, step="a").delete()
    most = 0

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal most
        result = execute(sql, params, many, context)
        most = max(most, context["cursor"].rowcount)
        return result

    with connection.execute_wrapper(note):
        (stuck,) = findings(examine_workflows, "D308")
    assert stuck.facts == {"run": run.pk, "problems": 50}
    assert stuck.problem.count("; step b") == 2
    assert most == 1


def test_a_compensation_that_failed_is_found_until_it_is_skipped() -> None:
    saga("a", "b")
    finish({"last": DEAD})
    assert not findings(examine_compensations, "D309")
    run = saga("a", "b")
    finish({"last": DEAD, "undo b": DEAD})
    (one,) = findings(examine_compensations, "D309")
    assert one.facts == {"run": run.pk, "workflow": "saga", "steps": ["undo b"]}
    assert one.commands == (
        f"manage.py jobworkflow show {run.pk}",
        f"manage.py jobworkflow retry {run.pk}",
    )
    workflows.skip(run.pk, "undo b", reason="by hand")
    assert not findings(examine_compensations, "D309")


def test_jobs_that_handlers_enqueue_one_after_the_other_are_found() -> None:
    def wait(name: str, generation: Any, **options: Any) -> None:
        request = noop.using(headers={GENERATION: generation}, **options)
        run_sql(
            "UPDATE django_jobs_job SET job_type = %s WHERE id = %s", [name, request.enqueue().pk]
        )

    assert not findings(examine_generations, "D316")
    wait("shop.short", MANY - 1)
    for nothing in ("9999", None, [], {}):
        wait("shop.short", nothing)
    assert not findings(examine_generations, "D316")
    wait("shop.next", MANY)
    wait("shop.next", MANY + 1)
    wait("shop.later", 1e300, delay=3600)
    wait("shop.blocked", MANY + 0.5, tenant="acme")
    found = findings(examine_generations, "D316")
    assert [one.facts for one in found] == [
        {"job_type": "shop.later", "generation": 10**15},
        {"job_type": "shop.next", "generation": MANY + 1},
        {"job_type": "shop.blocked", "generation": MANY},
    ]
    assert "a chain of 1,001 handlers" in found[1].problem


def test_a_chain_is_found_where_it_runs_and_behind_others() -> None:
    noop.using(headers={GENERATION: MANY}).enqueue()
    claim_ready(register_worker())
    add.using(queue="bulk", delay=60).enqueue_many([{"first": n} for n in range(2_500)])
    assert [one.facts["job_type"] for one in findings(examine_generations, "D316")] == ["app.noop"]
