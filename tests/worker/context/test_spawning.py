"""A handler that spawns steps: each child exists once, and what follows waits for all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
from django.db import transaction

from django_jobs import (
    Concurrency,
    EnqueueError,
    JobType,
    LeaseLost,
    QueueFull,
    ResultNotStored,
    Retry,
    RunContext,
    WorkflowError,
)
from django_jobs.domain.outcomes import Failed, Snoozed, Succeeded
from django_jobs.domain.workflows import When
from django_jobs.lifecycle import bulk_insert
from django_jobs.lifecycle.compensating import as_json
from django_jobs.lifecycle.operations.dead_letters import dismiss
from django_jobs.lifecycle.operations.jobs import replay, run_now
from django_jobs.lifecycle.settling import Ending, Settled, settle
from django_jobs.lifecycle.workflows import results, spawning
from django_jobs.lifecycle.workflows.spawning import write_batch
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Dependency, Job, Queue, Receipt, Resource, UniqueKey, WorkflowRun
from django_jobs.testing import run_jobs
from django_jobs.worker.context import steps as context_steps
from django_jobs.worker.execution import handler_call
from tests.app.gate_jobs import refund_payment
from tests.app.jobs import noop
from tests.app.long_jobs import this_run
from tests.factories import (
    claim_ready,
    declared,
    enqueue_and_claim,
    register_worker,
    run_sql,
    settle_one,
)
from tests.worker.attempts import Desk
from tests.worker.context.test_steps import Steps
from tests.workflows import failed_compensations, states, step


def part(number: int) -> int:
    if number < 0:
        raise ValueError
    return number * number


def numbers(count: int) -> Iterator[dict[str, int]]:
    return ({"number": number} for number in range(count))


@pytest.fixture
def parts() -> Iterator[JobType[..., Any]]:
    with declared(part, name="app.part") as job_type:
        yield job_type


@pytest.fixture
def graph(desk: Desk) -> Iterator[Steps]:
    one = Steps(desk)
    with one.declarations:
        yield one


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_steps, "BATCH", 3)
    monkeypatch.setattr(results, "PAGE", 2)


def plain(handler: Any, desk: Desk, then: Any = None) -> None:
    """A plain job of this handler, and all that comes of it."""
    with declared(handler, name="app.spawner") as job_type:
        job_type.enqueue()
        Steps(desk).work()


def test_a_plain_job_gets_a_run_with_its_children(desk: Desk, parts: JobType[..., Any]) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(7))

    plain(spawner, desk)
    run = WorkflowRun.objects.get()
    assert (run.name, run.status, run.ends_left, run.definition) == (
        "app.spawner",
        "succeeded",
        0,
        None,
    )
    assert states(run) == {"spawner": "succeeded"} | {f"part[{n}]": "succeeded" for n in range(7)}
    assert not Dependency.objects.exists()
    assert (run.progress(), str(run.progress())) == ((8, 8), "8 of 8")
    receipt = Receipt.objects.get()
    assert (receipt.key, receipt.answer["count"], receipt.answer["is_done"]) == (
        "spawn:part",
        7,
        True,
    )


def test_children_that_a_full_queue_drops_are_not_counted(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    Queue.objects.filter(name="bulk").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    counted: list[tuple[int, int]] = []

    def spawner() -> None:
        this_run().spawn(parts.using(queue="bulk"), numbers(4))
        live = Job.objects.live().filter(job_type="app.part").count()
        counted.append((live, WorkflowRun.objects.get().ends_left))

    plain(spawner, desk)
    assert counted == [(1, 2)]  # the child, and the spawner


def test_children_that_a_full_gate_refuses_are_not_written(desk: Desk) -> None:
    Resource.objects.create(name="stripe", max_waiting=3)
    refused: list[str] = []

    def spawner() -> None:
        refund = refund_payment.using(queue="bulk")
        this_run().spawn(refund, [{"payment_id": number} for number in range(2)], key="some")
        try:
            this_run().spawn(refund, [{"payment_id": number} for number in range(2)], key="more")
        except QueueFull as full:
            refused.append(str(full))

    plain(spawner, desk)
    assert [text.partition(": ")[2] for text in refused] == [
        "resource 'stripe' has room for 1 of 2 waiting jobs; its max_waiting is 3"
    ]
    assert Job.objects.filter(job_type="app.refund_payment").count() == 2


def test_then_opens_when_all_children_exist_and_succeeded(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    got: list[Any] = []

    def publish(title: str, total: int) -> None:
        got.append((title, total, [child.result for child in this_run().children()]))

    def spawner() -> int:
        this_run().spawn(parts, numbers(7), then=then.step(title="all").taking(total="spawner"))
        (waits,) = Job.objects.filter(step="publish")
        assert (waits.status, waits.prerequisites) == ("waiting", 8)
        assert WorkflowRun.objects.get().ends_left == 1
        assert str(WorkflowRun.objects.get().progress()) == "0 of 9"
        return 7

    with declared(publish, name="app.publish") as then:
        plain(spawner, desk)
    assert got == [("all", 7, [0, 1, 4, 9, 16, 25, 36])]
    assert WorkflowRun.objects.get().status == "succeeded"


@pytest.mark.parametrize(
    ("when", "end"), [("succeeded", "cancelled (failed)"), ("finished", "succeeded")]
)
def test_a_child_that_fails_skips_then_unless_it_waits_for_the_end(
    desk: Desk, parts: JobType[..., Any], when: str, end: str
) -> None:
    def spawner() -> None:
        this_run().spawn(parts, [{"number": 1}, {"number": -1}], noop, when=when)

    plain(spawner, desk)
    run = WorkflowRun.objects.get()
    assert states(run)["noop"] == end
    assert (run.status, run.reason) == ("failed", "part[1] failed")


def test_a_child_of_a_compensation_that_fails_is_a_failed_compensation(
    graph: Steps, parts: JobType[..., Any]
) -> None:
    def undo() -> None:
        this_run().spawn(parts, [{"number": -1}, {"number": 1}])

    graph.add(lambda: None, "a")
    graph.add(lambda: 1 / 0, "last", after=[0])
    graph.add(undo, "undo a")
    *steps, undoing = graph.new
    run = start(NewRun(name="saga", compensations=as_json({"a": undoing})), steps)
    graph.work()
    assert WorkflowRun.objects.get(pk=run.pk).reason == "part[0], last failed"
    assert [one["steps"] for one in failed_compensations(5)] == [["part[0]"]]
    dead = [step(run, name).pk for name in ("part[0]", "last")]
    assert replay(dead, check=lambda job: None).done == dead[:1]
    graph.work()
    assert not dismiss(dead).refused
    assert failed_compensations(5) == []


def test_then_whose_name_gets_too_long_by_its_number_is_refused_before_a_child_is_written(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    def spawner() -> None:
        then = noop.step().named("x" * 200)
        this_run().spawn(parts, numbers(1), then)
        with pytest.raises(WorkflowError, match="then: the name of a step has 202 characters"):
            this_run().spawn(parts, numbers(1), then)

    plain(spawner, desk)
    assert len(states(WorkflowRun.objects.get())) == 3


@pytest.mark.parametrize("keys", [("x", "x"), (None, "part"), ("part-2", None)])
def test_a_key_that_an_earlier_call_had_is_refused(
    desk: Desk, parts: JobType[..., Any], keys: Sequence[str | None]
) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(2), key=keys[0])
        with pytest.raises(EnqueueError, match="has spawned under the key"):
            this_run().spawn(parts, numbers(3), key=keys[1])

    plain(spawner, desk)
    assert len(states(WorkflowRun.objects.get())) == 3


def test_no_payloads_open_then_at_once(desk: Desk, parts: JobType[..., Any]) -> None:
    def spawner() -> None:
        this_run().spawn(parts, [], noop)

    plain(spawner, desk)
    assert states(WorkflowRun.objects.get()) == {"spawner": "succeeded", "noop": "succeeded"}


@pytest.mark.parametrize("then", [None, noop])
@pytest.mark.parametrize("finished", ["", "*"])
def test_what_waits_for_the_spawner_waits_for_what_it_spawned(
    graph: Steps,
    parts: JobType[..., Any],
    then: Any,
    finished: str,
) -> None:
    order: list[str] = []

    def spawner() -> None:
        this_run().spawn(parts, numbers(4), then)
        assert WorkflowRun.objects.get().ends_left == 1

    def merge() -> None:
        order.append("merge")
        waits = Job.objects.exclude(step="merge").exclude(step="report")
        assert set(waits.values_list("status", flat=True)) == {"succeeded"}

    first = graph.add(spawner, "extract")
    middle = graph.add(
        merge, "merge", after=[first], when=When.FINISHED if finished else When.SUCCEEDED
    )
    graph.add(lambda: order.append("report"), "report", after=[middle])
    run = graph.run()
    assert order == ["merge", "report"]
    assert set(states(run).values()) == {"succeeded"}
    assert WorkflowRun.objects.get().status == "succeeded"


def test_a_branch_for_the_failure_of_the_spawner_concerns_it_alone(
    graph: Steps,
    parts: JobType[..., Any],
) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(4))
        assert WorkflowRun.objects.get().ends_left == 5

    first = graph.add(spawner, "extract")
    graph.add(lambda: None, "sorry", after=[first], when=When.FAILED)
    run = graph.run()
    assert states(run)["sorry"] == "cancelled (unneeded)"
    assert WorkflowRun.objects.get().status == "succeeded"


def test_an_attempt_continues_where_the_last_one_stopped(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    read: list[int] = []

    def breaking(after: int) -> Iterator[dict[str, int]]:
        for number in range(8):
            if number == after:
                raise ConnectionError
            read.append(number)
            yield {"number": number}

    def handler() -> None:
        this_run().spawn(parts, breaking(4 if this_run().attempt == 1 else 100), noop)

    def again() -> None:
        this_run().spawn(parts, iter([]), noop)  # done, so nothing is read

    outcomes = desk.run(handler, handler, again)
    assert [type(one) for one in outcomes] == [Failed, Succeeded, Succeeded]
    names = (
        Job.objects.filter(step__startswith="part").order_by("id").values_list("step", "payload")
    )
    assert list(names) == [(f"part[{n}]", {"number": n}) for n in range(8)]
    assert Job.objects.filter(step="noop").count() == 1
    assert Job.objects.get(step="noop").prerequisites == 9
    assert read == [0, 1, 2, 3, *range(8)]


def test_fewer_payloads_than_before_are_refused(desk: Desk, parts: JobType[..., Any]) -> None:
    def first() -> None:
        this_run().spawn(parts, itertools.chain(numbers(4), [{"wrong": 1}]))

    def second() -> None:
        this_run().spawn(parts, numbers(2))

    _, refused = desk.run(first, second)
    assert isinstance(refused, Failed)
    assert "an earlier attempt wrote 3 children, and there are only 2" in refused.error.message


def test_a_batch_of_an_attempt_that_lost_its_lease_is_refused(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    def losing() -> Iterator[dict[str, int]]:
        yield from numbers(4)
        run_sql("UPDATE django_jobs_job SET attempt = attempt + 1 WHERE status = 'running'")
        yield from numbers(4)

    def spawner() -> None:
        this_run().spawn(parts, losing())

    with declared(spawner, name="app.spawner") as job_type:
        held = enqueue_and_claim(job_type)
        with pytest.raises(LeaseLost):
            desk.make(held)
    assert Job.objects.filter(step__startswith="part").count() == 3


def test_a_batch_is_written_once_though_its_answer_was_lost(
    desk: Desk, parts: JobType[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def twice(*arguments: Any, **options: Any) -> Any:
        spawning.write_batch(*arguments, **options)
        return spawning.write_batch(*arguments, **options)

    monkeypatch.setattr(context_steps, "write_batch", twice)

    def spawner() -> None:
        this_run().spawn(parts, numbers(7), noop)

    plain(spawner, desk)
    assert Job.objects.filter(step__startswith="part").count() == 7
    assert set(states(WorkflowRun.objects.get()).values()) == {"succeeded"}


def test_a_handler_spawns_several_times_and_reads_its_children(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    got: list[Any] = []

    def spawner() -> None:
        run = this_run()
        run.spawn(parts, numbers(2), noop)
        run.spawn(parts, numbers(3), noop)
        run.spawn(parts, numbers(1), key="last")
        got.extend(run.children())
        assert WorkflowRun.objects.get().ends_left == 3

    plain(spawner, desk)
    assert [(child.step, child.status) for child in got] == [
        ("part[0]", "ready"),
        ("part[1]", "ready"),
        ("part-2[0]", "ready"),
        ("part-2[1]", "ready"),
        ("part-2[2]", "ready"),
        ("last[0]", "ready"),
    ]
    run = WorkflowRun.objects.get()
    assert {"noop", "noop-2"} < set(states(run))
    assert (run.status, run.ends_left) == ("succeeded", 0)


WAITS: dict[str, Callable[[RunContext], None]] = {
    "it sleeps": lambda run: run.sleep("rest", 3600),
    "it waits for a signal": lambda run: run.wait_for("approval"),
    "it is to be tried again": lambda run: raised(Retry(3600)),
    "it is blocked at its gates": lambda run: run.sleep("rest", 3600),
}


def raised(error: Exception) -> NoReturn:
    raise error


@pytest.mark.parametrize("children", ["pending", "running"])
@pytest.mark.parametrize("options", [{}, {"unique_for": 3600}], ids=["", "unique"])
@pytest.mark.parametrize("is_other", [False, True], ids=["same type", "other type"])
@pytest.mark.parametrize("waits", WAITS)
def test_a_request_that_replaces_a_job_with_children_goes_to_a_new_one(
    desk: Desk,
    parts: JobType[..., Any],
    waits: str,
    is_other: bool,
    options: dict[str, Any],
    children: str,
) -> None:
    joined: list[Any] = []

    def join(title: str) -> None:
        joined.append((title, [child.result for child in this_run().children()]))

    def album(title: str) -> None:
        this_run().spawn(parts, numbers(3), then=joining.step(title=title))
        if title == "first":
            WAITS[waits](this_run())

    def note(title: str) -> None:
        """Another type."""

    gates: dict[str, Any] = {}
    if "gates" in waits:
        gates["concurrency"] = Concurrency("album", limit=2)
    with (
        declared(join, name="app.join") as joining,
        declared(album, name="app.album", **gates) as albums,
        declared(note, name="app.note") as notes,
    ):
        keyed = albums.using(idempotency_key="k", on_duplicate="replace", **options)
        first = keyed.enqueue("first")
        run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE status = 'blocked'")
        attempt = desk.begin(*claim_ready(register_worker()))
        outcome = handler_call.call(attempt)
        assert isinstance(outcome, Snoozed | Failed)
        desk.reporter.end(attempt, outcome)
        settle([Ending(attempt.job, outcome)])
        if gates:
            assert run_now([first.pk]).done == [first.pk]
            assert Job.objects.get(pk=first.pk).status == "blocked"
        held = claim_ready(register_worker()) if children == "running" else []

        other = notes.using(idempotency_key="k", on_duplicate="replace", **options)
        second = (other if is_other else keyed).enqueue("second")
        assert (second.pk == first.pk, second.deduplicated) == (False, False)
        old = Job.objects.get(pk=first.pk)
        assert (old.status, old.awaits, old.payload) == ("cancelled", None, {"title": "first"})
        assert old.reason == "replaced: another request has its idempotency key"
        assert old.workflow_run is not None
        assert states(old.workflow_run)["join"] == "cancelled (failed)"
        assert [row.job_id for row in UniqueKey.objects.all()] == [second.pk] * len(options)
        assert (other if is_other else keyed).enqueue("second").pk == second.pk

        run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE status = 'blocked'")
        settle([Ending(child, Succeeded()) for child in held])
        Steps(desk).work()
    assert joined == ([] if is_other else [("second", [0, 1, 4])])
    assert not Job.objects.live().exists()
    assert {run.status for run in WorkflowRun.objects.exclude(pk=old.workflow_run_id)} <= {
        "succeeded"
    }
    run = WorkflowRun.objects.get(pk=old.workflow_run_id)
    assert (run.status, run.ends_left) == ("cancelled", 0)
    assert {step.status for step in run.steps.filter(job_type="app.part")} == {"succeeded"}


def test_a_running_job_with_children_gives_its_key_and_ends_as_it_would_have(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    def spawner(title: str) -> None:
        this_run().spawn(parts, numbers(2), noop)
        if title == "first":
            keyed.enqueue("second")

    with declared(spawner, name="app.spawner") as job_type:
        keyed = job_type.using(idempotency_key="k", on_duplicate="replace")
        keyed.enqueue("first")
        Steps(desk).work()
    assert {job.status for job in Job.objects.all()} == {"succeeded"}
    assert Job.objects.filter(job_type="app.noop").count() == 2


def test_a_job_with_children_is_not_replaced_by_a_request_that_is_rolled_back(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(2), noop)
        this_run().sleep("rest", 3600)

    with declared(spawner, name="app.spawner") as job_type:
        keyed = job_type.using(idempotency_key="k", on_duplicate="replace")
        first = keyed.enqueue()
        Steps(desk).work()
        with transaction.atomic():
            assert keyed.enqueue().pk != first.pk
            transaction.set_rollback(True)
    assert Job.objects.get(pk=first.pk).status == "scheduled"
    assert step(WorkflowRun.objects.get(), "noop").status == "waiting"


def test_a_handler_reads_no_note_from_what_it_spawned(desk: Desk, parts: JobType[..., Any]) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(1))
        (held,) = claim_ready(register_worker())
        settle_one(held, Succeeded(result='{"not_stored": "why"}', not_stored="why"))
        (child,) = this_run().children()
        assert child.status == "succeeded"
        with pytest.raises(ResultNotStored, match=r"step 'part\[0\]' was not stored: why"):
            _ = child.result

    plain(spawner, desk)
    assert step(WorkflowRun.objects.get(), "spawner").status == "succeeded"


def test_what_is_spawned_by_a_child_is_waited_for_as_well(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    got: list[Any] = []

    def tile(number: int) -> None:
        this_run().spawn(parts, numbers(number))

    def join() -> None:
        got.extend(this_run().children())

    def spawner() -> None:
        this_run().spawn(tiles, numbers(3), joined)

    with declared(tile, name="app.tile") as tiles, declared(join, name="app.join") as joined:
        plain(spawner, desk)
    assert sorted((child.step, child.result) for child in got) == [
        ("part[0]", 0),
        ("part[0]", 0),
        ("part[1]", 1),
    ]
    assert WorkflowRun.objects.get().status == "succeeded"


def test_an_async_handler_spawns(desk: Desk, parts: JobType[..., Any]) -> None:
    async def spawner() -> None:
        await this_run().aspawn(parts, numbers(4), noop)

    plain(spawner, desk)
    run = WorkflowRun.objects.get()
    assert (run.status, len(states(run))) == ("succeeded", 6)


def test_children_have_the_options_of_the_request(desk: Desk, parts: JobType[..., Any]) -> None:
    request = parts.using(tenant="acme", priority=7, concurrency_key="one")

    def spawner() -> None:
        this_run().spawn(request, numbers(2))

    desk.run(spawner)
    rows = Job.objects.filter(step__startswith="part")
    assert set(rows.values_list("tenant", "priority", "concurrency_key", "status")) == {
        ("acme", 7, "one", "blocked")
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"when": "failed"}, "when is 'succeeded' or 'finished'"),
        ({"key": ""}, "a key is text of 1 to 200"),
        ({"key": "k" * 151}, "a key has at most 150"),
        ({"then": "noop"}, "then is a job type or one of its steps"),
        ({"then": noop.using(idempotency_key="k")}, "a step has no idempotency_key"),
        ({"then": noop.step().taking}, "then is a job type"),
    ],
)
def test_a_wrong_call_is_refused(
    desk: Desk, parts: JobType[..., Any], options: dict[str, Any], message: str
) -> None:
    def spawner() -> None:
        this_run().spawn(parts, numbers(2), **options)

    (refused,) = desk.run(spawner)
    assert isinstance(refused, Failed)
    assert message in refused.error.message
    assert not WorkflowRun.objects.exists()


def test_a_spawn_in_a_transaction_is_refused(desk: Desk, parts: JobType[..., Any]) -> None:
    def spawner() -> None:
        with transaction.atomic(), pytest.raises(EnqueueError, match=r"outside of transaction.at"):
            this_run().spawn(parts, numbers(2))

    def in_one() -> None:
        with pytest.raises(EnqueueError, match="an exactly_once handler is one transaction"):
            this_run().spawn(parts, numbers(2))

    assert desk.run(spawner) == [Succeeded()]
    (settled,) = desk.run(in_one, delivery="exactly_once")
    assert isinstance(settled, Settled)
    assert settled.decision is not None
    assert settled.decision.status == "succeeded"


def test_a_job_whose_cancel_was_requested_spawns_no_more(
    desk: Desk, parts: JobType[..., Any]
) -> None:
    def spawner() -> None:
        run_sql("UPDATE django_jobs_job SET cancel_requested_at = now() WHERE status = 'running'")
        this_run().spawn(parts, numbers(2))

    desk.run(spawner)
    assert not Job.objects.filter(step__startswith="part").exists()


def test_a_failure_after_a_first_batch_whose_answer_was_lost_ends_the_run(
    desk: Desk, parts: JobType[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt knows its run, whatever it heard of the batch."""

    def lost(*arguments: Any, **options: Any) -> Any:
        spawning.write_batch(*arguments, **options)
        raise ConnectionError

    monkeypatch.setattr(context_steps, "write_batch", lost)

    def spawner() -> None:
        this_run().spawn(parts, numbers(2), noop)

    with declared(spawner, name="app.spawner") as job_type:
        job_type.enqueue()
        Steps(desk).work()
    run = WorkflowRun.objects.get()
    assert states(run)["noop"] == "cancelled (failed)"
    assert (run.status, run.reason) == ("failed", "spawner failed")


@pytest.mark.parametrize("number", [8, 9])
def test_large_payloads_are_written_in_several_batches(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(bulk_insert, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(bulk_insert, "FIRST", 2)
    monkeypatch.setattr(context_steps, "BATCH", 5_000)
    batches: list[int] = []

    def noted(job: Any, new: Any, count: int, batch: Any, *, is_last: bool) -> Any:
        batches.append(len(batch))
        return write_batch(job, new, count, batch, is_last=is_last)

    monkeypatch.setattr(context_steps, "write_batch", noted)

    def large(text: str) -> None: ...

    def spawns() -> None:
        this_run().spawn(large_type, [{"text": "x" * 3_000}] * number, then=noop)

    with (
        declared(large, name="app.large") as large_type,
        declared(spawns, name="app.spawns") as job_type,
    ):
        job_type.enqueue()
        run_jobs(check=True)
    assert sum(batches) == number
    assert batches[:2] == [4, 4]
    assert WorkflowRun.objects.get().status == "succeeded"
    assert Job.objects.filter(job_type="app.noop", status="succeeded").count() == 1
