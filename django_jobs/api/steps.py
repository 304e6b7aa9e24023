"""A step of a workflow, a chain or a group: a job type, arguments, and what it waits for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..domain.concurrency import Template, name_problem, template_of
from ..domain.graph import GraphStep, StepKind
from ..domain.hints import hint
from ..domain.payload import a_kind
from ..domain.workflows import If, When
from ..exceptions import PayloadError, WorkflowError
from ..models.workflow import LONGEST_STEP

if TYPE_CHECKING:
    from .job_type import JobType

OPTIONS_OF_A_RUN = {
    **{"idempotency_key": None, "key_scope": "queue", "unique_for": None},
    **{"on_duplicate": "return"},
}
"""Options of a job type that no step has, with their defaults. The run has the first of them."""

FIELD_TYPES: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
"""The types of the fields of a signal, by which its form in the admin has them."""

RESULT = "result"
"""The argument of a compensation that gets the result of the step that it undoes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A step. Made by ``Workflow.step()``, or by ``job_type.step()`` for a chain or a group.

    ``after`` has what each parent's end has to be, by the parent's name; ``takes`` the name of the
    step whose result an argument gets. ``details`` are further keys of the stored graph. A step
    equals itself only.
    """

    name: str
    job_type: JobType[..., Any]
    kind: StepKind = StepKind.JOB
    payload: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, When | If] = field(default_factory=dict)
    takes: Mapping[str, str] = field(default_factory=dict)
    compensate: JobType[..., Any] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    @property
    def is_optional(self) -> bool:
        """Whether it is skipped where it would be dead."""
        return "optional" in self.details

    def named(self, name: str) -> Step:
        """The same step with another name, for a chain or a group."""
        check_step_name(name, self.job_type.name)
        return replace(self, name=name)

    def taking(self, **takes: str | Step) -> Step:
        """The same step with arguments that are results of other steps, for a chain or a group.

        Each is a step upstream, or its name. Raises :class:`PayloadError` for an argument that the
        handler does not take.
        """
        where = f"step {self.name!r}"
        names = {
            argument: source.name if isinstance(source, Step) else source
            for argument, source in takes.items()
        }
        check_arguments(self.job_type, self.payload, names, where)
        return replace(self, takes={**self.takes, **names})

    def graph_step(self) -> GraphStep:
        return GraphStep(
            name=self.name,
            job_type=self.job_type.name,
            kind=self.kind,
            after=self.after,
            takes=self.takes,
            compensate=None if self.compensate is None else self.compensate.name,
            details=self.details,
        )


def step_of(job_type: JobType[..., Any], payload: Mapping[str, Any]) -> Step:
    """A step of a chain or a group. Raises :class:`PayloadError` for arguments it does not take."""
    check_options_of_step(job_type, f"step {job_type.name}")
    check_arguments(job_type, payload, (), job_type.name)
    return Step(name=job_type.handler.__name__, job_type=job_type, payload=dict(payload))


def check_step_name(name: Any, where: str) -> None:
    """Raise :class:`WorkflowError` unless ``name`` can name a step."""
    if problem := name_problem(name, LONGEST_STEP):
        raise WorkflowError(f"{where}: the name of a step {problem}")


def compensation_name(step: str) -> str:
    return f"undo {step}"


def check_options_of_step(job_type: JobType[..., Any], where: str) -> None:
    """Raise :class:`WorkflowError` for an option of ``using()`` that a step cannot have."""
    for option, default in OPTIONS_OF_A_RUN.items():
        if getattr(job_type, option) != default:
            raise WorkflowError(
                f"{where}: a step has no {option}; it is one of a run: "
                "using(idempotency_key=...).start()"
            )


def check_arguments(
    job_type: JobType[..., Any], payload: Mapping[str, Any], takes: Collection[str], where: str
) -> None:
    """Raise :class:`PayloadError` for arguments of ``payload`` and ``takes`` that the handler does
    not have, that are in both, or that cannot be stored."""
    if not isinstance(payload, Mapping):
        raise PayloadError(f"{where}: a payload is a dict, not {a_kind(payload)}")
    parameters = job_type.signature.parameters
    for argument in (*payload, *takes):
        if not accepts(job_type, argument):
            listed = f"its arguments are: {', '.join(parameters) or 'none'}"
            end = hint(argument, parameters, listed)
            raise PayloadError(f"{where}: {job_type.name} does not take {argument!r}{end}")
    if both := sorted(set(payload) & set(takes)):
        raise PayloadError(f"{where}: payload and takes both give {', '.join(map(repr, both))}")
    job_type.encoded(dict(payload), "payload")
    check_templates(job_type, takes, where)


def check_templates(job_type: JobType[..., Any], results: Collection[str], where: str) -> None:
    """Raise :class:`WorkflowError` if a gate needs one of these arguments, results of steps."""
    for option, rule in gate_templates(job_type):
        if unknown := [name for name in rule.names if name in results]:
            raise WorkflowError(
                f"{where}: {option} {rule.text!r} needs {unknown[0]!r} when the run starts, and "
                "takes gives it later"
            )


def results_of_compensation(step: Step) -> dict[str, list[str]]:
    """The arguments of the compensation of a step that are results, by the step that has each: its
    own, and those that the step takes."""
    if step.compensate is None:
        return {}
    sources = {**step.takes, RESULT: step.name}
    results: dict[str, list[str]] = {}
    for argument, source in sources.items():
        if accepts(step.compensate, argument):
            results.setdefault(source, []).append(argument)
    return results


def accepts(job_type: JobType[..., Any], argument: Any) -> bool:
    return isinstance(argument, str) and (argument in job_type._takes or takes_any(job_type))


def takes_any(job_type: JobType[..., Any]) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in job_type.signature.parameters.values())


def gate_templates(job_type: JobType[..., Any]) -> Iterable[tuple[str, Template]]:
    """The templates that the payload of a job fills when it is written."""
    if isinstance(job_type.tenant, Template):
        yield "tenant", job_type.tenant
    declared = job_type.concurrency
    if declared is not None and job_type.concurrency_key is None and isinstance(declared.key, str):
        yield "concurrency", template_of(declared.key)


ADDED_FIELDS = "by", "reason"
"""What the admin adds to the fields of a signal."""


def field_types(fields: Any, where: str) -> list[list[str]]:
    """The declared fields of a signal in their order, with the names of their types. Raises
    :class:`WorkflowError` for others than those of ``FIELD_TYPES``."""
    if not isinstance(fields, Mapping) or not fields:
        raise WorkflowError(f"{where}: fields are names with their types, not {fields!r}")
    for name, given in fields.items():
        if not isinstance(name, str) or not name.isidentifier() or name in ADDED_FIELDS:
            raise WorkflowError(
                f"{where}: a field has a name like 'note', other than 'by' and 'reason', "
                f"not {name!r}"
            )
        if not isinstance(given, type) or given not in FIELD_TYPES:
            raise WorkflowError(
                f"{where}: the field {name!r} is bool, int, float or str, not {given!r}"
            )
    return [[name, FIELD_TYPES[given]] for name, given in fields.items()]
