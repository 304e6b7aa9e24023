"""Chains, groups and chords as runs of workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery import canvas
from celery.canvas import Signature
from celery.utils import uuid

from ....api.steps import Step, step_of
from ....api.workflows.compositions import Composition, chain, group
from ....exceptions import EnqueueError
from ....models import WorkflowRun
from ....models.database import needing_tables
from ..messages.requests import ALL, ONE
from ..messages.task_ids import task_id_of
from .enqueueing import message_of

Before = str | tuple[Any, ...]
"""What the first argument of a task is made of: the result of :data:`ONE` step or of :data:`ALL`,
or the arguments that the whole was called with."""
Results = Callable[[Sequence[str], Any], Any]
"""Makes the result of a member from the ids of all steps, and the result before it."""
Converted = tuple[Step | Composition | None, Before, Results]

OF_THE_WHOLE = {"chord", "group_id", "group_index", "max_retries", "interval", "propagate"}
"""Options by which Celery counts, and which no task gets."""
INSTEAD = {
    "link": "a chain that ends with the task",
    "link_error": "a step with when='failed' of a django_jobs.Workflow",
    "task_id": "the id of its result",
}


def start(app: Any, signature: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> Any:
    """Start a run with the steps of a chain, a group or a chord; return its result, as Celery
    does. The rows are written in the caller's transaction.

    Raises what an enqueue raises, and :class:`EnqueueError` for what no step can have.
    """
    signature = signature.clone()
    given = {key: value for key, value in options.items() if value is not None}
    given.pop("add_to_parent", None)
    kwargs = dict(kwargs or {})
    if isinstance(signature, canvas._chord):
        signature.body = kwargs.pop("body", None) or signature.body  # chord(header)(body)
    laid = Steps(app, kwargs, {**signature.options, **given})
    with needing_tables:
        member, _, result_of = laid.convert(signature, tuple(args or ()))
    if member is None:
        return app.GroupResult(uuid(), [])
    whole = member if isinstance(member, Composition) else chain(member)
    run: WorkflowRun = whole.start()
    ids = list(run.steps.order_by("pk").values_list("pk", flat=True))
    return result_of([task_id_of(job_id) for job_id in ids], None)


class Steps:
    """Converts signatures, in the order in which their steps are laid out.

    ``kwargs`` and ``options`` are those of the whole: the first tasks get them.
    """

    def __init__(self, app: Any, kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self._app = app
        self._kwargs = kwargs
        self._options = _passed_on(options)
        self._count = 0

    def convert(self, signature: Any, before: Before) -> Converted:
        """A signature as a member of a composition, what comes ``before`` the next one, and its
        result."""
        if not isinstance(signature, Signature):
            signature = Signature.from_dict(signature, app=self._app)
        if isinstance(signature, canvas._chain):
            return self._chain(signature.unchain_tasks(), before)
        if isinstance(signature, canvas.group):
            return self._group(signature, before)
        if isinstance(signature, canvas._chord):
            return self._chord(signature, before)
        if isinstance(signature, canvas.chunks):
            return self._group(signature.group(), before)
        return self._task(signature, before)

    def _chain(self, tasks: Sequence[Any], before: Before) -> Converted:
        members, results = [], []
        for task in tasks:
            if isinstance(task, canvas.group):
                task = canvas.maybe_unroll_group(task)
            member, before, result = self.convert(task, before)
            if member is not None:
                members.append(member)
                results.append(result)

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            for one in results:
                parent = one(ids, parent)
            return parent

        return (chain(*members) if members else None), before, result_of

    def _group(self, signature: Any, before: Before) -> Converted:
        tasks = [self.convert(task, before) for task in signature.tasks]
        members = [member for member, _, _ in tasks if member is not None]
        results = [result for member, _, result in tasks if member is not None]

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return self._app.GroupResult(uuid(), [one(ids, None) for one in results], parent=parent)

        if not members:
            return None, before, result_of
        return group(*members), ALL, result_of

    def _chord(self, signature: Any, before: Before) -> Converted:
        header = signature.tasks
        if not isinstance(header, canvas.group):
            header = canvas.group(header, app=self._app)
        member, _, header_of = self._group(header, before)
        body, after, body_of = self.convert(signature.body, ALL if member else ([],))

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return body_of(ids, header_of(ids, parent))

        return chain(*filter(None, (member, body))), after, result_of

    def _task(self, signature: Any, before: Before) -> Converted:
        place = self._count
        self._count += 1
        first = isinstance(before, tuple)
        args, kwargs, options = tuple(signature.args), dict(signature.kwargs), signature.options
        upstream = None
        if not signature.immutable:
            if first:
                args, kwargs = (*before, *args), {**kwargs, **self._kwargs}
            else:
                args, upstream = (None, *args), str(before)
        name = str(signature.task)
        task = self._app.tasks.get(name)
        declared = {} if task is None else task._get_exec_options()
        message = message_of(
            self._app,
            name,
            args,
            kwargs,
            {**declared, **(self._options if first else {}), **_own(options, name)},
            task_type=task,
            upstream=upstream,
        )
        step = step_of(message.job_type, message.payload)

        def result_of(ids: Sequence[str], parent: Any) -> Any:
            return self._app.AsyncResult(ids[place], parent=parent)

        return step, ONE, result_of


def _own(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options of a signature. The ids of steps are those of jobs, so that of a frozen one is
    refused."""
    if options.get("task_id"):
        raise EnqueueError(
            f"{name}: a step of a chain, a group or a chord cannot have a task_id; read the id of "
            "its result"
        )
    return {key: value for key, value in options.items() if key not in ("chord", "group_id")}


def _passed_on(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a chain, a group or a chord that its first tasks get."""
    kept = {key: value for key, value in options.items() if key not in OF_THE_WHOLE}
    for option in ("link", "link_error", "task_id"):
        if options.get(option):
            raise EnqueueError(
                f"{option} of a chain, a group or a chord is not possible; use {INSTEAD[option]}"
            )
    return kept
