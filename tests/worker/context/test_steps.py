"""What a handler sees of the other steps of its run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import OperationalError
from pytest_django import Settings
from pytest_django.fixtures import DjangoAssertNumQueries

from django_jobs import JobType, Snooze
from django_jobs.domain.outcomes import Failed, Succeeded
from django_jobs.domain.workflows import When
from django_jobs.lifecycle.settling import Ending, Settled, settle
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows import results
from django_jobs.lifecycle.workflows.starting import NewRun, start
from django_jobs.models import Job, WorkflowRun, database
from django_jobs.testing import run_jobs
from django_jobs.worker.execution import handler_call
from tests.app.long_jobs import this_run
from tests.factories import claim_ready, declared, failure, register_worker
from tests.worker.attempts import Desk
from tests.workflows import states


class Steps:
    """Steps with their handlers, declared one after the other and started together."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.new: list[NewStep] = []
        self.declarations = ExitStack()
        self.failed: list[Failed] = []

    def add(
        self,
        handler: Callable[..., Any],
        name: str = "",
        *,
        after: Iterable[int] = (),
        when: When = When.SUCCEEDED,
        takes: Mapping[int, list[str]] | None = None,
        **payload: Any,
    ) -> int:
        """Add a step; its place."""
        name = name or f"step{len(self.new)}"
        if handler.__name__ == "<lambda>":
            handler.__name__ = name
        job_type: JobType[..., Any] = self.declarations.enter_context(
            declared(handler, name=f"app.{name}")
        )
        self.new.append(
            NewStep(
                name=name,
                new=job_type.request(),
                payload=json.dumps(payload),
                after=dict.fromkeys(after, when),
                takes=takes or {},
            )
        )
        return len(self.new) - 1

    def run(self) -> WorkflowRun:
        """Start a run, and make all its attempts. A failure is final."""
        run = start(NewRun(name="steps"), self.new)
        self.work()
        return run

    def work(self) -> None:
        """Make the attempts that can be made."""
        worker = register_worker()
        while held := claim_ready(worker):
            for job in held:
                attempt = self.desk.begin(job)
                outcome = handler_call.call(attempt)
                self.desk.reporter.end(attempt, outcome)
                assert not isinstance(outcome, Settled)
                if isinstance(outcome, Failed):
                    self.failed.append(outcome)
                    outcome = failure(final=True)
                settle([Ending(attempt.job, outcome)])  # which may be a step now


@pytest.fixture
def steps(desk: Desk) -> Iterable[Steps]:
    one = Steps(desk)
    with one.declarations:
        yield one


def test_a_step_gets_results_as_arguments(steps: Steps) -> None:
    got: list[Any] = []
    stock = steps.add(lambda: {"left": 3}, "stock")
    price = steps.add(lambda: 2.5, "price", after=[stock])

    def charge(card: str, stock: Any, price: Any = None, again: Any = None) -> None:
        got.append((card, stock, price, again))

    steps.add(
        charge,
        after=[stock, price],
        takes={stock: ["stock", "again"], price: ["price"]},
        card="visa",
    )
    steps.run()
    assert got == [("visa", {"left": 3}, 2.5, {"left": 3})]


def test_an_async_step_gets_results_as_arguments(steps: Steps) -> None:
    got: list[Any] = []
    first = steps.add(lambda: 7, "first")

    async def second(number: int) -> None:
        got.append((number, await this_run().results.aget("first")))
        with pytest.raises(Exception, match=r"write await run.results.aget\(name\)"):
            _ = this_run().results["other"]

    steps.add(second, after=[first], takes={first: ["number"]})
    run = steps.run()
    assert got == [(7, 7)]
    assert run.steps.filter(status="succeeded").count() == 2


def test_the_result_of_a_parent_that_failed_is_none(steps: Steps) -> None:
    got: list[Any] = []

    def fails() -> None:
        raise ValueError

    first = steps.add(fails, "first")

    def second(number: Any) -> None:
        got.append((number, this_run().results["first"]))

    steps.add(second, after=[first], when=When.FINISHED, takes={first: ["number"]})
    steps.run()
    assert got == [(None, None)]


READERS: dict[str, Callable[[], Any]] = {
    "read": lambda: this_run().results["extract"],
    "child by name": lambda: [child.result for child in this_run().children()],
    "child by index": lambda: [child[3] for child in this_run().children()],
    "child from the end": lambda: [child[-1] for child in this_run().children()],
    "child by slice": lambda: [child[2:] for child in this_run().children()],
    "child in a loop": lambda: [result for *_, result in this_run().children()],
    "child as a dict": lambda: [child._asdict() for child in this_run().children()],
    "child by pattern": lambda: [matched(child) for child in this_run().children()],
}


def matched(child: Any) -> Any:
    match child:
        case (_, _, _, result):
            return result
    return None


def test_the_status_of_a_child_whose_result_was_not_stored_is_read(
    steps: Steps, settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_RESULT_BYTES": 1000}
    got: list[Any] = []

    async def join() -> None:
        got.extend([child[:3] async for child in this_run().children()])

    steps.add(lambda: "x" * 2000, "large")
    steps.add(lambda: {1, 2}, "no_json")
    steps.add(join, after=[0, 1])
    steps.run()
    assert [child[1:] for child in got] == [("large", "succeeded"), ("no_json", "succeeded")]


@pytest.mark.parametrize("how", ["taken", *READERS])
def test_a_result_that_was_not_stored_fails_the_step_that_needs_it(
    steps: Steps, how: str, settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "MAX_RESULT_BYTES": 1000}

    def takes(data: Any) -> None:
        raise AssertionError

    steps.add(lambda: "x" * 2000, "extract")
    if how == "taken":
        steps.add(takes, after=[0], takes={0: ["data"]})
    else:
        steps.add(lambda: READERS[how](), after=[0])
    run = steps.run()
    assert states(run) == {"extract": "succeeded", "step1": "dead"}
    sentence = "the result of step 'extract' was not stored: result: "
    (failed,) = steps.failed
    assert failed.final
    assert failed.error.message.startswith(sentence)
    assert failed.error.message.endswith("; return an id or a path from it instead")
    assert Job.objects.get(step="extract").reason.startswith("its result was not stored: ")


def test_a_result_that_looks_like_the_note_is_passed_on(steps: Steps) -> None:
    got: list[Any] = []

    def join(data: Any) -> None:
        got.extend([data, *(child.result for child in this_run().children())])

    steps.add(lambda: {"not_stored": "the last page"}, "extract")
    steps.add(join, after=[0], takes={0: ["data"]})
    steps.run()
    assert got == [{"not_stored": "the last page"}] * 2


def test_a_result_that_the_handler_does_not_take_is_a_wrong_argument(steps: Steps) -> None:
    first = steps.add(lambda: 7, "first")
    steps.add(lambda other=1: other, "second", after=[first], takes={first: ["number"]})
    run = start(NewRun(name="steps"), steps.new)
    worker = register_worker()
    (held,) = claim_ready(worker)
    settle([Ending(held, Succeeded(result="7"))])
    (held,) = claim_ready(worker)
    outcome = steps.desk.make(held)
    assert isinstance(outcome, Failed)
    assert outcome.final
    assert "unexpected keyword argument 'number'" in outcome.error.message
    assert states(run)["second"] == "running"


def test_a_lost_connection_is_no_wrong_argument(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(job: Any) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(handler_call, "taken_results", away)
    steps.add(lambda number: number, "first")
    start(NewRun(name="steps"), steps.new)
    (held,) = claim_ready(register_worker())
    outcome = steps.desk.make(held)
    assert isinstance(outcome, Failed)
    assert not outcome.final


def test_only_a_step_with_open_arguments_reads_results(
    steps: Steps, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    steps.add(lambda number: number, "given", number=1)
    steps.add(lambda number=0: number, "open")
    start(NewRun(name="steps"), steps.new)
    given, still_open = claim_ready(register_worker())
    with django_assert_num_queries(0):
        steps.desk.make(given)
    with django_assert_num_queries(1):
        steps.desk.make(still_open)
    with django_assert_num_queries(0):
        steps.desk.make(still_open._replace(workflow_run_id=None))


def test_results_are_read_once_each_by_name(
    steps: Steps, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    first = steps.add(lambda: [1], "first")
    steps.add(lambda: 2, "second", after=[first])

    def third() -> None:
        found = this_run().results
        with django_assert_num_queries(2):
            assert (found["first"], found["second"], found["first"]) == ([1], 2, [1])
        assert "first" in found
        assert found.get("none") is None
        assert (list(found), len(found)) == (["first", "second"], 2)
        with pytest.raises(KeyError, match="no step 'none'; the steps of the run are first, sec"):
            found["none"]
        with pytest.raises(KeyError, match="'later' has not ended"):
            found["later"]

    last = steps.add(third, "third", after=[first, 1])
    steps.add(lambda: 4, "later", after=[last])
    run = steps.run()
    assert set(states(run).values()) == {"succeeded"}


def test_a_plain_job_has_no_results(desk: Desk) -> None:
    def handler() -> None:
        assert list(this_run().results) == []
        assert list(this_run().children()) == []
        with pytest.raises(KeyError, match="this job is no step of a workflow"):
            _ = this_run().results["first"]

    assert desk.run(handler) == [Succeeded()]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_step_reads_the_fan_out_that_it_joins_in_pages(
    steps: Steps,
    is_async: bool,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    monkeypatch.setattr(results, "PAGE", 2)
    got: list[Any] = []

    def part(number: int) -> int:
        if number == 3:
            raise ValueError
        return number * number

    parts = [steps.add(part, f"part{number}", number=number) for number in range(5)]

    def join() -> None:
        children = this_run().children()
        with django_assert_num_queries(3):
            got.extend(children)
        assert list(children) == got

    async def join_async() -> None:
        got.extend([child async for child in this_run().children()])

    steps.add(join_async if is_async else join, "join", after=parts, when=When.FINISHED)
    run = steps.run()
    ids = Job.objects.filter(workflow_run=run).order_by("id").values_list("id", flat=True)
    assert [child.id for child in got] == list(ids)[:5]
    assert [tuple(child)[1:] for child in got] == [
        ("part0", "succeeded", 0),
        ("part1", "succeeded", 1),
        ("part2", "succeeded", 4),
        ("part3", "dead", None),
        ("part4", "succeeded", 16),
    ]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The lengths of the results that each page has read."""
    read: list[list[int]] = []

    def fetch(sql: str, parameters: Any) -> Any:
        rows = database.fetch(sql, parameters)
        read.append([len(row[3] or "") for row in rows])
        return rows

    monkeypatch.setattr(results, "fetch", fetch)
    monkeypatch.setattr(results, "PAGE_BYTES", 250_000)
    return read


def sized(number: int) -> str | None:
    """100 kB that PostgreSQL cannot compress much, nothing, or more than a page takes."""
    if number == 3:
        return None
    return os.urandom(200_000 if number == 5 else 50_000).hex()


def check_pages(pages: list[list[int]]) -> None:
    assert [page for page in pages if sum(page) > 250_000] == [[400_002]]
    assert 3 < len(pages) < 9


@pytest.mark.parametrize("is_async", [False, True])
def test_a_page_reads_results_within_bytes(
    steps: Steps, is_async: bool, pages: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "PAGE", 4)
    got: list[Any] = []
    parts = [steps.add(sized, f"part{number}", number=number) for number in range(9)]

    def join() -> None:
        got.extend(this_run().children())

    async def join_async() -> None:
        got.extend([child async for child in this_run().children()])

    steps.add(join_async if is_async else join, "join", after=parts)
    steps.run()
    assert [child.step for child in got] == [f"part{number}" for number in range(9)]
    assert [child.result is None for child in got] == [number == 3 for number in range(9)]
    check_pages(pages)


def test_a_page_of_spawned_steps_reads_results_within_bytes(
    desk: Desk, pages: list[list[int]]
) -> None:
    got: list[Any] = []

    def spawns() -> None:
        run = this_run()
        run.spawn(part, [{"number": number} for number in range(5)])
        run.spawn(part, [{"number": number} for number in range(5, 9)], key="more")
        pages.clear()
        got[:] = run.children()
        if any(child.status != "succeeded" for child in got):
            raise Snooze(0)

    with declared(sized, name="app.part") as part, declared(spawns, name="app.spawns") as job_type:
        job_type.enqueue()
        run_jobs(check=True)
    assert [child.step for child in got] == [
        *(f"sized[{number}]" for number in range(5)),
        *(f"more[{number}]" for number in range(4)),
    ]
    check_pages(pages)
