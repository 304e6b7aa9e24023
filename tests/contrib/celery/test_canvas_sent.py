"""Each step of a canvas is sent by ``apply_async`` of its task, and knows its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import Task, chain, chord, group, signals
from celery.canvas import Signature
from celery.exceptions import Reject
from celery.result import EagerResult
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs import EnqueueError, registry
from django_jobs.api.workflows.compositions import group as group_of_steps
from django_jobs.models import Job
from tests.contrib.celery.project import tasks
from tests.contrib.celery.running import run_all
from tests.patience import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


class Tenant(Task):  # type: ignore[misc]
    """A base class that adds a header, as packages for tenants do."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "tenant": "t1"}
        return super().apply_async(*args, **options)


class Taken(Exception):
    """What holds the lock has been sent before."""


class Once(Task):  # type: ignore[misc]
    """A base class that sends one of several with the same first argument, as celery-once does."""

    held: list[Any]
    graceful = False

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        tasks.tick.delay("about to lock")
        if args in self.held:
            if self.graceful:
                return EagerResult(None, None, "REJECTED")
            raise Taken
        self.held.append(args)
        return super().apply_async(args, kwargs, **options)


@pytest.fixture
def see(declare: Callable[..., Any]) -> Any:
    def see(self: Any, before: Any = None, tag: str = "") -> list[Any]:
        request = self.request
        return [tag, request.get("tenant"), request.delivery_info["priority"]]

    return declare(see, bind=True, base=Tenant)


@pytest.fixture(params=[False, True])
def once(request: Any, declare: Callable[..., Any]) -> Any:
    def once(key: int, tag: str = "") -> str:
        return tag

    task = declare(once, base=Once)
    task.held, task.graceful = [], request.param
    return task


def ran() -> list[str]:
    run_all()
    jobs = Job.objects.exclude(job_type=tasks.tick.name).order_by("pk")
    assert not jobs.exclude(status="succeeded").exists()
    return [job.payload.get("tag", job.job_type) for job in jobs]


SHAPES: dict[str, Callable[[Any], Signature]] = {
    "chain": lambda see: chain(see.s(), see.s(), see.si()),
    "group": lambda see: group(see.s(), see.s()),
    "chord": lambda see: chord([see.s(), see.s()], see.s()),
    "chord with a chain": lambda see: chord([see.s() | see.s()], chain(see.si(), see.s())),
    "nested": lambda see: chain(see.s(), group(see.s(), chain(see.s(), see.s())), see.s()),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_apply_async_of_a_base_class_is_called_for_each_step(shape: str, see: Any) -> None:
    SHAPES[shape](see).apply_async()
    run_all()
    assert {job.result[1] for job in Job.objects.all()} == {"t1"}


def test_a_lock_of_a_base_class_holds_in_a_group(once: Any) -> None:
    sent = group(once.s(1, tag="a"), once.s(1, tag="b"), once.s(2, tag="c"))
    once.apply_async((0,), {"tag": "before"})
    if once.graceful:
        assert len(sent.delay()) == 3
    else:
        with pytest.raises(Taken):
            sent.delay()
    assert ran() == ["before", "a", *(["c"] if once.graceful else [])]
    assert Job.objects.filter(job_type=tasks.tick.name).count() == (4 if once.graceful else 3)


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda once: chain(once.si(1, tag="a"), once.si(1, tag="b"), once.si(2, tag="c")), ["a"]),
        (lambda once: chord([once.si(1, tag="a"), once.si(1, tag="b")], once.si(2)), ["a"]),
        (
            lambda once: chain(
                once.si(1, tag="a"), group(once.si(2, tag="b"), once.si(1)), once.si(3)
            ),
            ["a", "b"],
        ),
        (
            lambda once: chain(once.si(1, tag="a"), chord([once.si(2, tag="b")], once.si(1))),
            ["a", "b"],
        ),
    ],
)
def test_what_comes_after_a_step_that_was_not_sent_is_not_sent(
    make: Any, left: list[str], once: Any
) -> None:
    if once.graceful:
        make(once).delay()
    else:
        with pytest.raises(Taken):
            make(once).delay()
    assert ran() == left


def test_nothing_is_sent_if_the_first_is_not(once: Any) -> None:
    once.held.append((1,))
    once.graceful = True
    result = chain(once.s(1), once.si(2)).delay()
    assert (ran(), result.state) == ([], "PENDING")


def test_a_base_class_cannot_read_the_id_of_a_step(declare: Callable[..., Any]) -> None:
    class Recorded(Task):  # type: ignore[misc]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            result = super().apply_async(*args, **options)
            return result if result.id else None

    def recorded() -> None: ...

    task = declare(recorded, base=Recorded)
    task.delay()
    with pytest.raises(EnqueueError, match=r"project\.recorded: .* has no id yet"):
        group(task.s(), task.s()).delay()
    assert Job.objects.count() == 1


def test_options_of_a_chord_reach_its_body(see: Any) -> None:
    body = see.s(tag="body").set(queue="emails", priority=1)
    chord([see.si(tag="a")], body).apply_async(
        queue="bulk", priority=4, headers={"h": 1}, countdown=60
    )
    header, body = Job.objects.order_by("pk")
    for job in (header, body):
        assert (job.queue, job.priority, job.headers["h"]) == ("bulk", 4, 1)
    assert header.status == "scheduled"
    run_all()
    assert Job.objects.get(pk=body.pk).result == ["body", "t1", 4]


PLACES: dict[str, tuple[Callable[[Any], Signature], dict[str, tuple[Any, ...]]]] = {
    # root, parent, whether it has a group, its index, whether it is in a chord's header
    "chain": (
        lambda see: chain(see.s("a"), see.si("b"), see.si("c")),
        {
            "a": ("a", None, False, None, False),
            "b": ("a", "a", False, None, False),
            "c": ("a", "b", False, None, False),
        },
    ),
    "group": (
        lambda see: group(see.s("a"), see.s("b")),
        {"a": ("a", None, True, 0, False), "b": ("b", None, True, 1, False)},
    ),
    "chord": (
        lambda see: chord([see.s("a"), see.s("b")], see.si("body")),
        {
            "a": ("a", None, True, 0, True),
            "b": ("b", None, True, 1, True),
            "body": ("b", "b", True, None, False),
        },
    ),
    "chain of a group": (
        lambda see: chain(see.s("a"), group(see.si("g"), see.si("h")), see.si("end"), see.si("z")),
        {
            "a": ("a", None, False, None, False),
            "g": ("a", "a", True, 0, True),
            "h": ("a", "a", True, 1, True),
            "end": ("a", "h", True, None, False),
            "z": ("a", "end", False, None, False),
        },
    ),
    "chord of chains": (
        lambda see: chord([see.s("b"), chain(see.s("a"), see.si("a2"))], see.si("body")),
        {
            "b": ("b", None, True, 0, True),
            "a": ("a", None, False, None, False),
            "a2": ("a", "a", True, 1, True),
            "body": ("a", "a2", True, None, False),
        },
    ),
}


@pytest.mark.parametrize("shape", PLACES)
@pytest.mark.parametrize("by_a_task", [False, True])
def test_a_step_knows_its_place(shape: str, by_a_task: bool, declare: Callable[..., Any]) -> None:
    seen: dict[str, Any] = {}

    def where(self: Any, tag: str) -> None:
        seen[tag] = self.request

    def sender(self: Any) -> None:
        seen["sender"] = self.request
        make(task).delay()

    make, places = PLACES[shape]
    task = declare(where, bind=True)
    if by_a_task:
        declare(sender, bind=True).delay()
    else:
        make(task).delay()
    run_all()
    ids = {seen[tag].id: tag for tag in seen} | {None: "sender" if by_a_task else None}
    for tag, (root, parent, is_grouped, index, body) in places.items():
        request = seen[tag]
        assert ids[request.root_id] == ("sender" if by_a_task else root), tag
        assert ids[request.parent_id] == (ids[None] if parent is None else parent), tag
        assert (request.group is not None, request.group_index) == (is_grouped, index), tag
        assert (request.chord is not None) == body, tag
        assert request.chain is None
    assert len({seen[tag].group for tag in places if places[tag][2]}) <= 1


def test_the_result_of_a_group_has_the_id_that_its_tasks_see(see: Any) -> None:
    result = group(see.s(), see.s()).delay()
    assert {job.headers["celery"]["group"] for job in Job.objects.all()} == {result.id}


def test_signals_are_sent_for_each_step(see: Any) -> None:
    heard: list[tuple[str, Any]] = []

    def publish(sender: str, headers: dict[str, Any], body: Any, **_: Any) -> None:
        heard.append(("before", headers["argsrepr"]))
        body[1]["tag"] = "changed"

    def published(sender: str, headers: dict[str, Any], **_: Any) -> None:
        heard.append(("after", headers["id"]))

    signals.before_task_publish.connect(publish)
    signals.after_task_publish.connect(published)
    try:
        result = chain(see.si(1), see.si(2)).delay()
    finally:
        signals.before_task_publish.disconnect(publish)
        signals.after_task_publish.disconnect(published)
    assert heard == [
        *(("before", "(1,)"), ("before", "(2,)")),
        *(("after", result.parent.id), ("after", result.id)),
    ]
    assert ran() == ["changed", "changed"]


def test_a_group_costs_as_many_statements_as_a_native_one() -> None:
    def statements(call: Callable[[], Any]) -> int:
        with CaptureQueriesContext(connection) as asked:
            call()
        return len(asked)

    add = registry.get(tasks.add.name)
    celery, native = (
        lambda: group(tasks.add.s(n) for n in range(1000)).delay(),
        lambda: group_of_steps(add.steps([{"x": n} for n in range(1000)])).start(),
    )
    for call in (native, celery):
        call()
    assert statements(celery) <= 1.5 * statements(native)


def test_a_task_that_is_rejected_ends_what_comes_after_it(declare: Callable[..., Any]) -> None:
    def reject() -> None:
        raise Reject("no")

    result = chain(declare(reject).si(), tasks.add.si(1)).delay()
    run_all()
    with pytest.raises(Exception, match="no"):
        result.parent.get(timeout=PATIENCE)


def test_a_signature_can_be_sent_again_in_another_place(see: Any) -> None:
    step = see.s(tag="a").set(priority=3)
    step.freeze(group_id="g", chord=see.s(tag="b"), group_index=2)
    before = dict(step.options)
    del step.options["task_id"], before["task_id"]
    chain(step, step).delay()
    group(step, step).delay()
    assert dict(step.options) == before
    run_all()
    first, second, *grouped = Job.objects.order_by("pk")
    assert "group" not in first.headers.get("celery", {})
    assert "group" not in second.headers["celery"]
    assert [job.headers["celery"]["group_index"] for job in grouped] == [0, 1]


def test_groups_in_a_group_are_one_as_in_celery(see: Any) -> None:
    nested = group(see.s(), group(see.s(), group([see.s()])), chain(see.s(), see.s()))
    result = nested.delay()
    assert len(result) == 4
    run_all()
    marks = [job.headers.get("celery", {}) for job in Job.objects.order_by("pk")]
    assert [mark.get("group_index") for mark in marks] == [0, 1, 2, None, 3]
    assert {mark["group"] for mark in marks if "group" in mark} == {result.id}


def test_the_body_of_a_chord_in_a_group_is_a_member_of_it(see: Any) -> None:
    result = group(chord([see.si()], see.si()), see.si()).delay()
    header, body, other = (job.headers["celery"]["group"] for job in Job.objects.order_by("pk"))
    assert header != body
    assert body == other == result.id


def test_a_lock_by_a_result_that_is_not_there_yet_holds_back_no_other(once: Any) -> None:
    once.graceful = False
    for _ in range(2):
        chain(tasks.add.si(1, 1), once.s(tag="a"), once.s(tag="b")).delay()
    assert ran().count("a") == ran().count("b") == 2
    assert {job.payload["key"] for job in Job.objects.filter(job_type=once.name)} == {None}


@pytest.mark.parametrize(
    ("changed", "got"),
    [
        (lambda args: args, [2, 0]),
        (lambda args: ["own", *args[1:]], ["own", 0]),
        (lambda args: [*args, 5], [2, 5]),
        (lambda args: [5, *args], None),
        (lambda args: [*args, *args], None),
    ],
)
def test_a_base_class_may_change_arguments(
    changed: Any, got: Any, declare: Callable[..., Any]
) -> None:
    class Changing(Task):  # type: ignore[misc]
        def apply_async(self, args: Any = None, *more: Any, **options: Any) -> Any:
            return super().apply_async(changed(args), *more, **options)

    def changing(first: Any, second: int = 0) -> list[Any]:
        return [first, second]

    sent = chain(tasks.add.si(1, 1), declare(changing, base=Changing).s())
    if got is None:
        with pytest.raises(EnqueueError, match="another place than the first"):
            sent.delay()
    else:
        result = sent.delay()
        run_all()
        assert result.get(timeout=PATIENCE) == got


@pytest.mark.parametrize(
    "made, named",
    [
        (lambda: group([tasks.add.s(1), tasks.add]), "<@task: .*add of .*>"),
        (lambda: chord([tasks.add.s(1)], tasks.total), "<@task: .*total of .*>"),
        (lambda: chord([tasks.add.s(1)], 5), "5"),
        (lambda: chord([1, 2], tasks.total.s()), "1"),
        (lambda: group([tasks.add.s(1), {}]), "None"),
    ],
)
def test_what_is_no_signature_is_named(made: Callable[[], Any], named: str) -> None:
    with pytest.raises(EnqueueError, match=f"^{named} is no signature of a task; write"):
        made().delay()
    assert not Job.objects.exists()
