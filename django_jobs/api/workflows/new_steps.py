"""The rows of a run: the payload and the edges of each step, and the jobs that undo steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ...conf import conf
from ...domain.graph import StepKind
from ...domain.hints import hint
from ...domain.workflows import When
from ...exceptions import PayloadError, WorkflowError
from ...lifecycle.backlog import demand_room, demand_room_at_gates
from ...lifecycle.compensating import as_json
from ...lifecycle.job_columns import NewJobs
from ...lifecycle.step_insert import NewStep, first_among
from ..job_type import JobType
from ..steps import RESULT, Step, check_arguments, compensation_name, results_of_compensation
from .run_options import RunOptions, chosen_for, missing_arguments

MOST_PAYLOADS = 32
"""All compensations of a run have at most the bytes of so many payloads. They are one value, which
PostgreSQL limits to 256 MB, and are inserted by the statement that ends the failed run."""


class Requests:
    """The job types of a run with its options, and what all jobs of each have in common."""

    def __init__(self, options: RunOptions) -> None:
        self._options = options
        self._known: dict[tuple[int, bool], tuple[JobType[..., Any], NewJobs]] = {}

    def of(
        self, job_type: JobType[..., Any], *, is_first: bool = False
    ) -> tuple[JobType[..., Any], NewJobs]:
        """``job_type`` with the options of the run, and its request."""
        key = id(job_type), is_first
        if key not in self._known:
            configured = self._options.applied_to(job_type, is_first=is_first)
            self._known[key] = configured, configured.request()
        return self._known[key]


def new_steps(
    steps: Sequence[Step], arguments: Mapping[str, Any], options: RunOptions, where: str
) -> list[NewStep]:
    """The steps of a run, in their order. Raises :class:`PayloadError` for missing arguments, and
    for overrides that a handler does not take."""
    overrides = options.overrides or {}
    places = {step.name: place for place, step in enumerate(steps)}
    _check_overrides(overrides, {step.name: step.kind for step in steps}, where)
    requests = Requests(options)
    return [
        _new_step(
            step,
            *requests.of(step.job_type, is_first=not (step.after or step.takes)),
            arguments,
            overrides,
            places,
            where,
        )
        for step in steps
    ]


def _new_step(
    step: Step,
    job_type: JobType[..., Any],
    new: NewJobs,
    arguments: Mapping[str, Any],
    overrides: Mapping[str, Mapping[str, Any]],
    places: Mapping[str, int],
    where: str,
) -> NewStep:
    payload = {**chosen_for(job_type, arguments), **step.payload}
    if step.name in overrides:
        override = overrides[step.name]
        check_arguments(job_type, override, step.takes, f"{where}: overrides of {step.name!r}")
        payload.update(override)
    for argument in step.takes:
        payload.pop(argument, None)
    if missing := missing_arguments(job_type, {*payload, *step.takes}):
        raise PayloadError(f"{where}: step {step.name!r} lacks {', '.join(missing)}")
    after = {places[parent]: when for parent, when in step.after.items()}
    takes: dict[int, list[str]] = defaultdict(list)
    for argument, source in step.takes.items():
        after.setdefault(places[source], When.FINISHED)
        takes[places[source]].append(argument)
    return NewStep(
        name=step.name,
        new=new,
        payload=job_type.encoded_payload(payload),
        gates=job_type.gates_of(payload),
        after=after,
        takes=takes,
        optional=step.is_optional,
    )


def compensations_of(
    steps: Sequence[Step], arguments: Mapping[str, Any], options: RunOptions, where: str
) -> str | None:
    """The jobs that undo steps, as stored. Raises :class:`PayloadError` if they are too large."""
    requests = Requests(options)
    undoing: dict[str, NewStep] = {}
    takes: dict[str, dict[str, list[str]]] = {}
    for step in steps:
        if step.compensate is not None:
            job_type, new = requests.of(step.compensate)
            override = (options.overrides or {}).get(step.name, {})
            payload = chosen_for(job_type, {**arguments, **step.payload, **override})
            for argument in (*step.takes, RESULT):
                payload.pop(argument, None)
            undoing[step.name] = NewStep(
                name=compensation_name(step.name),
                new=new,
                payload=job_type.encoded_payload(payload),
                gates=job_type.gates_of(payload),
            )
            takes[step.name] = results_of_compensation(step)
    most = MOST_PAYLOADS * conf().max_payload_bytes
    size = sum(len(one.payload) for one in undoing.values())
    if size > most:
        raise PayloadError(
            f"{where}: the arguments of its {len(undoing)} compensations are {size:,} characters "
            f"together, more than {most:,}; pass ids or paths instead"
        )
    return as_json(undoing, takes)


def demand_room_for(steps: Sequence[NewStep]) -> None:
    """Raise :class:`QueueFull` if a queue, or a gate of theirs, refuses the first steps."""
    first = first_among(steps)
    for request, gates in first:
        demand_room(request, len(gates))
    demand_room_at_gates((request, one) for request, gates in first for one in gates)


def _check_overrides(
    overrides: Mapping[str, Any], kinds: Mapping[str, StepKind], where: str
) -> None:
    for name in overrides:
        if name not in kinds:
            raise WorkflowError(f"{where}: overrides: there is no step {name!r}{hint(name, kinds)}")
        if kinds[name] is not StepKind.JOB:  # they could end what only its permission may end
            raise WorkflowError(
                f"{where}: overrides: {name!r} is a {kinds[name]} step, which is as it was "
                "declared; only steps that call a handler have arguments"
            )
