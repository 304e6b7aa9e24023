"""A rule and an example for each option of ``RESOURCES`` and ``TENANTS``."""

from __future__ import annotations

from typing import Any

from ..domain.concurrency import name_problem
from ..domain.numbers import rate_of
from ..models.resource import HIGHEST_WEIGHT, LONGEST_TENANT, LOWEST_WEIGHT
from .setting_rules import (
    OBJECTIVE,
    Option,
    Problem,
    Section,
    count_below,
    dict_of,
    number,
    queue_name,
    refused_by,
    rule,
)

BREAKER_EXAMPLE = '{"failures": 20, "window": 60, "open_for": 30}'


LIMITS = {
    "max_waiting": Option(count_below(2**31), "1_000, or leave it out for no limit"),
    "rate": Option(
        refused_by(rate_of), '"50/s", "100/m", "3000/h" or "10/5s", or leave it out for no limit'
    ),
    "burst": Option(
        count_below(2**31),
        '50 with a rate of "50/s", or leave it out for as many as in a period of the rate',
    ),
}
_seconds = number(1, 86_400, "of seconds ")
_of_breaker = dict_of({"failures": count_below(2**31), "window": _seconds, "open_for": _seconds})


def _breaker(value: Any) -> Problem:
    missing = 'wrong ("failures" is missing, the number at which it opens)'
    return _of_breaker(value) or (None if "failures" in value else missing)


RESOURCES = Section(
    noun="resource",
    name=queue_name,
    name_example='"stripe"',
    example='{"max_concurrency": 10, "rate": "50/s"}, or {} for a resource without a limit',
    rules={
        "max_concurrency": Option(count_below(2**31), "10, or leave it out for no limit"),
        **LIMITS,
        "breaker": Option(_breaker, f"{BREAKER_EXAMPLE}, or leave it out for none"),
        "retry_budget": Option(
            number(0, 1), "0.2, the share of starts that may be retries, or leave it out"
        ),
    },
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
        "weight": Option(
            number(LOWEST_WEIGHT, HIGHEST_WEIGHT), "3, for three times the share of a tenant with 1"
        ),
        "max_concurrency": Option(count_below(2**31), "20, or leave it out for no limit"),
        **LIMITS,
        **OBJECTIVE,
    },
)
