"""The gates of a job: validates their declaration, and finds them from the payload."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..conf import conf
from ..domain.concurrency import (
    LONGEST_KEY,
    MOST_RESOURCES,
    Concurrency,
    Template,
    limit_problem,
    literal,
    name_problem,
    template_of,
)
from ..domain.gates import Gates, OnConflict
from ..domain.hints import hint, why_not
from ..domain.options import several
from ..exceptions import EnqueueError, PayloadError, UnknownResource
from ..models import Resource
from ..models.queue import A_QUEUE_NAME, is_queue_name
from ..models.resource import LONGEST_TENANT

if TYPE_CHECKING:
    from .job_type import JobType

NameRule = Template | Callable[[dict[str, Any]], Any]
"""How the name of a tenant or a concurrency key follows from a payload."""


def name_rule(declared: Any, option: str, where: str) -> NameRule | None:
    """The rule of ``tenant`` as ``@job`` takes it. Raises ``TypeError`` or ``ValueError``."""
    if isinstance(declared, str):
        try:
            return template_of(declared)
        except ValueError as error:
            raise ValueError(f"{where}: {option}: {error}") from None
    if declared is not None and not callable(declared):
        raise TypeError(f"{where}: {option} is text or a function of the payload, not {declared!r}")
    if declared is not None and (problem := why_not(declared, ("payload",))):
        raise TypeError(f"{where}: {option} {problem}")
    rule: NameRule | None = declared
    return rule


def resource_names(given: Any, where: str) -> tuple[str, ...]:
    """The names of the option ``resources``, sorted and each once; one may stand alone.

    Raises :class:`EnqueueError` for a name that no resource can have, and for more than 8.
    """
    try:
        names = several(given, "resources", where)
    except TypeError as error:
        raise EnqueueError(str(error)) from None
    for name in names:
        if not is_queue_name(name):
            raise EnqueueError(f"{where}: the name of a resource is {A_QUEUE_NAME}, not {name!r}")
    if len(once := {*names}) > MOST_RESOURCES:
        raise EnqueueError(
            f"{where}: a job uses at most {MOST_RESOURCES} resources, not {len(once)}"
        )
    return tuple(sorted(once))


def calls_project(job_type: JobType[..., Any]) -> bool:
    """Whether a function of the project finds the gates of a job. It may use the database."""
    key = None if job_type.concurrency is None else job_type.concurrency.key
    return any(rule is not None and callable(rule) for rule in (job_type.tenant, key))


def check_gates(declared: JobType[..., Any], where: str) -> None:
    """Validate the gates of ``@job``: its templates name arguments of the handler.

    Raises ``TypeError`` or ``ValueError``.
    """
    if declared.concurrency is not None and not isinstance(declared.concurrency, Concurrency):
        raise TypeError(
            f'{where}: concurrency is a Concurrency, such as Concurrency("account:{{account_id}}"),'
            f" not {declared.concurrency!r}"
        )
    if isinstance(declared.tenant, Template):
        _check_names(declared, declared.tenant, "tenant", where)
        _check_constant(declared.tenant, "tenant", LONGEST_TENANT, where)
    if declared.concurrency is not None and isinstance(declared.concurrency.key, str):
        template = template_of(declared.concurrency.key)
        _check_names(declared, template, "concurrency", where)
        _check_constant(template, "concurrency", LONGEST_KEY, where)


def _check_names(declared: JobType[..., Any], template: Template, option: str, where: str) -> None:
    parameters = declared.signature.parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    for name in template.names:
        if name not in parameters:
            listed = f"its arguments are: {', '.join(parameters) or 'none'}"
            raise ValueError(
                f"{where}: {option} {template.text!r} names {name!r}, which the handler does not "
                f"take{hint(name, parameters, listed)}"
            )


def _check_constant(template: Template, option: str, longest: int, where: str) -> None:
    if not any(template.names) and (problem := name_problem(template.fill({}), longest)):
        raise ValueError(f"{where}: {option} {problem}")


def of_one_request(given: dict[str, Any], where: str) -> dict[str, Any]:
    """The gates among the options of ``using()``, as fields of a job type.

    Raises :class:`EnqueueError` for a name that no gate can have.
    """
    for option, longest in (("tenant", LONGEST_TENANT), ("concurrency_key", LONGEST_KEY)):
        if option in given and (problem := name_problem(given[option], longest)):
            raise EnqueueError(f"{where}: {option} {problem}")
    gates: dict[str, Any] = {}
    if "tenant" in given:
        gates["tenant"] = literal(given["tenant"])
    if "resources" in given:
        gates["resources"] = resource_names(given["resources"], where)
    return gates


def check_resources(names: Iterable[str], where: str) -> None:
    """Raise :class:`UnknownResource` unless each resource has a row."""
    for name in names:
        if Resource.objects.recent(name, conf().database) is None:
            raise unknown_resource(name, where)


def unknown_resource(name: object, where: str) -> UnknownResource:
    """The error for a resource without a row, with the names of the others."""
    known = list(Resource.objects.names())
    listed = f"known are: {', '.join(known) or 'none (run migrate)'}"
    return UnknownResource(
        f"{where}: no resource is named {name!r}{hint(name, known, listed)}. "
        'Resources come from DJANGO_JOBS["RESOURCES"] after migrate, or from the admin'
    )


def gates_of(job_type: JobType[..., Any], payload: dict[str, Any]) -> Gates | None:
    """The gates of a job with this payload; None if it has none."""
    arguments = {**job_type._defaults, **payload}
    where = job_type.name
    tenant = key = None
    limit, on_conflict, max_waiting = 1, str(OnConflict.WAIT), None
    if job_type.tenant is not None:
        tenant = tenant_of(job_type.tenant, arguments, where)
    concurrency = job_type.concurrency
    if job_type.concurrency_key is not None:
        key = job_type.concurrency_key
    elif concurrency is not None:
        rule = template_of(concurrency.key) if isinstance(concurrency.key, str) else concurrency.key
        key = _name(rule, arguments, "concurrency key", LONGEST_KEY, where)
    if key is not None and concurrency is not None:
        limit, on_conflict = _limit(concurrency, arguments, where), concurrency.on_conflict
        max_waiting = concurrency.max_waiting
    if tenant is None and key is None and not job_type.resources:
        return None
    return Gates(
        tenant=tenant,
        queue=job_type.queue,
        key=key,
        limit=limit,
        on_conflict=OnConflict(on_conflict),
        resources=job_type.resources,
        max_waiting=max_waiting,
    )


def tenant_of(rule: NameRule, arguments: dict[str, Any], where: str) -> str | None:
    """The name of the tenant that follows from arguments; None if there is none."""
    return _name(rule, arguments, "tenant", LONGEST_TENANT, where)


def _name(
    rule: NameRule, arguments: dict[str, Any], what: str, longest: int, where: str
) -> str | None:
    if not isinstance(rule, Template):
        name: str | None = _returned(rule, arguments, what, where)
        if name is not None and (problem := name_problem(name, longest)):
            raise EnqueueError(f"{where}: the {what} that its function returned {problem}")
        return name
    try:
        name = rule.fill(arguments)
    except ValueError as error:
        raise PayloadError(f"{where}: {what} {rule.text!r}: {error}") from None
    if problem := name_problem(name, longest):
        raise PayloadError(f"{where}: {what} {rule.text!r}: the filled text {problem}")
    return name


def _limit(concurrency: Concurrency, arguments: dict[str, Any], where: str) -> int:
    if not callable(concurrency.limit):
        return concurrency.limit
    limit: int = _returned(concurrency.limit, arguments, "limit of its concurrency key", where)
    if problem := limit_problem(limit):
        raise EnqueueError(f"{where}: the function of its concurrency limit: {problem}")
    return limit


def _returned(
    function: Callable[[dict[str, Any]], Any], arguments: dict[str, Any], what: str, where: str
) -> Any:
    try:
        return function(dict(arguments))
    except Exception as error:
        raise EnqueueError(
            f"{where}: the function of the {what} raised {type(error).__name__}"
        ) from error


def defaults_of(signature: inspect.Signature) -> dict[str, Any]:
    """The arguments that a call need not give, with their values."""
    return {
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not parameter.empty
    }
