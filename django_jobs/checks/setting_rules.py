"""A rule and an example for each value of ``DJANGO_JOBS``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.module_loading import import_string

from ..conf import RUN_LOGS, Conf
from ..domain.alerts import HOLD_SECONDS, MAILTO, WEB
from ..domain.backoff import Backoff
from ..domain.durations import LONGEST_TIMEOUT, seconds_of
from ..domain.links import link_problem
from ..domain.numbers import STRICT_WEIGHT
from ..domain.retention import NOT_OF_JOBS, Period, kept_by_status
from ..models.queue import A_QUEUE_NAME, OnFull, is_queue_name

Problem = str | None
"""The end of the message "… is not a dict"; None if the value is valid."""
Rule = Callable[[Any], Problem]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A key of the setting that has a dict of options for each name. ``noun`` is what it names;
    ``needs`` are the options that mean nothing without another one. The option ``required`` cannot
    be left out, and no message shows the value of the option ``secret``."""

    noun: str
    name: Rule
    name_example: str
    example: str
    rules: Mapping[str, Rule]
    examples: Mapping[str, str]
    needs: Mapping[str, str] = field(default_factory=dict)
    required: str = ""
    secret: str = ""


def rule(is_good: Callable[[Any], bool], problem: str) -> Rule:
    return lambda value: None if is_good(value) else problem


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def count_below(limit: int) -> Rule:
    return rule(
        lambda value: is_number(value) and isinstance(value, int) and 1 <= value < limit,
        f"not a whole number from 1 to {limit - 1:,}",
    )


def queue_name(value: Any) -> Problem:
    return None if is_queue_name(value) else f"not {A_QUEUE_NAME}"


def _retention(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    try:
        kept_by_status(value)
    except ValueError as error:
        return f"wrong ({error})"
    return None


def _retention_of_all(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    for key in NOT_OF_JOBS:
        try:
            seconds_of(value.get(key))
        except ValueError as error:
            return f'wrong ("{key}": {error})'
    return _retention({key: kept for key, kept in value.items() if key not in NOT_OF_JOBS})


_issue_url = rule(
    lambda value: (
        isinstance(value, str)
        and (not value or (value.startswith(("https://", "http://")) and "{title}" in value))
    ),
    "not an address that begins with https:// and has {title} in it",
)


def _history(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    unknown = value.keys() - Conf().history
    if unknown:
        return f'wrong (its key may be "partition", not {", ".join(sorted(map(repr, unknown)))})'
    if value.get("partition", Period.DAY) not in list(Period):
        return f'wrong ("partition" must be day, week or month, not {value["partition"]!r})'
    return None


def _quarantine(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    unknown = value.keys() - Conf().quarantine
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        return f'wrong (its keys may be "crashes" and "seconds", not {names})'
    crashes, seconds = value.get("crashes"), value.get("seconds", 1)
    if crashes is not None and count_below(2**31)(crashes):
        must_be = f"a whole number from 1 to {2**31 - 1:,}, or None"
        return f'wrong ("crashes" must be {must_be}, not {crashes!r})'
    if _seconds(seconds):
        return f'wrong ("seconds" must be a positive number below {1e9:,.0f}, not {seconds!r})'
    return None


def _run_logs(value: Any) -> Problem:
    options = value if isinstance(value, Mapping) else {} if value is None else {"level": value}
    unknown = options.keys() - RUN_LOGS
    if unknown:
        names = ", ".join(sorted(map(repr, unknown)))
        return f'wrong (its keys may be "level", "lines" and "bytes", not {names})'
    level = options.get("level", "INFO")
    if isinstance(level, bool) or not (
        isinstance(level, int)
        or (isinstance(level, str) and level in logging.getLevelNamesMapping())
    ):
        return f"wrong (a level of logging is expected, not {level!r})"
    for key, limit in (("lines", 10_001), ("bytes", 2**22 + 1)):
        if problem := count_below(limit)(options.get(key, 1)):
            return f'wrong ("{key}" is {problem})'
    return None


def _http(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    if unknown := value.keys() - {"job_types", "authorize"}:
        names = ", ".join(sorted(map(repr, unknown)))
        return f'wrong (its keys may be "job_types" and "authorize", not {names})'
    if problem := _texts(value.get("job_types", ())):
        return f'wrong ("job_types" is {problem})'
    return 'wrong ("authorize" is not text)' if _text(value.get("authorize") or "") else None


def _links(value: Any) -> Problem:
    if isinstance(value, str):
        return None
    if not isinstance(value, list | tuple):
        return "not a list of links"
    problem = next(filter(None, map(link_problem, value)), None)
    return f"wrong ({problem})" if problem else None


def _backoff(value: Any) -> Problem:
    if isinstance(value, Backoff):
        return None
    if not isinstance(value, Mapping):
        return "not a Backoff"
    try:
        Backoff(**value)
    except (TypeError, ValueError) as error:
        return f"not a valid backoff ({error})"
    return None


def _alert_to(value: Any) -> Problem:
    if not isinstance(value, str):
        return "not text"
    if value.startswith(WEB):
        try:
            parts = urlsplit(value)
            is_good = parts.hostname and parts.username is None and parts.port != 0
        except ValueError:
            is_good = False
        spaces = any(letter.isspace() or not letter.isprintable() for letter in value)
        return None if is_good and not spaces and value.isascii() else "not an address of the web"
    if value.startswith(MAILTO):
        try:
            for address in value.removeprefix(MAILTO).split(","):
                validate_email(address.strip())
        except ValidationError:
            return "wrong (one of its mail addresses is not valid)"
        return None
    try:
        function = import_string(value)
    except Exception as error:  # of the module that is imported
        return f"a path that cannot be imported ({type(error).__name__})"
    return None if callable(function) else "the path of something that cannot be called"


def _alert_on(value: Any) -> Problem:
    if not isinstance(value, list | tuple | set | frozenset) or not value:
        return "not a list of situations"
    unknown = [repr(one) for one in value if one not in [*HOLD_SECONDS]]
    return f"wrong (no situation is {unknown[0]})" if unknown else None


_seconds = rule(
    lambda value: is_number(value) and 0 < value < 1e9, "not a positive number below 1,000,000,000"
)
_text = rule(lambda value: isinstance(value, str), "not text")
_token = rule(
    # A file that it is read from ends with a line break, and no header of a request does.
    lambda value: isinstance(value, str) and value == value.strip(),
    "not text without spaces and line breaks around it",
)
_texts = rule(
    lambda value: (
        isinstance(value, list | tuple | set | frozenset)
        and all(isinstance(item, str) for item in value)
    ),
    "not a list of text",
)
_mapping = rule(lambda value: isinstance(value, Mapping), "not a dict")

RULES: dict[str, Rule] = {
    "DATABASE": _text,
    **dict.fromkeys(("QUEUES", "RESOURCES", "TENANTS", "ALERTS"), _mapping),
    **dict.fromkeys(("LEASE_SECONDS", "POLL_SECONDS", "SWEEP_SECONDS"), _seconds),
    **dict.fromkeys(
        ("HEARTBEAT_SECONDS", "ADMIN_STATEMENT_TIMEOUT"),
        lambda value: None if value is None else _seconds(value),
    ),
    "MAX_PAYLOAD_BYTES": count_below(2**28),
    "MAX_RESULT_BYTES": count_below(2**28),
    "CODE_VERSION": rule(
        lambda value: isinstance(value, str) and len(value) <= 100,
        "not text of at most 100 characters",
    ),
    "METRICS_TOKEN": _token,
    "ISSUE_URL": _issue_url,
    "RETENTION": _retention_of_all,
    "HISTORY": _history,
    "CANCEL_GRACE_SECONDS": rule(
        lambda value: is_number(value) and 0 <= value < 1e9,
        "not a number of seconds from 0 to 1,000,000,000",
    ),
    "QUARANTINE": _quarantine,
    "RUN_LOGS": _run_logs,
    "HTTP": _http,
    **dict.fromkeys(
        (
            *("SCHEDULES", "TOTALS", "RUNSERVER", "IMMEDIATE", "CHECK_ANNOTATIONS"),
            *("RUN_COST", "COUNT_QUERIES"),
        ),
        rule(lambda value: isinstance(value, bool), "not True or False"),
    ),
    "REDACT_KEYS": _texts,
    "LINKS": _links,
    "ADMIN_SCOPE": _text,
    "HOOKS": rule(
        lambda value: isinstance(value, list | tuple) and _texts(value) is None,
        "not a list of dotted paths",
    ),
}
QUEUE_RULES: dict[str, Rule] = {
    "max_concurrency": count_below(2**31),
    "max_backlog": count_below(2**31),
    "on_full": rule(lambda value: value in OnFull.values, 'not "raise" or "drop_lowest"'),
    "strict": rule(lambda value: isinstance(value, bool), "not True or False"),
    "priority_weight": rule(
        lambda value: is_number(value) and 0 <= value <= STRICT_WEIGHT,
        f"not a number from 0 to {STRICT_WEIGHT:,.0f}",
    ),
    "max_attempts": count_below(2**15),
    "backoff": _backoff,
    "timeout": rule(
        lambda value: is_number(value) and 0 < value <= LONGEST_TIMEOUT,
        f"not a positive number of seconds, at most {LONGEST_TIMEOUT:,.0f}",
    ),
    "retention": _retention,
    "slo_seconds": rule(
        lambda value: is_number(value) and 0 < value <= LONGEST_TIMEOUT,
        f"not a positive number of seconds, at most {LONGEST_TIMEOUT:,.0f}",
    ),
    "slo_target": rule(
        lambda value: is_number(value) and 0.01 <= value <= 0.99999,
        "not a number from 0.01 to 0.99999",
    ),
}

RETENTION_EXAMPLE = (
    '{"succeeded": "7d", "cancelled": None, "dead": {"age": "180d", "number": 10_000}}, '
    "where None keeps jobs forever"
)
EXAMPLES = {
    "DATABASE": '"default"',
    "QUEUES": '{"default": {}, "emails": {"max_concurrency": 20}}',
    "RESOURCES": '{"stripe": {"max_concurrency": 10, "rate": "50/s"}}',
    "TENANTS": '{"acme": {"weight": 3}}',
    "ALERTS": '{"ops": {"to": "mailto:ops@example.com"}}',
    "LEASE_SECONDS": "30, a number of seconds",
    "HEARTBEAT_SECONDS": "7.5, a number of seconds, or leave it out",
    "ADMIN_STATEMENT_TIMEOUT": "3, a number of seconds, or None for no limit",
    "POLL_SECONDS": "1, a number of seconds",
    "SWEEP_SECONDS": "5, a number of seconds",
    "MAX_PAYLOAD_BYTES": "1_048_576, a number of bytes",
    "MAX_RESULT_BYTES": "1_048_576, a number of bytes",
    "CODE_VERSION": '"2026.11"',
    "METRICS_TOKEN": 'env("METRICS_TOKEN"), a long random text',
    "ISSUE_URL": '"https://github.com/acme/shop/issues/new?title={title}&body={body}"',
    "RETENTION": RETENTION_EXAMPLE,
    "HISTORY": '{"partition": "day"}, or "week" or "month"',
    "CANCEL_GRACE_SECONDS": "5, a number of seconds",
    "QUARANTINE": '{"crashes": 10, "seconds": 600}, or {"crashes": None} to quarantine none',
    "RUNSERVER": "True in development",
    "IMMEDIATE": "True in the settings of tests or of development",
    "SCHEDULES": "True, or False on workers that fire no schedules",
    "TOTALS": "True, or False where nobody reads metrics",
    "CHECK_ANNOTATIONS": "True, or False",
    "RUN_COST": "True, or False",
    "COUNT_QUERIES": "True, or False",
    "RUN_LOGS": '"INFO", or {"level": "INFO", "lines": 200, "bytes": 65_536}',
    "HTTP": '{"job_types": ["shop.send_report"]}',
    "REDACT_KEYS": '["password", "token"]',
    "ADMIN_SCOPE": '"mysite.jobs.scope"',
    "LINKS": '[{"label": "Logs", "url": "https://logs.example.com/?job={job_id}"}]',
    "HOOKS": '["mysite.hooks.locale", "mysite.hooks.tenant"]',
}
QUEUE_EXAMPLES = {
    "max_concurrency": "20, or leave it out for no limit",
    "max_backlog": "100_000, or leave it out for no limit",
    "on_full": '"drop_lowest", or leave it out to refuse new jobs',
    "strict": "True",
    "priority_weight": "60, the seconds of waiting that one point of priority is worth",
    "max_attempts": "5",
    "backoff": "Backoff.fixed(5) or Backoff.exponential(base=2), from django_jobs import Backoff",
    "timeout": "30, a number of seconds, or leave it out for no limit",
    "retention": RETENTION_EXAMPLE,
    "slo_seconds": "30, a number of seconds, or leave it out for no objective",
    "slo_target": "0.99, the share of the jobs that should start in time",
}
QUEUES = Section(
    noun="queue",
    name=queue_name,
    name_example='"emails"',
    example='{"max_concurrency": 20}, or {} for a queue without options',
    rules=QUEUE_RULES,
    examples=QUEUE_EXAMPLES,
)
ALERTS = Section(
    noun="alert",
    name=rule(
        lambda value: isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable(),
        "not text of 1 to 100 characters",
    ),
    name_example='"ops"',
    example='{"to": "mailto:ops@example.com"}',
    rules={"to": _alert_to, "on": _alert_on, "at_most_per_hour": count_below(3_601)},
    examples={
        "to": '"mailto:ops@example.com", "https://hooks.example.com/…" or "mysite.alerts.send"',
        "on": f"({', '.join(map(repr, HOLD_SECONDS))}), or leave it out for all",
        "at_most_per_hour": "20, a number of messages",
    },
    required="to",
    secret="to",  # noqa: S106 — the name of an option
)
