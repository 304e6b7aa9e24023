"""The job type that starts a workflow: for schedules, and for an enqueue by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ... import registry
from ...exceptions import WorkflowError
from ..gating import NameRule
from ..job_type import JobType

Handler = Callable[..., dict[str, Any]]


def register_start_job(
    name: str,
    module: str,
    signature: inspect.Signature,
    *,
    schedulable: bool,
    tenant: NameRule | None,
) -> None:
    """Register the job type that starts the highest version of the workflow ``name``. It takes the
    arguments of ``start()``, and commits the run together with its own success. The steps get its
    tenant, and its priority unless that is 0."""
    known = registry.find(name)
    is_ours = known is not None and getattr(known.handler, "starts_workflow", None) == name
    handler = known.handler if known is not None and is_ours else _handler(name, module)
    registry.register(
        JobType(
            name=name,
            handler=handler,
            signature=signature,
            delivery="exactly_once",
            schedulable=schedulable,
            tenant=tenant,
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
