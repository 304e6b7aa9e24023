"""What a workflow, a chain and a group have in common: options of a run, and its start."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Never, Self

from asgiref.sync import sync_to_async

from ... import registry
from ...conf import conf
from ...domain.options import INSTEAD_OF_ATTRIBUTES, check_known
from ...domain.payload import NotStorable, encode
from ...exceptions import PayloadError, WorkflowError
from ...lifecycle.workflows.starting import NewRun, start
from ...models import WorkflowRun
from ...models.database import needing_tables
from ..hooks import HookEvent, around
from ..job_type import JobType
from ..steps import Step
from .new_runs import RunOptions, StartArguments, compensations_of, demand_room_for, new_steps

if TYPE_CHECKING:
    from .workflow import Workflow


class Startable(ABC):
    """A graph of steps that can be started."""

    _options = RunOptions()
    _on_failure = "continue"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its runs."""

    @property
    @abstractmethod
    def steps(self) -> Sequence[Step]:
        """The steps, each after those it waits for."""

    @property
    @abstractmethod
    def _arguments(self) -> StartArguments: ...

    def _definition(self) -> int | None:
        """The id of the stored definition, which is written if it does not exist. It stays as it is
        until the end of the transaction."""
        return None

    def _tenant(self, arguments: Mapping[str, Any]) -> str | None:
        """The tenant of a run for which no other is chosen."""
        return None

    @property
    def signature(self) -> inspect.Signature:
        """The arguments of :meth:`start`: those of the handlers that no step gives."""
        return self._arguments.signature

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raise :class:`PayloadError` for missing and unknown arguments of :meth:`start`."""
        self._arguments.check(arguments, str(self))

    def using(
        self,
        *,
        idempotency_key: str | None = None,
        tenant: str | None = None,
        priority: int | None = None,
        queue: str | None = None,
        headers: Mapping[str, Any] | None = None,
        tags: Iterable[str] | str | None = None,
        run_at: datetime | None = None,
        delay: float | timedelta | None = None,
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        **unknown: Never,
    ) -> Self:
        """A copy with options for one run. None keeps what the steps declare.

        While a run of the same name with the ``idempotency_key`` is running, :meth:`start` returns
        that run. ``tenant``, ``priority``, ``queue``, ``headers`` and ``tags`` are for all steps.
        ``run_at`` (an aware datetime) or ``delay`` (seconds or a timedelta) postpones the first
        ones. ``overrides`` has arguments by the name of a step, such as
        ``{"ship": {"express": True}}``. Raises :class:`EnqueueError`.
        """
        options = dict(locals())
        del options["self"], options["unknown"]
        check_known(unknown, f"{self}.using()", options)
        chosen = copy.copy(self)
        chosen._options = self._options.changed(str(self), **options)
        return chosen

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            names = {"enqueue", "aenqueue", "run", *INSTEAD_OF_ATTRIBUTES}
            end = "; write start(...), with using(delay=5) before it for a delay"
            problem = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(problem + end * (name in names), name=name, obj=self)

    def start(self, /, *args: Never, **arguments: Any) -> WorkflowRun:
        """Start a run; return its :class:`~django_jobs.models.WorkflowRun`.

        Each handler gets those of the arguments that it takes. The rows are written in the caller's
        transaction and commit or roll back with it. If a running run of this name holds the
        idempotency key, that run is returned with ``deduplicated`` True.

        Raises :class:`PayloadError` for missing and unknown arguments, and what
        :meth:`JobType.enqueue` raises; then nothing is written.
        """
        if args:
            raise PayloadError(f"{self}.start{self.signature} takes its arguments by name")
        self.check_arguments(arguments)
        options = self._options
        if options.tenant is None and (tenant := self._tenant(arguments)) is not None:
            options = replace(options, tenant=tenant)
        if not conf().hooks:
            return self._start(arguments, options)
        event = HookEvent(
            kind="enqueue",
            job_type=self.name,
            queue=options.queue,
            headers=dict(options.headers or {}),
            payload=MappingProxyType(arguments),
            count=len(self.steps),
        )
        with around(event):
            return self._start(arguments, replace(options, headers=event.headers))

    def _start(self, arguments: dict[str, Any], options: RunOptions) -> WorkflowRun:
        with needing_tables:
            steps = new_steps(self.steps, arguments, options, str(self))
            demand_room_for(steps)
            new = NewRun(
                name=self.name,
                payload=self._encoded(arguments),
                idempotency_key=options.idempotency_key,
                tenant=options.tenant,
                compensations=compensations_of(self.steps, arguments, options, str(self)),
                on_failure=self._on_failure,
            )
            return start(new, steps, self._definition)

    async def astart(self, /, *args: Never, **arguments: Any) -> WorkflowRun:
        """:meth:`start` for async code."""
        return await _start_in_thread(self, args, arguments)

    def _encoded(self, arguments: dict[str, Any]) -> str:
        try:
            return encode(arguments, max_bytes=conf().max_payload_bytes, name="arguments")
        except NotStorable as error:
            raise PayloadError(f"{self}.start(): {error}") from None


@sync_to_async(thread_sensitive=True)
def _start_in_thread(
    startable: Startable, args: Sequence[Never], arguments: dict[str, Any]
) -> WorkflowRun:
    return startable.start(*args, **arguments)


Handler = Callable[..., dict[str, Any]]


def register_start_job(workflow: Workflow) -> None:
    """Register the job type that starts the highest version of a workflow, if it is that. It takes
    the arguments of ``start()``, and commits the run together with its own success. The steps get
    its tenant, and its priority unless that is 0."""
    name, known = workflow.name, registry.find(workflow.name)
    if registry.workflow(name) is not workflow:
        return
    is_ours = known is not None and getattr(known.handler, "starts_workflow", None) == name
    handler = known.handler if known is not None and is_ours else _handler(name, workflow._module)
    registry.register(
        JobType(
            name=name,
            handler=handler,
            signature=workflow.signature,
            delivery="exactly_once",
            schedulable=workflow._schedulable,
            tenant=workflow._tenant_rule,
        )
    )


def _handler(name: str, module: str) -> Handler:
    def start(**arguments: Any) -> dict[str, Any]:
        from ... import current_run  # the worker is above this room

        workflow, run = registry.workflow(name), current_run()
        if workflow is None:
            raise WorkflowError(f"no workflow is named {name!r}")
        if run is not None:
            workflow = workflow.using(
                idempotency_key=f"job:{run.job_id}",
                tenant=run.tenant,
                priority=run.priority or None,
            )
        return {"workflow_run": workflow.start(**arguments).pk}

    start.__module__ = module
    start.__qualname__ = f"Workflow({name!r}).start"
    start.starts_workflow = name  # type: ignore[attr-defined]
    return start
