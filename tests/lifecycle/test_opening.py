"""The end of a step opens or skips those after it, and the last one ends the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs.domain.admission import FairShares
from django_jobs.domain.gates import Gates, OnConflict
from django_jobs.domain.outcomes import Cancelled, Outcome, Succeeded
from django_jobs.domain.workflows import Skipped
from django_jobs.lifecycle import opening
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, HandOver, give_back, settle
from django_jobs.lifecycle.settling_rows import settle_row_by_row
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Dependency, Job, Queue, Run, WorkflowRun
from django_jobs.signals import worker_event, workflow_finished
from tests.app.jobs import noop
from tests.factories import (
    claim_ready,
    failure,
    heard,
    in_threads,
    listening,
    register_worker,
    run_sql,
    settle_one,
)
from tests.workflows import saga, start_graph, states, step, steps_of

pytestmark = pytest.mark.django_db

OK = Succeeded()
DEAD = failure(final=True)
SKIPPED = Cancelled(reason="skipped: no rows", skipped=Skipped.UNNEEDED)
DIAMOND = {"a": "", "b": "a", "c": "a", "d": "b c"}


def finish(outcomes: Mapping[str, Outcome] = {}, rounds: int = 100) -> list[str]:
    """Run what is ready until nothing is, with these outcomes; the order of the steps."""
    worker, order = register_worker(), []
    for _ in range(rounds):
        held = claim_ready(worker)
        if not held:
            return order
        names = dict(Job.objects.filter(pk__in=[one.id for one in held]).values_list("id", "step"))
        order += [names[one.id] for one in held]
        settle([Ending(one, outcomes.get(names[one.id], OK)) for one in held])
    raise AssertionError("the graph does not come to an end")


def admit_all() -> int:
    """Admit what has room; how many became ready."""
    before = Job.objects.filter(status="ready").count()
    admit({"default": 100}, FairShares())
    return Job.objects.filter(status="ready").count() - before


def reread(run: WorkflowRun) -> WorkflowRun:
    return WorkflowRun.objects.get(pk=run.pk)


def test_a_step_waits_for_all_before_it() -> None:
    run = start_graph(DIAMOND)
    assert states(run) == {"a": "ready", "b": "waiting", "c": "waiting", "d": "waiting"}
    assert reread(run).ends_left == 1
    assert finish() == ["a", "b", "c", "d"]
    assert set(states(run).values()) == {"succeeded"}
    ended = reread(run)
    assert (ended.status, ended.ends_left, ended.reason) == ("succeeded", 0, "")
    assert ended.finished_at is not None
    assert Run.objects.filter(job__workflow_run=run).count() == 4


@pytest.mark.django_db(transaction=True)
def test_a_connection_that_binds_on_the_server_opens_and_ends_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    try:
        run = start_graph(DIAMOND)
        assert finish({"b": DEAD}) == ["a", "b", "c"]
        assert (reread(run).status, reread(run).reason) == ("failed", "b failed")
    finally:
        connection.close()


def test_two_parents_that_end_in_one_batch_open_their_child_once() -> None:
    run = start_graph({"a": "", "b": "", "c": "a b"})
    worker = register_worker()
    settle([Ending(one, OK) for one in claim_ready(worker)])
    assert states(run)["c"] == "ready"
    assert step(run, "c").prerequisites == 0


@pytest.mark.parametrize(
    ("graph", "outcomes", "expected", "status"),
    [
        pytest.param(
            {"a": "", "b": "a", "c": "b"},
            {"a": DEAD},
            {"a": "dead", "b": "cancelled (failed)", "c": "cancelled (failed)"},
            "failed",
            id="a failure skips all behind it",
        ),
        pytest.param(
            {"a": "", "sorry": "-a", "after": "sorry"},
            {},
            {"a": "succeeded", "sorry": "cancelled (unneeded)", "after": "cancelled (unneeded)"},
            "succeeded",
            id="a branch for a failure is not needed",
        ),
        pytest.param(
            {"a": "", "sorry": "-a", "b": "a", "tidy": "*b"},
            {"a": DEAD},
            {"a": "dead", "sorry": "succeeded", "b": "cancelled (failed)", "tidy": "succeeded"},
            "failed",
            id="a failure opens its branch, and finished is met by a skip",
        ),
        pytest.param(
            {"a": "", "b": "a", "sorry": "-b"},
            {"a": DEAD},
            {"a": "dead", "b": "cancelled (failed)", "sorry": "succeeded"},
            "failed",
            id="what was skipped for a failure counts as failed",
        ),
        pytest.param(
            {"a": "", "b": "", "c": "a b", "d": "c *b"},
            {"a": Cancelled(reason="no")},
            {
                "a": "cancelled",
                "b": "succeeded",
                "c": "cancelled (failed)",
                "d": "cancelled (failed)",
            },
            "cancelled",
            id="a cancel counts as failed, and the run as cancelled",
        ),
        pytest.param(
            {"a": "", "b": "a", "tidy": "*b", "sorry": "-a"},
            {"a": SKIPPED},
            {
                "a": "cancelled (unneeded)",
                "b": "cancelled (unneeded)",
                "tidy": "succeeded",
                "sorry": "cancelled (unneeded)",
            },
            "succeeded",
            id="a step that skips itself is not needed, and the run succeeds",
        ),
        pytest.param(
            {"a": "", "b?": "a", "c": "b", "d": "*b"},
            {"b": DEAD},
            {"a": "succeeded", "b": "cancelled (passed)", "c": "succeeded", "d": "succeeded"},
            "succeeded",
            id="an optional step is passed over where it would be dead",
        ),
        pytest.param(
            {"a?": "", "b": "a"},
            {"a": Cancelled(reason="no")},
            {"a": "cancelled", "b": "cancelled (failed)"},
            "cancelled",
            id="an optional step that was cancelled counts as failed",
        ),
    ],
)
def test_what_cannot_run_is_skipped(
    graph: dict[str, str], outcomes: dict[str, Outcome], expected: dict[str, str], status: str
) -> None:
    run = start_graph(graph)
    finish(outcomes)
    assert states(run) == expected
    assert reread(run).status == status


def test_a_run_ends_with_its_last_step_and_not_with_its_last_end() -> None:
    """``c`` is skipped at once, while ``b``, which it waited for too, still runs."""
    run = start_graph({"a": "", "b": "", "c": "a b"})
    first, second = claim_ready(register_worker())
    settle_one(first, DEAD)
    assert states(run) == {"a": "dead", "b": "running", "c": "cancelled (failed)"}
    assert (reread(run).status, reread(run).ends_left) == ("running", 0)
    settle_one(second, OK)
    assert (reread(run).status, reread(run).reason) == ("failed", "a failed")


def test_a_skipped_step_names_the_cause() -> None:
    run = start_graph({"a": "", "b": "a", "c": "b", "sorry": "-d", "d": ""})
    finish({"a": DEAD})
    reasons = {name: step(run, name).reason for name in ("b", "c", "sorry")}
    assert reasons == {
        "b": "skipped: a failed",
        "c": "skipped: b was skipped",
        "sorry": "skipped: d succeeded",
    }


def test_a_step_that_skips_itself_says_why_even_if_its_cancel_was_requested() -> None:
    run = start_graph({"a": "", "b": "a"})
    noop.enqueue()
    first, other = claim_ready(register_worker())
    job_operations.cancel([first.id], reason="by ada")
    settle([Ending(one, SKIPPED) for one in (first, other)])
    reasons = list(Job.objects.order_by("pk").values_list("step", "status", "skipped", "reason"))
    assert reasons == [
        ("a", "cancelled", "unneeded", "skipped: no rows"),
        ("b", "cancelled", "unneeded", "skipped: a was skipped"),
        (None, "cancelled", None, "skipped: no rows"),
    ]
    assert (reread(run).status, reread(run).reason) == ("succeeded", "")


def test_an_optional_step_is_passed_over_with_its_last_failure() -> None:
    run = start_graph({"a?": "", "b": "a"}, max_attempts=2, headers={"trace": "1"})
    assert finish({"a": failure("the shop is closed")}) == ["a"]
    assert states(run) == {"a": "scheduled", "b": "waiting"}
    Job.objects.filter(step="a").update(status="ready")
    assert finish({"a": failure("the shop is closed")}) == ["a", "b"]
    passed = step(run, "a")
    assert (passed.status, passed.skipped) == ("cancelled", "passed")
    assert passed.reason == "skipped: it is optional; failed 2 of 2 times"
    assert passed.last_error.endswith("the shop is closed")
    assert passed.headers == {"trace": "1", "django_jobs.optional": True}
    assert step(run, "b").headers == {"trace": "1"}


def test_an_optional_step_whose_cancel_came_before_its_failure_was_cancelled() -> None:
    run = start_graph({"a?": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    job_operations.cancel([held.id], reason="by ada")
    settle_one(held, DEAD)
    assert states(run) == {"a": "cancelled", "b": "cancelled (failed)"}
    assert (step(run, "a").reason, reread(run).status) == ("by ada", "cancelled")


def test_a_graph_without_an_end_in_common_ends_when_all_have_ended() -> None:
    run = start_graph({str(number): "" for number in range(10)})
    assert reread(run).ends_left == 10
    worker = register_worker()
    for held in claim_ready(worker):
        assert reread(run).status == "running"
        settle_one(held, OK)
    assert reread(run).status == "succeeded"


def test_a_wide_level_is_skipped_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "PAGE", 3)
    members = {f"b{number}": "a" for number in range(10)}
    next_ones = {f"c{number}": f"b{number} b{9 - number}" for number in range(10)}
    run = start_graph({"a": "", **members, **next_ones, "sorry": "-a", "last": " ".join(next_ones)})
    finish({"a": DEAD})
    assert set(states(run).values()) == {"dead", "cancelled (failed)", "succeeded"}
    assert reread(run).status == "failed"


def test_a_long_chain_is_skipped_to_its_end() -> None:
    graph = {"0": ""} | {str(n): str(n - 1) for n in range(1, 60)}
    run = start_graph(graph)
    finish({"0": DEAD})
    assert list(states(run).values()).count("cancelled (failed)") == 59
    assert reread(run).status == "failed"


def test_a_delay_and_a_maximum_age_count_from_the_opening() -> None:
    new = noop.using(delay=3600).request()
    (first,) = steps_of({"a": ""})
    graph = [first, *(one for one in steps_of({"a": "", "b": "a"}, delay=3600)[1:])]
    assert new.delay == 3600
    run = start(NewRun(name="graph"), graph)
    Job.objects.filter(workflow_run=run).update(created_at="2020-01-01T00:00Z")
    Job.objects.filter(step="b").update(
        available_at="2020-01-01T01:00Z", expires_at="2020-01-01T02:00Z"
    )
    finish()
    late = step(run, "b")
    assert late.status == "scheduled"
    assert late.expires_at is not None
    assert late.available_at.year >= 2026
    assert (late.expires_at - late.available_at).total_seconds() == 3600


def test_a_priority_set_while_waiting_holds_after_the_opening() -> None:
    run = start_graph({"a": "", "b": "a", "c": "a"})
    id_ = step(run, "c").pk
    assert job_operations.reprioritize([id_], 10).done == [id_]
    worker = register_worker()
    (held,) = claim_ready(worker)
    settle_one(held, OK)
    early, late = step(run, "b"), step(run, "c")
    assert (late.status, late.priority) == ("ready", 10)
    weight = Queue.objects.get(name="default").priority_weight
    assert early.rank - late.rank == pytest.approx(10 * weight)
    assert [one.id for one in claim_ready(worker, limit=1)] == [late.pk]


@pytest.mark.parametrize("outcome", [OK, DEAD])
def test_only_an_opened_step_that_waits_at_gates_asks_for_an_admission(outcome: Outcome) -> None:
    gates = Gates(queue="default", key="account:7")
    after = "a" if outcome is OK else "-a"
    for own, asks in ((None, False), (gates, True)):
        first, last = steps_of({"a": "", "b": after})
        start(NewRun(name="graph"), [first, replace(last, gates=own)])
        (held,) = claim_ready(register_worker())
        handed = HandOver()
        settle([Ending(held, outcome)], hand_over=handed)
        assert handed.freed is asks
        job_operations.cancel(Job.objects.filter(step="b").values_list("pk", flat=True))


@pytest.mark.django_db(transaction=True)
def test_a_step_with_gates_that_a_cancel_opens_asks_for_an_admission() -> None:
    first, last = steps_of({"a": "", "b": "*a"})
    last = replace(last, gates=Gates(queue="default", key="account:7"))
    run = start(NewRun(name="graph"), [first, last])
    with listening() as notified:
        job_operations.cancel([step(run, "a").pk])
        assert ":blocked:default" in notified()


def test_a_step_with_gates_waits_at_them_when_it_is_open() -> None:
    gates = Gates(queue="default", key="account:7")
    run = start(
        NewRun(name="graph"),
        [replace(one, gates=gates) for one in steps_of({"a": "", "b": "a"})],
    )
    assert states(run) == {"a": "blocked", "b": "waiting"}
    assert admit_all() == 1
    finish()
    assert states(run) == {"a": "succeeded", "b": "blocked"}
    assert admit_all() == 1


@pytest.mark.parametrize("days", [1, -1])
def test_a_later_step_opens_at_its_run_at_and_not_before_its_parents_ended(days: int) -> None:
    when = timezone.now() + timedelta(days=days)
    first, second = steps_of({"a": "", "b": "a"})
    run = start(
        NewRun(name="graph"), [first, replace(second, new=noop.using(run_at=when).request())]
    )
    run_sql("UPDATE django_jobs_job SET created_at = created_at - interval '2 hours'")
    assert finish() == (["a"] if days > 0 else ["a", "b"])
    opened = step(run, "b")
    if days > 0:
        assert (opened.status, opened.available_at) == ("scheduled", when)
        assert abs(opened.rank - when.timestamp()) < 0.001
    else:
        assert opened.available_at > timezone.now() - timedelta(minutes=1)


@pytest.mark.parametrize("status", ["waiting", "ready", "blocked", "scheduled"])
def test_a_cancelled_step_skips_those_after_it(status: str) -> None:
    run = start_graph({"a": "", "b": "a"})
    Job.objects.filter(step="a").update(status=status)
    job_operations.cancel([step(run, "a").pk])
    assert states(run) == {"a": "cancelled", "b": "cancelled (failed)"}
    assert (reread(run).status, reread(run).reason) == ("cancelled", "a step was cancelled")


def test_a_step_given_back_after_a_cancel_skips_those_after_it() -> None:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    job_operations.cancel([held.id])
    assert states(run) == {"a": "running", "b": "waiting"}
    assert give_back([held.fence]) == [held.id]
    assert states(run) == {"a": "cancelled", "b": "cancelled (failed)"}


def test_a_step_whose_end_cannot_be_written_fails() -> None:
    run = start_graph({"a": "", "b": "a"})
    (held,) = claim_ready(register_worker())
    Job.objects.filter(pk=held.id).update(replays=1)
    settle_row_by_row([Ending(held._replace(available_at=float("inf")), DEAD)])
    assert states(run) == {"a": "dead", "b": "cancelled (failed)"}


def test_a_step_dropped_by_its_full_queue_fails_with_its_run() -> None:
    run = start_graph({"a": "", "b": "a"}, queue="bulk", priority=-100)
    Queue.objects.filter(name="bulk").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    noop.using(queue="bulk").enqueue()
    assert states(run) == {"a": "dead", "b": "cancelled (failed)"}
    assert step(run, "a").reason == "dropped: queue bulk was full"
    assert (reread(run).status, reread(run).reason) == ("failed", "a failed")


def test_an_optional_step_that_is_dropped_is_passed_over() -> None:
    run = start_graph({"a?": "", "b": "a"}, queue="bulk", priority=-100)
    Queue.objects.filter(name="bulk").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    noop.using(queue="bulk").enqueue()
    assert states(run) == {"a": "cancelled (passed)", "b": "ready"}
    assert step(run, "a").reason == "dropped: queue bulk was full"

    gates = Gates(queue="default", key="account:7", on_conflict=OnConflict.DISCARD)
    noop.using(concurrency_key="account:7").enqueue()
    run = start(NewRun(name="graph"), [replace(one, gates=gates) for one in steps_of({"a?": ""})])
    admit_all()
    assert (states(run), reread(run).status) == ({"a": "cancelled (passed)"}, "succeeded")


def test_what_succeeded_is_undone_if_a_full_queue_drops_a_later_step() -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    steps = steps_of({"a": "", "last": "a"})
    steps[1] = replace(steps[1], new=noop.using(queue="bulk", priority=-10).request())
    compensations = as_json({"a": steps_of({"undo a": ""})[0]})
    run = start(NewRun(name="saga", compensations=compensations), steps)
    (held,) = claim_ready(register_worker())
    settle_one(held, OK)
    noop.using(queue="bulk", priority=50).enqueue()
    assert states(run) == {"a": "succeeded", "last": "dead", "undo a": "ready"}
    assert finish() == ["undo a"]
    assert (reread(run).status, reread(run).reason) == ("failed", "last failed")


@pytest.mark.parametrize(
    ("policy", "left"),
    [(OnConflict.DISCARD, ("ready", "dead")), (OnConflict.REPLACE_WAITING, ("dead", "blocked"))],
)
def test_a_step_without_a_slot_of_its_key_fails_with_its_run(
    policy: OnConflict, left: tuple[str, str]
) -> None:
    gates = Gates(queue="default", key="account:7", on_conflict=policy)
    if policy == OnConflict.REPLACE_WAITING:
        noop.using(concurrency_key="account:7").enqueue()
    runs = [
        start(NewRun(name="graph"), [replace(one, gates=gates) for one in steps_of({"a": ""})])
        for _ in range(2)
    ]
    admit_all()
    assert tuple(states(run)["a"] for run in runs) == left
    dropped = runs[left.index("dead")]
    assert (reread(dropped).status, reread(dropped).reason) == ("failed", "a failed")


def test_what_succeeded_is_undone_in_reverse_order() -> None:
    graph = {"a": "", "b": "a", "c": "b", "d": "c"}
    steps = steps_of(graph)
    undo = steps_of({"undo a": "", "undo b": "", "undo d": ""})
    compensations = as_json(dict(zip("abd", undo, strict=True)))
    run = start(NewRun(name="graph", compensations=compensations), steps)
    assert finish({"c": DEAD, "undo b": DEAD}) == ["a", "b", "c", "undo b", "undo a"]
    ended = reread(run)
    assert (ended.status, ended.reason) == ("failed", "undo b, c failed")
    assert states(run)["undo a"] == "succeeded"


def test_a_compensation_is_retried_before_it_is_dead() -> None:
    run = saga("a")
    assert finish({"last": DEAD, "undo a": failure("the bank is closed")}) == [
        "a",
        "last",
        "undo a",
    ]
    undo = step(run, "undo a")
    assert (undo.status, undo.failures) == ("scheduled", 1)
    assert (reread(run).status, reread(run).reason) == ("running", "")
    Job.objects.filter(pk=undo.pk).update(status="ready")
    assert finish() == ["undo a"]
    assert list(Run.objects.filter(job=undo).order_by("attempt").values_list("outcome")) == [
        ("failed",),
        ("succeeded",),
    ]
    assert (reread(run).status, reread(run).reason) == ("failed", "last failed")


def test_a_compensation_takes_the_result_of_what_it_undoes() -> None:
    steps = steps_of({"a": "", "b": "a"})
    compensations = as_json({"a": steps_of({"undo a": ""})[0]}, {"a": {"a": ["result"]}})
    run = start(NewRun(name="graph", compensations=compensations), steps)
    finish({"a": Succeeded(result='"paid"'), "b": DEAD})
    (row,) = Dependency.objects.filter(child=step(run, "undo a"))
    assert (row.parent_id, row.takes) == (step(run, "a").pk, ["result"])
    assert reread(run).status == "failed"


def test_a_run_that_succeeds_undoes_nothing() -> None:
    steps = steps_of({"a": ""})
    compensations = as_json({"a": steps_of({"undo a": ""})[0]})
    run = start(NewRun(name="graph", compensations=compensations), steps)
    assert finish() == ["a"]
    assert reread(run).status == "succeeded"


@pytest.mark.django_db(transaction=True)
def test_the_end_of_a_run_is_sent_after_the_commit() -> None:
    with heard(workflow_finished) as events:
        run = start_graph({"a": ""})
        finish()
    assert [(one["sender"], one["run_id"], one["status"]) for one in events] == [
        ("graph", run.pk, "succeeded")
    ]


@pytest.mark.django_db(transaction=True)
def test_a_count_that_is_too_low_is_an_event_and_loses_no_settle() -> None:
    run = start_graph({"a": "", "b": ""})
    WorkflowRun.objects.filter(pk=run.pk).update(ends_left=1)
    with heard(worker_event) as events:
        for held in claim_ready(register_worker()):
            settle_one(held, OK)
    assert [(one["sender"], one["fields"]) for one in events] == [
        ("workflow_miscounted", {"run": run.pk, "workflow": "graph"})
    ]
    assert states(run) == {"a": "succeeded", "b": "succeeded"}
    assert (reread(run).status, reread(run).ends_left) == ("succeeded", 0)


def test_a_key_is_held_by_a_running_run() -> None:
    first = start_graph({"a": ""}, key="k")
    again = start_graph({"a": "", "b": "a"}, key="k")
    assert (again.pk, again.deduplicated, first.deduplicated) == (first.pk, True, False)
    assert Job.objects.count() == 1
    finish()
    assert start_graph({"a": ""}, key="k").pk != first.pk


def test_a_start_and_a_settle_have_their_numbers_of_statements(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    noop.enqueue()
    Job.objects.all().delete()
    steps = steps_of({"a": "", "b": "a", "c": "b"})
    with django_assert_num_queries(7):  # in a savepoint: the run, ids, two COPY, the run again
        start(NewRun(name="graph"), steps)
    worker = register_worker()
    (held,) = claim_ready(worker)
    with django_assert_num_queries(4):  # a savepoint, the settle, the count
        settle_one(held, OK)


@pytest.mark.django_db(transaction=True)
def test_parents_that_end_at_once_open_each_child_once() -> None:
    """Forty fans of eight, each parent settled by a session of its own."""
    runs = [
        start_graph({**{str(n): "" for n in range(8)}, "end": " ".join(map(str, range(8)))})
        for _ in range(40)
    ]
    workers = [register_worker(str(n)) for n in range(8)]
    held = [claim_ready(worker, limit=40) for worker in workers]

    def work(number: int) -> None:
        for one in held[number]:
            settle_one(one, OK)

    in_threads(8, work)
    ends = Job.objects.filter(step="end")
    assert [(job.status, job.prerequisites) for job in ends] == [("ready", 0)] * 40
    assert finish() == ["end"] * 40
    assert {reread(run).status for run in runs} == {"succeeded"}


@pytest.mark.django_db(transaction=True)
def test_ends_of_a_run_that_come_at_once_end_it() -> None:
    """Failures among them, so that steps are skipped by one session while others count."""
    graph = {**{str(n): "" for n in range(8)}, "x": "0 1 2 3", "y": "4 5 6 7", "z": "x *y -1"}
    runs = [start_graph(graph) for _ in range(30)]
    workers = [register_worker(str(n)) for n in range(8)]
    held: list[list[Any]] = [claim_ready(worker, limit=30) for worker in workers]

    def work(number: int) -> None:
        for one in held[number]:
            settle_one(one, DEAD if one.id % 5 == 0 else OK)

    in_threads(8, work)
    finish()
    assert not Job.objects.filter(status__in=["waiting", "ready", "running"]).exists()
    assert "running" not in {reread(run).status for run in runs}


def test_dependencies_are_rows() -> None:
    run = start_graph({"a": "", "b": "*a"})
    (row,) = Dependency.objects.all()
    assert (row.workflow_run, row.parent.step, row.child.step) == (run, "a", "b")
    assert (row.when, row.takes) == ("finished", None)
