"""A rule and an example for each option of ``RESOURCES`` and ``TENANTS``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..domain.concurrency import name_problem
from ..domain.numbers import rate_of
from ..models.tenant import HIGHEST_WEIGHT, LONGEST_TENANT, LOWEST_WEIGHT
from .setting_rules import Problem, Rule, Section, count_below, is_number, queue_name, rule

BREAKER_EXAMPLE = '{"failures": 20, "window": 60, "open_for": 30}'


def _rate(value: Any) -> Problem:
    try:
        rate_of(value)
    except ValueError as error:
        return f"wrong ({error})"
    return None


def _number(is_good: Callable[[float], bool], meant: str) -> Rule:
    return rule(lambda value: is_number(value) and is_good(value), f"not a number {meant}")


_seconds = _number(lambda value: 1 <= value <= 86_400, "of seconds from 1 to 86,400")
BREAKER_RULES = {"failures": count_below(2**31), "window": _seconds, "open_for": _seconds}


def _breaker(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    if unknown := value.keys() - BREAKER_RULES.keys():
        names = ", ".join(sorted(map(repr, unknown)))
        return f'wrong (its keys may be "failures", "window" and "open_for", not {names})'
    if "failures" not in value:
        return 'wrong ("failures" is missing, the number at which it opens)'
    for option, given in value.items():
        if problem := BREAKER_RULES[option](given):
            return f'wrong ("{option}" is {problem})'
    return None


RESOURCES = Section(
    noun="resource",
    name=queue_name,
    name_example='"stripe"',
    example='{"max_concurrency": 10, "rate": "50/s"}, or {} for a resource without a limit',
    rules={
        "max_concurrency": count_below(2**31),
        "max_waiting": count_below(2**31),
        "rate": _rate,
        "burst": count_below(2**31),
        "breaker": _breaker,
        "retry_budget": _number(lambda value: 0 <= value <= 1, "from 0 to 1"),
    },
    examples={
        "max_concurrency": "10, or leave it out for no limit",
        "max_waiting": "1_000, or leave it out for no limit",
        "rate": '"50/s", "100/m", "3000/h" or "10/5s", or leave it out for no limit',
        "burst": '50 with a rate of "50/s", or leave it out for as many as in a period of the rate',
        "breaker": f"{BREAKER_EXAMPLE}, or leave it out for none",
        "retry_budget": "0.2, the share of starts that may be retries, or leave it out",
    },
    needs={"burst": "rate"},
)
TENANTS = Section(
    noun="tenant",
    name=rule(
        lambda value: name_problem(value, LONGEST_TENANT) is None,
        f"not text of 1 to {LONGEST_TENANT} characters without control characters",
    ),
    name_example='"acme"',
    example='{"weight": 3, "max_concurrency": 20}, or {} for the defaults',
    rules={
        "weight": _number(
            lambda value: LOWEST_WEIGHT <= value <= HIGHEST_WEIGHT,
            f"from {LOWEST_WEIGHT} to {HIGHEST_WEIGHT:,}",
        ),
        "max_concurrency": count_below(2**31),
        "max_waiting": count_below(2**31),
    },
    examples={
        "weight": "3, for three times the share of a tenant with 1",
        "max_concurrency": "20, or leave it out for no limit",
        "max_waiting": "1_000, or leave it out for no limit",
    },
)
