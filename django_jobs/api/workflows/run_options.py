"""The options and the arguments of one run: what ``using()`` and ``start()`` of a workflow, a chain
or a group take."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...domain.concurrency import name_problem
from ...domain.graph import StepKind
from ...domain.hints import did_you_mean
from ...exceptions import EnqueueError, PayloadError
from ...models.resource import LONGEST_TENANT
from ..job_type import JobType
from ..steps import RESULT, Step, takes_any
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
