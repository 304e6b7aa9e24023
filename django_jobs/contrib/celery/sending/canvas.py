"""Chains, groups and chords as runs of workflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from celery import canvas, signals
from celery.canvas import Signature
from celery.utils import uuid

from ....api.steps import Step, step_of
from ....api.workflows.compositions import Composition, chain, group
from ....exceptions import EnqueueError, JobsError
from ....models import WorkflowRun
from ....models.database import DATABASE_ERRORS, needing_tables
from ..messages.options import ALL, ONE, task_id_of
from .enqueueing import Collected, Message, collecting, published


class Before(NamedTuple):
    """What comes before a step: ``gives`` its first argument, which is the result of :data:`ONE`
    step or of :data:`ALL`, or the arguments that the whole was called with; ``root`` and ``parent``
    are the places of those that its request names."""

    gives: str | tuple[Any, ...]
    root: int | None = None
    parent: int | None = None


Results = Callable[[Sequence[str], Any], Any]
"""Makes the result of a member from the ids of all steps, and the result before it."""
Converted = tuple[Step | Composition | None, Before, Results]

OF_THE_WHOLE = {"max_retries", "interval", "propagate", "add_to_parent", "route_name"}
"""Options by which Celery counts and routes, and which no task gets."""
OF_A_MEMBER = {"group_id", "group_index", "chord"}
"""Options that the last step of a member of a group has."""
OF_A_HEADER = {"countdown", "eta", "parent_id"}
"""Options of a chord that its body does not get."""
INSTEAD = {
    "link": "a chain that ends with the task",
    "link_error": "a step with when='failed' of a django_jobs.Workflow",
    "task_id": "the id of its result",
}


def start(app: Any, signature: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Any:
    """Start a run with the steps of a chain, a group or a chord; return its result, as Celery
    does. The rows are written in the caller's transaction.

    ``apply_async`` of each task is called first. If one raises, the steps before it are started, as
    Celery would have sent them, and it is raised. Raises what an enqueue raises, and
    :class:`EnqueueError` for what no step can have; then nothing is started.
    """
    signature = signature.clone()
    kwargs = dict(kwargs or {})
    if isinstance(signature, canvas._chord):
        signature.body = kwargs.pop("body", None) or signature.body  # chord(header)(body)
    laid = Steps(app, kwargs)
    with needing_tables:
        member, _, result_of = laid.convert(signature, Before(tuple(args or ())), options)
    ids: list[str] = []
    if member is not None:
        whole = member if isinstance(member, Composition) else chain(member)
        run: WorkflowRun = whole.start()
        steps = run.steps.order_by("pk").values_list("pk", flat=True)
        ids = [task_id_of(job_id) for job_id in steps]
        if signals.after_task_publish.receivers:
            for task_id, message in zip(ids, laid.messages, strict=True):
                published(message, task_id)
    if laid.raised is not None:
        raise laid.raised
    result = result_of(ids, None)
    return app.GroupResult(uuid(), []) if result is None else result


class Steps:
    """Converts signatures, in the order in which their steps are laid out.

    ``kwargs`` are those of the whole: the first tasks get them.
    """

    def __init__(self, app: Any, kwargs: Mapping[str, Any]) -> None:
        self._app = app
        self._kwargs = kwargs
        self._is_cut = False
        self.messages: list[Message] = []
        self.raised: Exception | None = None

    def convert(self, signature: Any, before: Before, given: Mapping[str, Any]) -> Converted:
        """A signature with the options that are ``given`` to it, as a member of a composition; what
        comes before the next one, and its result."""
        signature = _signature_of(signature, self._app)
        if isinstance(signature, canvas._chain):
            options = _passed_on(signature, given)
            return self._chain(signature.unchain_tasks(), before, options)
        if isinstance(signature, canvas.group):
            return self._group(signature, before, _passed_on(signature, given), uuid())
        if isinstance(signature, canvas._chord):
            return self._chord(signature, before, _passed_on(signature, given))
        if isinstance(signature, canvas.chunks):
            return self._group(signature.group(), before, _passed_on(signature, given), uuid())
        return self._task(signature, before, given)

    def _chain(self, tasks: Sequence[Any], before: Before, given: Mapping[str, Any]) -> Converted:
        members: list[Any] = []
        results: list[Results] = []
        of_first = _without(OF_A_MEMBER, given)
        tasks = self._with_chords(tasks)
        for task in tasks:
            if self._is_cut:  # what comes after it is never sent
                results.append(lambda ids, parent: self._app.AsyncResult(uuid(), parent=parent))
                break
            is_last = task is tasks[-1]
            of_last = {key: given[key] for key in OF_A_MEMBER & given.keys() if is_last}
            member, before, result = self.convert(task, before, of_first | of_last)
            if member is not None:
                members.append(member)
                of_first = {}
            if member is not None or self._is_cut:
                results.append(result)

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            for one in results:
                parent = one(ids, parent)
            return parent

        return (chain(*members) if members else None), before, result_of

    def _with_chords(self, tasks: Sequence[Any]) -> list[Any]:
        """The tasks of a chain, in which a group and the task after it are a chord."""
        merged: list[Any] = []
        for task in tasks:
            if isinstance(task, canvas.group):
                task = canvas.maybe_unroll_group(task)
            body = task.body if isinstance(task, canvas._chord) else None
            if isinstance(body, canvas._chain) and body.tasks:
                task.body, *rest = body.unchain_tasks()
                merged += [task, *rest]
                continue
            if merged and isinstance(merged[-1], canvas.group) and merged[-1].tasks:
                task = canvas.chord(merged.pop(), task, app=self._app)
            merged.append(task)
        return merged

    def _group(
        self,
        signature: Any,
        before: Before,
        given: Mapping[str, Any],
        group_id: str,
        body: Any = None,
    ) -> Converted:
        members, results, was_cut, last = [], [], False, before
        for index, task in enumerate(_of_groups(signature.tasks)):
            marks = {"group_id": group_id, "group_index": index, "chord": body}
            member, last, result = self.convert(task, before, {**given, **marks})
            was_cut |= self._is_cut
            self._is_cut = self.raised is not None
            if member is not None:
                members.append(member)
            if member is not None or was_cut:
                results.append(result)
            if self._is_cut:
                break
        self._is_cut = was_cut

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return self._app.GroupResult(
                group_id, [one(ids, None) for one in results], parent=parent
            )

        if not members:
            return None, before, result_of
        return group(*members), last._replace(gives=ALL), result_of

    def _chord(self, signature: Any, before: Before, given: Mapping[str, Any]) -> Converted:
        header, body_given = signature.tasks, _signature_of(signature.body, self._app)
        if not isinstance(header, canvas.group):
            header = canvas.group(header, app=self._app)
        of_tasks, group_id = _without(OF_A_MEMBER, given), uuid()
        member, after, header_of = self._group(
            header, before, _passed_on(header, of_tasks), group_id, body_given
        )
        if self._is_cut:
            return member, after, header_of
        of_body = _without(OF_A_HEADER, {"group_id": group_id, **given})
        body, after, body_of = self.convert(
            body_given, after if member else before._replace(gives=([],)), of_body
        )

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return body_of(ids, header_of(ids, parent))

        return chain(*filter(None, (member, body))), after, result_of

    def _task(self, signature: Any, before: Before, given: Mapping[str, Any]) -> Converted:
        place, is_first = len(self.messages), isinstance(before.gives, tuple)
        if frozen := OF_A_MEMBER & signature.options.keys():  # of an earlier call
            signature = signature.clone()
            signature["options"] = _without(frozen, signature.options)
        upstream = None if is_first or signature.immutable else str(before.gives)
        step = Collected(
            str(signature.task), upstream, None if before.parent is None else before[1:]
        )
        token, result = collecting.set(step), None
        try:
            args, kwargs = (before.gives, self._kwargs) if is_first else ((step.result,), {})
            result = signature.apply_async(args, kwargs, **given)
        except (JobsError, *DATABASE_ERRORS):
            raise
        except Exception as error:  # of a base class, or arguments that the task does not take
            self.raised = error
        finally:
            collecting.reset(token)
        if (message := step.message) is None:  # the base class has not sent it
            self._is_cut = True
            return None, before, lambda ids, parent: result
        self.messages.append(message)
        root = place if before.root is None else before.root

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return self._app.AsyncResult(ids[place], parent=parent)

        return step_of(message.job_type, message.payload), Before(ONE, root, place), result_of


def _signature_of(given: Any, app: Any = None) -> Signature:
    """A signature, or a dict of one. Raises :class:`EnqueueError` for anything else, such as the
    task itself."""
    if isinstance(given, Mapping) and isinstance(given.get("task"), str):
        return given if isinstance(given, Signature) else Signature.from_dict(given, app=app)
    shown = repr(given.get("task") if isinstance(given, Mapping) else given)
    raise EnqueueError(f"{shown} is no signature of a task; write the_task.s()")


def _of_groups(tasks: Iterable[Any]) -> Iterator[Any]:
    """The tasks of a group, with those of groups in it, which Celery takes apart."""
    for task in tasks:
        signature = _signature_of(task)
        if isinstance(signature, canvas.group):
            yield from _of_groups(signature.tasks)
        else:
            yield task


def _passed_on(signature: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a canvas that its tasks get: those ``given`` to it prevail over its own."""
    options = {**_without(OF_A_MEMBER, signature.options), **given}
    for option, instead in INSTEAD.items():
        if options.pop(option, None):
            raise EnqueueError(
                f"{option} of a chain, a group or a chord is not possible; use {instead}"
            )
    return {
        key: value for key, value in _without(OF_THE_WHOLE, options).items() if value is not None
    }


def _without(names: Set[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in names}
