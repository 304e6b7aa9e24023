"""The arguments of ``start()``: those that steps take and that nothing else gives."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ...domain.graph import StepKind
from ...domain.hints import did_you_mean
from ...exceptions import PayloadError
from ..job_type import JobType
from ..steps import RESULT, Step, takes_any

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
        hints = [hint for name in unknown if (hint := self._hint(name))]
        if missing:
            problems.append(f"missing: {', '.join(missing)}")
        if unknown:
            problems.append(f"unknown: {', '.join(unknown)}")
        listed = f"its arguments are: {', '.join(self._parameters) or 'none'}"
        rest = " ".join([*hints, listed])
        raise PayloadError(f"{where}.start(): {'; '.join([*problems, rest])}")

    def _hint(self, name: str) -> str:
        return did_you_mean(str(name), self._parameters)


def chosen_for(job_type: JobType[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    if takes_any(job_type):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in job_type._takes}


def missing_arguments(job_type: JobType[..., Any], given: Collection[str]) -> list[str]:
    """The arguments that a call with those ``given`` lacks."""
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
