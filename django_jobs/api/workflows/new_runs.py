"""One run: its options and arguments, which ``using()`` and ``start()`` of a workflow, a chain or a
group take, and its rows: the payload and the edges of each step, and the jobs that undo steps."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...conf import conf
from ...domain.concurrency import name_problem
from ...domain.graph import StepKind
from ...domain.hints import did_you_mean, hint
from ...domain.workflows import When
from ...exceptions import EnqueueError, PayloadError, WorkflowError
from ...lifecycle.backlog import demand_room, demand_room_at_gates
from ...lifecycle.compensating import as_json
from ...lifecycle.job_columns import NewJobs
from ...lifecycle.step_insert import NewStep, first_among
from ...models.resource import LONGEST_TENANT
from ..job_type import JobType
from ..steps import (
    RESULT,
    Step,
    check_arguments,
    compensation_name,
    results_of_compensation,
    takes_any,
)
from ..validation import OF_REQUESTS, check_due, check_key, check_number, check_rules, tag_names


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run. ``tenant``, ``priority``, ``queue``, ``headers`` and ``tags`` are for
    all of its steps, ``run_at`` and ``delay`` for those that wait for no other;
    ``overrides`` has arguments by the name of a step."""

    idempotency_key: str | None = None
    tenant: str | None = None
    priority: int | None = None
    queue: str | None = None
    headers: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    run_at: datetime | None = None
    delay: float | timedelta | None = None
    overrides: Mapping[str, Mapping[str, Any]] | None = None

    def changed(self, where: str, **options: Any) -> RunOptions:
        """These options with others; None keeps one. Raises :class:`EnqueueError`."""
        given = {name: value for name, value in options.items() if value is not None}
        if "tags" in given:
            given["tags"] = tag_names(given["tags"], where)
        changed = replace(self, **given)
        changed._check(where)
        return changed

    def _check(self, where: str) -> None:
        if self.idempotency_key is not None:
            check_key(self.idempotency_key, where)
        if self.tenant is not None and (problem := name_problem(self.tenant, LONGEST_TENANT)):
            raise EnqueueError(f"{where}: tenant {problem}")
        check_rules(OF_REQUESTS, self, where)
        if self.run_at is not None and self.delay is not None:
            raise EnqueueError(f"{where}: give run_at or delay, not both")
        delay = 0.0 if self.delay is None else self.delay
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        check_due(self.run_at, seconds, where)
        check_number(self.tags, where)
        overrides = self.overrides
        if overrides is not None and not (
            isinstance(overrides, Mapping)
            and all(isinstance(payload, Mapping) for payload in overrides.values())
        ):
            raise EnqueueError(
                f"{where}: overrides are dicts of arguments by the name of a step, such as "
                '{"ship": {"express": True}}'
            )

    def applied_to(
        self, job_type: JobType[..., Any], *, is_first: bool = False
    ) -> JobType[..., Any]:
        """``job_type`` with the options that are for all steps, and those for the first ones.
        Headers are merged."""
        options: dict[str, Any] = {
            "tenant": self.tenant,
            "priority": self.priority,
            "queue": self.queue,
            "tags": self.tags or None,
        }
        if is_first:
            options |= {"run_at": self.run_at, "delay": self.delay}
        if self.headers:
            options["headers"] = {**(job_type.headers or {}), **self.headers}
        if all(value is None for value in options.values()):
            return job_type
        return job_type.using(**options)


Parameter = inspect.Parameter

ANYTHING = Parameter("arguments", Parameter.VAR_KEYWORD)


class StartArguments:
    def __init__(self) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._needed_by: dict[str, str] = {}
        self._anything = False

    def add(self, step: Step) -> bool:
        """Add what ``step`` and its compensation need; return whether anything changed."""
        before = self._anything, dict(self._parameters)
        for parameter in _open_parameters(step):
            if parameter.kind is Parameter.VAR_KEYWORD:
                self._anything = True
                continue
            known = self._parameters.get(parameter.name)
            if known is None or known.default is not Parameter.empty is parameter.default:
                self._needed_by[parameter.name] = step.name
                self._parameters[parameter.name] = parameter.replace(kind=Parameter.KEYWORD_ONLY)
        return before != (self._anything, self._parameters)

    @property
    def signature(self) -> inspect.Signature:
        parameters = list(self._parameters.values())
        return inspect.Signature([*parameters, ANYTHING] if self._anything else parameters)

    def check(self, given: Mapping[str, Any], where: str) -> None:
        """Raise :class:`PayloadError` for missing and unknown arguments, with their names."""
        missing = [
            f"{name} (for {self._needed_by[name]})"
            for name, parameter in self._parameters.items()
            if parameter.default is parameter.empty and name not in given
        ]
        unknown = [name for name in given if not self._anything and name not in self._parameters]
        if not missing and not unknown:
            return
        problems = []
        hints = [hint for name in unknown if (hint := did_you_mean(str(name), self._parameters))]
        if missing:
            problems.append(f"missing: {', '.join(missing)}")
        if unknown:
            problems.append(f"unknown: {', '.join(unknown)}")
        listed = f"its arguments are: {', '.join(self._parameters) or 'none'}"
        rest = " ".join([*hints, listed])
        raise PayloadError(f"{where}.start(): {'; '.join([*problems, rest])}")


def chosen_for(job_type: JobType[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    if takes_any(job_type):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in job_type._takes}


def missing_arguments(job_type: JobType[..., Any], given: Collection[str]) -> list[str]:
    needed = job_type._needs.difference(given)
    return [name for name in job_type.signature.parameters if name in needed]


def _open_parameters(step: Step) -> Iterator[Parameter]:
    """The parameters of a step's handler and compensation that nothing gives yet."""
    if step.kind is not StepKind.JOB:
        return
    given = {*step.payload, *step.takes}
    for parameter in step.job_type.signature.parameters.values():
        if parameter.name not in given:
            yield parameter
    compensation = step.compensate.signature.parameters.values() if step.compensate else ()
    for parameter in compensation:
        if parameter.name not in {*given, RESULT}:
            yield parameter


MOST_PAYLOADS = 32
"""All compensations of a run have at most the bytes of this many payloads. They are one value,
which PostgreSQL limits to 256 MB, and are inserted by the statement that ends the failed run."""


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
