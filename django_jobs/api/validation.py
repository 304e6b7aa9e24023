"""Validates the options of ``@job`` and of ``using()`` before anything is written: each alone,
tags, and pairs of which one never acts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from math import nan
from typing import TYPE_CHECKING, Any, NamedTuple

from django.utils import timezone

from ..conf import conf
from ..domain.backoff import Backoff
from ..domain.hints import hint, why_not
from ..domain.numbers import LONGEST_AGE, LONGEST_TIMEOUT, as_seconds, is_priority, is_whole
from ..domain.options import MOST_TAGS, HandlerSignature, combined, several, tag_problem
from ..domain.payload import KEY_SEPARATOR, key_problem
from ..exceptions import Cancelled, EnqueueError, Fate, LeaseLost, TimeLimitExceeded, UnknownQueue
from ..models.database import DATABASE_ERRORS
from ..models.queue import A_QUEUE_NAME, Queue, is_queue_name
from .gating import check_gates

if TYPE_CHECKING:
    from .job_type import JobType


def tag_names(given: Iterable[str] | str | None, where: str) -> tuple[str, ...]:
    """The tags of the option ``tags``, sorted and each once; one may stand alone.

    Raises :class:`EnqueueError` for what cannot be a tag.
    """
    try:
        tags = () if given is None else several(given, "tags", where)
    except TypeError as error:
        raise EnqueueError(str(error)) from None
    for tag in tags:
        if problem := tag_problem(tag):
            raise EnqueueError(f"{where}: a tag {problem}: {tag!r}")
    return combined(tags)


def check_number(tags: tuple[str, ...], where: str) -> None:
    """Raise :class:`EnqueueError` for more tags than a job may have."""
    if len(tags) > MOST_TAGS:
        raise EnqueueError(f"{where}: a job has at most {MOST_TAGS} tags, not {len(tags)}")


SMALLEST_RSS = 40
"""Megabytes. A process with Python and Django alone holds 45 to 60."""
HANDLED_BEFORE = (Fate, Cancelled, LeaseLost, TimeLimitExceeded)
"""Exceptions with a fixed effect on the attempt. The options of a job type cannot change it."""


def contradictions(declared: JobType[..., Any]) -> Iterator[str]:
    """Each option that never acts because of another one, or of what the package needs."""
    timeout, silence, backoff = declared.timeout, declared.silence_timeout, declared.backoff
    if timeout is not None and silence is not None and silence >= timeout:
        yield (
            f"silence_timeout={silence!r} never acts, because timeout={timeout!r} ends the attempt "
            "first: give a shorter silence_timeout"
        )
    if declared.max_rss is not None and declared.max_rss < SMALLEST_RSS:
        few = f"max_rss={declared.max_rss} megabytes is less than Django alone needs"
        yield f"{few}: give {SMALLEST_RSS} or more"
    soonest = 0.0 if backoff is None else backoff.delay(1, spread=lambda: 1.0)
    for option in ("max_age", "retry_for"):
        limit = getattr(declared, option)
        if limit is not None and soonest >= limit:
            yield (
                f"{option}={limit:g} ends before the backoff of {soonest:g} s, so there "
                f"is no second attempt: give a longer {option}, or max_attempts=1 instead"
            )
    if declared.delivery == "at_most_once":
        yield from _never_retried(declared)
    for option in ("retry_on", "discard_on", "error_budgets"):
        for kind in getattr(declared, option):
            if issubclass(kind, HANDLED_BEFORE):
                yield f"{kind.__name__} has a fixed meaning that {option} cannot change"
    for option in ("retry_on", "error_budgets"):
        for kind in getattr(declared, option):
            if issubclass(kind, declared.discard_on):
                yield f"{kind.__name__} in {option} never acts, because discard_on includes it"
    for kind in declared.error_budgets if declared.retry_on else ():
        # A lost race and a lost connection are retried even if ``retry_on`` lacks them.
        tried_again = *declared.retry_on, *DATABASE_ERRORS
        if not any(
            issubclass(kind, retried) or issubclass(retried, kind) for retried in tried_again
        ):
            yield (
                f"{kind.__name__} in error_budgets is never retried, because it is not in "
                "retry_on: add it there"
            )


def _never_retried(declared: JobType[..., Any]) -> Iterator[str]:
    for option in ("backoff", "retry_on", "retry_for", "discard_on", "error_budgets"):
        if getattr(declared, option):
            yield f"delivery='at_most_once' never retries, so {option} never acts: leave it out"
    if problem := attempts_problem(declared):
        yield problem


def attempts_problem(chosen: JobType[..., Any]) -> str:
    """Why the ``max_attempts`` of ``@job`` or of ``using()`` never acts; "" if it may."""
    if chosen.delivery != "at_most_once" or (chosen.max_attempts or 1) == 1:
        return ""
    return f"delivery='at_most_once' never retries, so max_attempts is 1, not {chosen.max_attempts}"


LONGEST_NAME = 200
"""Characters of a job type's name."""
MOST_CRASHES = 2**15 - 1


def _number(value: Any) -> float:
    """``value`` as a float; NaN, which is outside every range, if it is not a number."""
    seconds = as_seconds(value) if isinstance(value, int | float | Decimal) else None
    return nan if seconds is None else seconds


class Rule(NamedTuple):
    """What an option has to be, and the error for what it is not; None: by its type."""

    is_good: Callable[[Any], bool]
    meaning: str
    wrong: type[Exception] | None = EnqueueError


def _whole(most: int, wrong: type[Exception] = EnqueueError) -> Rule:
    return Rule(
        lambda value: is_whole(value) and 1 <= value <= most,
        f"a whole number from 1 to {most:,}",
        wrong,
    )


def _choice(*choices: str, wrong: type[Exception] = EnqueueError) -> Rule:
    *others, last = map(repr, choices)
    return Rule(choices.__contains__, f"{', '.join(others)} or {last}", wrong)


def _up_to(seconds: float) -> str:
    return f"seconds, at most {seconds:,.0f} ({seconds / 86_400:,.0f} days)"


def _time(longest: float) -> Rule:
    meaning = f"a positive number of {_up_to(longest)}"
    return Rule(lambda value: 0 < _number(value) <= longest, meaning, None)


ON_DUPLICATE = ("return", "replace", "raise")
FLAG = Rule(lambda value: isinstance(value, bool), "True or False", TypeError)
A_BACKOFF = "a Backoff, such as Backoff.fixed(5)"
OF_JOB_TYPES = {
    "delivery": _choice("at_least_once", "at_most_once", "exactly_once", wrong=ValueError),
    "on_cancel": _choice("raise", "ask", wrong=ValueError),
    "backoff": Rule(lambda value: isinstance(value, Backoff), A_BACKOFF, TypeError),
    **dict.fromkeys(("isolated", "schedulable"), FLAG),
    **dict.fromkeys(("timeout", "silence_timeout"), _time(LONGEST_TIMEOUT)),
    **dict.fromkeys(("max_age", "retry_for"), _time(LONGEST_AGE)),
    "max_rss": Rule(
        lambda value: is_whole(value) and value > 0, "a whole number of megabytes", ValueError
    ),
    "version": _whole(2**15 - 1, ValueError),
}
"""The options of ``@job`` alone of which a value is right or wrong by itself."""
OF_REQUESTS = {
    "queue": Rule(is_queue_name, A_QUEUE_NAME),
    "priority": Rule(is_priority, "a whole number from -100 to 100"),
    "max_attempts": _whole(2**31 - 1),
    "max_crashes": _whole(MOST_CRASHES),
    "unique_for": Rule(_time(LONGEST_AGE).is_good, f"{_time(LONGEST_AGE).meaning}, or a timedelta"),
    "on_duplicate": _choice(*ON_DUPLICATE),
    "key_scope": _choice("queue", "tenant"),
    "headers": Rule(lambda value: isinstance(value, Mapping), "a dict"),
}
"""Such options of ``using()`` too, of a job type or a workflow."""


def check_rules(rules: Mapping[str, Rule], options: Any, where: str) -> None:
    """Raise the error of the first of these ``options``, a dataclass, that breaks its rule."""
    known = options.__dataclass_fields__
    for option, (is_good, meaning, wrong) in rules.items():
        if option not in known:
            continue
        value = getattr(options, option)
        if is_good(value) or (value is None and known[option].default is None):
            continue
        end = hint(value, ON_DUPLICATE) if option == "on_duplicate" else ""
        verb = "are" if option == "headers" else "is"
        wrong = wrong or (ValueError if isinstance(value, int | float | Decimal) else TypeError)
        raise wrong(f"{where}: {option} {verb} {meaning}, not {value!r}{end}")


def signature_of(handler: Callable[..., Any]) -> inspect.Signature:
    """The signature of a handler.

    Raises ``TypeError`` unless it is a named function, no generator, without positional-only
    parameters and ``*args``.
    """
    if not inspect.isfunction(handler) or handler.__name__ == "<lambda>":
        raise TypeError(f"@job takes a function with a name, not {handler!r}")
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"{handler.__qualname__} is a generator; a job would never run its body")
    signature = HandlerSignature.from_callable(handler)
    is_method = re.search(r"(?<!<locals>)\.\w+$", handler.__qualname__)
    if is_method and {"self", "cls"} & signature.parameters.keys():
        raise TypeError(
            f"{handler.__qualname__} is a method; a worker has no object to call it on: put @job "
            "on a function of the module, and pass it the id of a row"
        )
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise TypeError(
                f"{handler.__qualname__} takes {parameter} by position; "
                "a payload holds arguments by name"
            )
    return signature


def declared_name(name: str | None, default: str) -> str:
    """The name of a job type: ``name``, or ``default`` if it is None.

    Raises ``TypeError`` if it is not text, ``ValueError`` if it is empty or too long.
    """
    if name is None:
        return default
    _check_name(name, f"@job {default}: name")
    return name


def _check_name(name: Any, what: str) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{what} is text, not {name!r}")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise ValueError(
            f"{what} is text of 1 to {LONGEST_NAME} characters, not one of {len(name)}"
        )


MAPPINGS = {
    "error_budgets": "a dict of numbers by exception class, such as {OSError: 3}",
    "upgrades": "a dict of functions by the version they take, such as {1: add_currency}",
    "retention": 'a dict, such as {"dead": {"age": "180d", "number": 100}}',
}


def mapping(value: Any, option: str, where: str) -> dict[Any, Any]:
    """A copy of one of :data:`MAPPINGS`; an empty dict for None. Raises ``TypeError``."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{where}: {option} is {MAPPINGS[option]}, not {value!r}")
    return dict(value or {})


def exception_classes(value: Any, option: str, where: str) -> tuple[type[BaseException], ...]:
    """The exception classes of ``retry_on`` or ``discard_on``, which take one class or several.

    Raises ``TypeError`` for anything else.
    """
    is_one = isinstance(value, str | type | Mapping) or not isinstance(value, Iterable)
    kinds = [value] if is_one else value
    kinds = tuple(kinds)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise TypeError(f"{where}: {option} takes exception classes, not {kind!r}")
    return kinds


def check_declaration(declared: JobType[..., Any]) -> None:
    """Validate the options of ``@job``.

    Raises ``TypeError`` or ``ValueError`` for a wrong type or value, ``ValueError`` for two options
    that contradict each other, :class:`EnqueueError` for an option that ``using()`` takes too.
    """
    where = f"@job {declared.name}"
    check_rules(OF_JOB_TYPES, declared, where)
    if declared.delivery == "exactly_once" and declared.is_async:
        raise ValueError(
            f"{where}: exactly_once needs a plain function, not async def: "
            "Django's transactions are not async"
        )
    _check_budgets(declared, where)
    _check_versions(declared, where)
    _check_aliases(declared, where)
    _check_retention(declared, where)
    check_gates(declared, where)
    check_options(declared, where)
    for problem in contradictions(declared):
        raise ValueError(f"{where}: {problem}")


def _check_budgets(declared: JobType[..., Any], where: str) -> None:
    for kind, budget in declared.error_budgets.items():
        exception_classes(kind, "error_budgets", where)
        if not (is_whole(budget) and budget >= 1):
            raise ValueError(
                f"{where}: error_budgets has a whole number of failures of at least 1 for "
                f"{kind.__name__}, not {budget!r}"
            )


def _check_aliases(declared: JobType[..., Any], where: str) -> None:
    for alias in declared.aliases:
        _check_name(alias, f"{where}: an alias")
        if alias == declared.name:
            raise ValueError(
                f"{where}: the alias {alias!r} is the present name; an alias is a former one"
            )


def _check_retention(declared: JobType[..., Any], where: str) -> None:
    if not declared.retention:
        return
    from ..domain.retention import kept_by_status

    try:
        kept_by_status(declared.retention)
    except ValueError as error:
        raise ValueError(f"{where}: retention: {error}") from None
    if declared.retention.keys() - {"dead"}:
        raise ValueError(
            f"{where}: retention limits dead jobs only; its queue says how long the others are kept"
        )


def _check_versions(declared: JobType[..., Any], where: str) -> None:
    version, upgrades = declared.version, declared.upgrades
    for old, upgrade in upgrades.items():
        if not (is_whole(old) and old >= 1):
            wrong = ValueError if is_whole(old) else TypeError
            raise wrong(
                f"{where}: a key of upgrades is an old version, a whole number from 1, not {old!r}"
            )
        if old >= version:
            raise ValueError(
                f"{where}: upgrades[{old}] makes version {old + 1}, but version={version}: "
                f"give version={old + 1} or remove it"
            )
        if not callable(upgrade):
            raise TypeError(f"{where}: upgrades[{old}] is a function, not {upgrade!r}")
        if problem := why_not(upgrade, ("payload",)):
            raise TypeError(f"{where}: upgrades[{old}] {problem}")
    for old in range(min(upgrades, default=version), version):
        if old not in upgrades:
            raise ValueError(
                f"{where}: upgrades[{old}] is missing, the upgrade from version {old} to {old + 1}"
            )


def check_options(chosen: JobType[..., Any], where: str | None = None) -> None:
    """Validate the options that ``using()`` takes. Raises :class:`EnqueueError`.

    ``where`` begins the message; the default is the name of the job type.
    """
    where = where or chosen.name
    check_rules(OF_REQUESTS, chosen, where)
    check_due(chosen.run_at, chosen.delay_seconds, where)
    if chosen.idempotency_key is not None:
        check_key(chosen.idempotency_key, where)
    check_number(chosen.tags, where)


def check_due(run_at: datetime | None, seconds: float, where: str) -> None:
    """Raise :class:`EnqueueError` unless ``run_at`` and a ``delay`` of ``seconds`` can be such."""
    if not 0 <= _number(seconds) <= LONGEST_AGE:
        raise EnqueueError(
            f"{where}: delay is 0 or more {_up_to(LONGEST_AGE)}, or a timedelta, not {seconds!r}"
        )
    if run_at is not None:
        if not isinstance(run_at, datetime):
            raise EnqueueError(f"{where}: run_at is a datetime, not {run_at!r}")
        if timezone.is_naive(run_at):
            raise EnqueueError(
                f"{where}: run_at needs a time zone, and {run_at!r} has none: "
                "use timezone.make_aware(...)"
            )
        if abs((run_at - timezone.now()).total_seconds()) > LONGEST_AGE:
            raise EnqueueError(
                f"{where}: run_at is within {LONGEST_AGE / 86_400:,.0f} days of now, not {run_at}"
            )


def check_key(key: str, where: str) -> None:
    """Raise :class:`EnqueueError` unless ``key`` can be an idempotency key."""
    if problem := key_problem(key, "an idempotency key", "idempotency_key"):
        raise EnqueueError(f"{where}: {problem}")
    if KEY_SEPARATOR in key:
        problem = f"an idempotency key has no {KEY_SEPARATOR!r}, which key_scope='tenant' writes"
        raise EnqueueError(f"{where}: {problem}")


def given_arguments(args: Sequence[Any], names: Collection[str]) -> str:
    """Which arguments a call got. Never their values, which may be secret."""
    positional = [f"{len(args)} positional argument{'s' * (len(args) > 1)}"] if args else []
    return ", ".join([*positional, *names]) or "no arguments"


def known_queue(name: str, where: str) -> Queue:
    queue = Queue.objects.recent(name, conf().database)
    if queue is None:
        raise unknown_queue(name, where)
    return queue


def unknown_queue(name: Any, where: str) -> UnknownQueue:
    names = list(Queue.objects.names())
    listed = f"known are: {', '.join(names) or 'none (run migrate)'}"
    return UnknownQueue(
        f"{where}: no queue is named {name!r}{hint(name, names, listed)}. "
        'Queues come from DJANGO_JOBS["QUEUES"] after migrate, or from the admin'
    )
