"""A version of a workflow: declares its steps, and starts its runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from ... import registry
from ...domain.graph import Document, StepKind
from ...domain.numbers import LONGEST_AGE, Duration, as_seconds, is_whole
from ...domain.options import USING_OPTIONS, check_known
from ...domain.workflows import END, SLEEP, WAIT, If, When
from ...exceptions import WorkflowError
from ..gating import defaults_of, name_rule, tenant_of
from ..job_type import JobType
from ..steps import (
    RESULT,
    Step,
    accepts,
    check_arguments,
    check_options_of_step,
    check_step_name,
    check_templates,
    compensation_name,
    field_types,
)
from ..validation import LONGEST_NAME
from .definitions import definition_of
from .edges import After, Condition, DeclaredSteps, Reference
from .new_runs import StartArguments, chosen_for
from .startable import Startable, register_start_job

OPTIONS_OF_STEP = ("after", "when", "payload", "takes", "compensate", "optional")
HIGHEST_VERSION = 2**31 - 1


class Workflow(Startable):
    """A graph of steps with a name and a version. Declared in ``jobs.py``, like a job type.

    Several versions may be declared; the highest one is started by name and by schedules. A run
    keeps the version with which it started. Raise the version when you change the steps.

    A job type of the same name starts a run, for schedules and :func:`enqueue`. ``schedulable``:
    schedules created in the admin may use it. ``tenant`` is that of all steps, as ``@job`` takes
    it: a text with arguments of :meth:`start` in braces, or a function of them.

    With ``on_failure="cancel"`` the first dead step cancels those that have not begun and asks the
    running ones to stop; then the run fails.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        schedulable: bool = False,
        tenant: str | Callable[[dict[str, Any]], str | None] | None = None,
        on_failure: Literal["continue", "cancel"] = "continue",
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST_NAME:
            raise WorkflowError(
                f"the name of a workflow is text of 1 to {LONGEST_NAME} characters, not {name!r}"
            )
        if not (is_whole(version) and 1 <= version <= HIGHEST_VERSION):
            raise WorkflowError(f"workflow {name}: version is a whole number from 1")
        if on_failure not in ("continue", "cancel"):
            raise WorkflowError(
                f"workflow {name}: on_failure is 'continue' or 'cancel', not {on_failure!r}"
            )
        self._name = name
        self.version = version
        self._on_failure = on_failure
        # Not in the graph by default, so that stored fingerprints stay.
        options = {} if on_failure == "continue" else {"on_failure": on_failure}
        self._steps = DeclaredSteps(str(self), options)
        self._start_arguments = StartArguments()
        self._schedulable = schedulable
        self._tenant_rule = name_rule(tenant, "tenant", str(self))
        self._module = sys._getframe(1).f_globals.get("__name__", "__main__")
        registry.register_workflow(self)
        register_start_job(self)

    def __repr__(self) -> str:
        return f"<Workflow {self.name} v{self.version}>"

    def __str__(self) -> str:
        return f"workflow {self.name} v{self.version}"

    @property
    def name(self) -> str:
        """The name of all versions, and of the job type that starts the highest one."""
        return self._name

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, each after those it waits for."""
        return tuple(self._steps)

    @property
    def graph(self) -> Document:
        """The graph as JSON, as a definition stores it."""
        return self._steps.stored()[0]

    @property
    def fingerprint(self) -> str:
        """A text that is equal for equal graphs."""
        return self._steps.stored()[1]

    @property
    def _arguments(self) -> StartArguments:
        return self._start_arguments

    def step(
        self,
        job_type: JobType[..., Any] | Workflow,
        name: str | None = None,
        *,
        after: After | None = None,
        when: Condition = "succeeded",
        payload: Mapping[str, Any] | None = None,
        takes: Mapping[str, Reference] | None = None,
        compensate: JobType[..., Any] | None = None,
        optional: bool = False,
        **using: Any,
    ) -> Step:
        """Add a step that runs a job of ``job_type``, or the steps of another workflow; return it.

        - ``name``: by default that of the handler.
        - ``after``: the steps that have to end before, one or several, or a dict of steps and
          conditions. ``when`` is the condition of those without one: ``"succeeded"``,
          ``"failed"``, ``"finished"`` or an :class:`If`. All of them have to be met.
        - ``payload``: arguments of the handler. The others are arguments of :meth:`start`.
        - ``takes``: arguments that are results of steps upstream.
        - ``compensate``: a job type that undoes the step after it succeeded, if the run fails. It
          gets the arguments of the step that it has too, and the step's result as ``result``.
        - ``optional``: where the step would be dead it is skipped, as if a person had done it, so
          that it does not fail the run. Those after it see a success, without a result.
        - Further options are those of :meth:`JobType.using`, without idempotency keys.

        The steps of a workflow get the names ``name.step``, and those that wait for none come after
        ``after``. The returned step ends when all of them have, as a run of the workflow would.
        Its arguments are those of ``start()``, and it has no other options.

        A step is given as such or by its name. Raises :class:`WorkflowError`, and
        :class:`PayloadError` for arguments that the handler does not have.
        """
        if isinstance(job_type, Workflow):
            if compensate is not None or optional or using:
                raise WorkflowError(f"{self}: {job_type} has no options as a step; its steps have")
            return self._add_workflow(job_type, name, after, when, payload or {}, takes or {})
        job_type = self._job_type(job_type, "step")
        if name is None:
            name = job_type.handler.__name__
        where = self._check_name(name)
        if using:
            check_known(using, where, (*OPTIONS_OF_STEP, *USING_OPTIONS))
            job_type = job_type.using(**using)
        check_options_of_step(job_type, where)
        edges, sources = self._before(name, after, when, takes or {})
        check_arguments(job_type, payload or {}, sources, where)
        if compensate is not None:
            compensate = self._job_type(compensate, "compensate")
            check_options_of_step(compensate, where)
            self._check_name(compensation_name(name), f"{where}: compensate")
            check_templates(compensate, {*sources, RESULT}, f"{where}: compensate")
        return self._add(
            Step(
                name=name,
                job_type=job_type,
                payload=dict(payload or {}),
                after=edges,
                takes=sources,
                compensate=compensate,
                details={"optional": True} if optional else {},
            )
        )

    def wait(
        self,
        name: str,
        *,
        after: After | None = None,
        when: Condition = "succeeded",
        timeout: Duration | None = None,
        on_timeout: Literal["fail", "continue"] = "fail",
        permission: str | None = None,
        fields: Mapping[str, type] | None = None,
        **using: Any,
    ) -> Step:
        """Add a step that waits for ``run.signal(name, data)``; return it.

        Its result is the data of the signal. If none comes within ``timeout`` (seconds or a
        timedelta), the step fails, or with ``on_timeout="continue"`` succeeds with None. An
        operator needs ``permission``, such as ``"shop.approve_order"``, to send it. It holds no
        worker while it waits. ``after`` and ``when`` are those of :meth:`step`.

        ``fields`` are what a person fills in there, by name: ``bool``, ``int``, ``float`` or
        ``str``. Each is a key of the data, besides ``by``, who sent it, and ``reason``. With a
        ``bool`` that is named ``approved`` there are two buttons, *Approve* and *Reject*. What code
        sends is not checked.
        """
        where = self._check_name(name)
        if on_timeout not in ("fail", "continue"):
            raise WorkflowError(f"{where}: on_timeout is 'fail' or 'continue', not {on_timeout!r}")
        if permission is not None and not (isinstance(permission, str) and "." in permission):
            raise WorkflowError(
                f"{where}: permission is text such as 'shop.approve_order', not {permission!r}"
            )
        payload = {
            "name": name,
            "timeout": None if timeout is None else _seconds(timeout, f"{where}: timeout"),
            "on_timeout": on_timeout,
            **({} if fields is None else {"fields": field_types(fields, where)}),
        }
        details = {**payload, "permission": permission}
        del details["name"]
        return self._add_waiting(StepKind.WAIT, name, payload, details, after, when, using)

    def sleep(
        self,
        name: str,
        duration: Duration,
        *,
        after: After | None = None,
        when: Condition = "succeeded",
        **using: Any,
    ) -> Step:
        """Add a step that lets ``duration`` pass, seconds or a timedelta; return it. It holds no
        worker meanwhile. ``after`` and ``when`` are those of :meth:`step`."""
        payload = {"seconds": _seconds(duration, f"{self._check_name(name)}: duration")}
        return self._add_waiting(StepKind.SLEEP, name, payload, payload, after, when, using)

    def _add_waiting(
        self,
        kind: StepKind,
        name: str,
        payload: dict[str, Any],
        details: dict[str, Any],
        after: After | None,
        when: Condition,
        using: Mapping[str, Any],
    ) -> Step:
        edges = self._steps.edges(name, after, when)
        # A worker serves the queue of the step before; the default queue may not exist.
        parent = self._steps.named(next(iter(edges))) if edges else None
        queue = {} if parent is None else {"queue": parent.job_type.queue}
        job_type = registry.get(WAIT if kind is StepKind.WAIT else SLEEP)
        where = f"{self}: step {name!r}"
        check_known(using, where, ("after", "when", *USING_OPTIONS))
        job_type = job_type.using(**{**queue, **using})
        check_options_of_step(job_type, where)
        step = Step(
            name=name, job_type=job_type, kind=kind, payload=payload, after=edges, details=details
        )
        return self._add(step)

    def _add_workflow(
        self,
        inner: Workflow,
        name: str | None,
        after: After | None,
        when: Condition,
        payload: Mapping[str, Any],
        takes: Mapping[str, Reference],
    ) -> Step:
        name = inner.name.rpartition(".")[2] if name is None else name
        where = self._check_name(name)
        if problem := self._why_no_part(inner):
            raise WorkflowError(f"{where}: {inner} {problem}")
        edges, sources = self._before(name, after, when, takes)
        start = replace(registry.get(inner.name), signature=inner.signature)
        check_arguments(start, payload, sources, where)
        parts = [_part(step, name, edges, payload, sources) for step in inner.steps]
        for part in parts:
            self._check_name(part.name)
            check_templates(part.job_type, part.takes, f"{self}: step {part.name!r}")
            if part.compensate is not None:
                self._check_name(compensation_name(part.name))
        for part in parts:
            self._add(part)
        inner._steps.part_of = str(self)
        parents = {parent for part in parts for parent in part.after}
        lasts = [part for part in parts if part.name not in parents]
        return self._add(
            Step(
                name=name,
                job_type=registry.get(END).using(queue=lasts[0].job_type.queue),
                kind=StepKind.WORKFLOW,
                payload={"last": lasts[0].name if len(lasts) == 1 else None},
                # After all of them, so that a retry of any brings it back.
                after={part.name: When.FINISHED for part in parts},
            )
        )

    def _why_no_part(self, inner: Workflow) -> str:
        """Why the steps of a workflow cannot be steps of this one."""
        if inner._steps is self._steps:
            return "cannot be a step of itself"
        if not inner.steps:
            return "has no steps yet"
        if inner._options != self._options:
            return "has options of a run: give them to that of the whole, with using()"
        if inner._on_failure not in ("continue", self._on_failure):
            return f"has on_failure={inner._on_failure!r}, which is for a whole run"
        if inner._tenant_rule not in (None, self._tenant_rule):
            return "has another tenant: a run has one for all its steps"
        return ""

    def _before(
        self, name: str, after: After | None, when: Condition, takes: Mapping[str, Reference]
    ) -> tuple[dict[str, When | If], dict[str, str]]:
        """The steps before a new one: how they have to end, and whose results arguments get."""
        edges = self._steps.edges(name, after, when)
        if not isinstance(takes, Mapping):
            raise WorkflowError(
                f"{self}: step {name!r}: takes is a dict of arguments and the steps whose results "
                f"they get, not {takes!r}"
            )
        sources = {
            argument: self._steps.source_of(source, name) for argument, source in takes.items()
        }
        self._steps.check_upstream(sources, edges, name)
        return edges, sources

    def _tenant(self, arguments: Mapping[str, Any]) -> str | None:
        if self._tenant_rule is None:
            return None
        return tenant_of(self._tenant_rule, {**defaults_of(self.signature), **arguments}, str(self))

    def _definition(self) -> int:
        return definition_of(self)

    def _add(self, step: Step) -> Step:
        self._steps.add(step)
        if self._start_arguments.add(step):
            register_start_job(self)
        return step

    def _check_name(self, name: Any, where: str = "") -> str:
        """How messages about a new step begin. Raises :class:`WorkflowError` for a wrong name."""
        check_step_name(name, where or str(self))
        self._steps.check_free(name)
        return f"{self}: step {name!r}"

    def _job_type(self, given: Any, what: str) -> JobType[..., Any]:
        if not isinstance(given, JobType):
            raise TypeError(f"{self}: {what} takes a job type, made by @job, not {given!r}")
        return given


def _part(
    step: Step,
    within: str,
    edges: Mapping[str, When | If],
    payload: Mapping[str, Any],
    sources: Mapping[str, str],
) -> Step:
    """A step of a workflow as one of another, where it is the step ``within`` with these edges,
    arguments and results."""
    named = f"{within}.{step.name}"
    own, takes = dict(step.payload), {to: f"{within}.{one}" for to, one in step.takes.items()}
    match step.kind:
        case StepKind.JOB:
            free = {to: one for to, one in payload.items() if to not in {*own, *takes}}
            own |= chosen_for(step.job_type, free)
            takes |= {
                to: one
                for to, one in sources.items()
                if to not in {*own, *takes} and accepts(step.job_type, to)
            }
        case StepKind.WAIT:
            own["name"] = named
        case StepKind.WORKFLOW if own["last"] is not None:
            own["last"] = f"{within}.{own['last']}"
    after = {f"{within}.{parent}": end for parent, end in step.after.items()} or edges
    return replace(step, name=named, payload=own, takes=takes, after=after)


def _seconds(duration: Any, what: str) -> float:
    seconds = as_seconds(duration)
    if seconds is None or not 0 < seconds <= LONGEST_AGE:
        raise WorkflowError(
            f"{what} is a positive number of seconds, at most {LONGEST_AGE:,.0f}, or a timedelta, "
            f"not {duration!r}"
        )
    return seconds
