"""A rule and an example for each value of ``DJANGO_JOBS``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.utils.module_loading import import_string

from ..domain.backoff import Backoff
from ..domain.callbacks import HOLD_SECONDS, MAILTO, WEB, hosts_problem
from ..domain.hints import why_not
from ..domain.links import link_problem
from ..domain.numbers import LONGEST_TIMEOUT, STRICT_WEIGHT, seconds_of
from ..domain.retention import NOT_OF_JOBS, Period, kept_by_status
from ..models.queue import A_QUEUE_NAME, OnFull, SloSince, is_queue_name

Problem = str | None
"""The end of the message "… is not a dict"; None if the value is valid."""
Rule = Callable[[Any], Problem]


class Option(NamedTuple):
    """What a value has to be, and how to write one."""

    rule: Rule
    example: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """A key of the setting that has a dict of options for each name. ``noun`` is what it names. The
    option ``required`` cannot be left out, and no message shows the value of the option
    ``secret``."""

    noun: str
    name: Rule
    name_example: str
    example: str
    rules: Mapping[str, Option]
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


def number(low: float, high: float, of: str = "") -> Rule:
    return rule(
        lambda value: is_number(value) and low <= value <= high,
        f"not a number {of}from {low:,.10g} to {high:,.10g}",
    )


def queue_name(value: Any) -> Problem:
    return None if is_queue_name(value) else f"not {A_QUEUE_NAME}"


def or_none(given: Rule) -> Rule:
    return lambda value: None if value is None else given(value)


def refused_by(read: Callable[[Any], object]) -> Rule:
    """What ``read`` says of a value for which it raises ``ValueError``."""

    def problem(value: Any) -> Problem:
        try:
            read(value)
        except ValueError as error:
            return f"wrong ({error})"
        return None

    return problem


def dict_of(rules: Mapping[str, Rule]) -> Rule:
    """A dict with these keys, each of which may be left out."""

    def problem(value: Any) -> Problem:
        if not isinstance(value, Mapping):
            return "not a dict"
        if unknown := value.keys() - rules.keys():
            *more, last = [f'"{key}"' for key in rules]
            may_be = f"keys may be {', '.join(more)} and {last}" if more else f"key may be {last}"
            return f"wrong (its {may_be}, not {', '.join(sorted(map(repr, unknown)))})"
        for key, rule in rules.items():
            if key in value and (problem := rule(value[key])):
                return f'wrong ("{key}" is {problem})'
        return None

    return problem


_seconds = rule(
    lambda value: is_number(value) and 0 < value < 1e9, "not a positive number below 1,000,000,000"
)
_timeout = rule(
    lambda value: is_number(value) and 0 < value <= LONGEST_TIMEOUT,
    f"not a positive number of seconds, at most {LONGEST_TIMEOUT:,.0f}",
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
_is_bool = rule(lambda value: isinstance(value, bool), "not True or False")


def _retention(value: Any) -> Problem:
    return _mapping(value) or refused_by(kept_by_status)(value)


def _retention_of_all(value: Any) -> Problem:
    if not isinstance(value, Mapping):
        return "not a dict"
    for key in NOT_OF_JOBS:
        try:
            seconds_of(value.get(key))
        except ValueError as error:
            return f'wrong ("{key}": {error})'
    return refused_by(partial(kept_by_status, others=NOT_OF_JOBS))(value)


_issue_url = rule(
    lambda value: (
        isinstance(value, str)
        and (not value or (value.startswith(("https://", "http://")) and "{title}" in value))
    ),
    "not an address that begins with https:// and has {title} in it",
)


_history = dict_of(
    {"partition": rule(lambda value: value in list(Period), "not day, week or month")}
)
_quarantine = dict_of({"crashes": or_none(count_below(2**31)), "seconds": _seconds})
_level = rule(
    lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, str) and value in logging.getLevelNamesMapping())
    ),
    "not a level of logging",
)
_of_run_logs = dict_of(
    {"level": _level, "lines": count_below(10_001), "bytes": count_below(2**22 + 1)}
)


def _run_logs(value: Any) -> Problem:
    is_level = not (value is None or isinstance(value, Mapping))
    return _of_run_logs({"level": value} if is_level else value or {})


_of_storage = dict_of(
    {
        "alias": rule(
            lambda value: isinstance(value, str) and value in settings.STORAGES,
            "not one of STORAGES",
        ),
        "above_bytes": or_none(count_below(2**28)),
    }
)


def _storage(value: Any) -> Problem:
    return _of_storage({"alias": "default", **value} if isinstance(value, Mapping) else value)


_of_http = dict_of({"job_types": _texts, "authorize": or_none(_text), "callback_hosts": _mapping})


def _http(value: Any) -> Problem:
    if problem := _of_http(value):
        return problem
    problem = hosts_problem(value.get("callback_hosts", {}))
    return f'wrong ("callback_hosts": {problem})' if problem else None


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
    problem = why_not(function, ("message",))
    return f"wrong (its function {problem})" if problem else None


def _alert_on(value: Any) -> Problem:
    if not isinstance(value, list | tuple | set | frozenset) or not value:
        return "not a list of situations"
    unknown = [repr(one) for one in value if one not in [*HOLD_SECONDS]]
    return f"wrong (no situation is {unknown[0]})" if unknown else None


RETENTION_EXAMPLE = (
    '{"succeeded": "7d", "cancelled": None, "dead": {"age": "180d", "number": 10_000}}, '
    "where None keeps jobs forever"
)
RULES: dict[str, Option] = {
    "DATABASE": Option(_text, '"default"'),
    "QUEUES": Option(_mapping, '{"default": {}, "emails": {"max_concurrency": 20}}'),
    "RESOURCES": Option(_mapping, '{"stripe": {"max_concurrency": 10, "rate": "50/s"}}'),
    "TENANTS": Option(_mapping, '{"acme": {"weight": 3}}'),
    "ALERTS": Option(_mapping, '{"ops": {"to": "mailto:ops@example.com"}}'),
    "LEASE_SECONDS": Option(_seconds, "30, a number of seconds"),
    "POLL_SECONDS": Option(_seconds, "1, a number of seconds"),
    "SWEEP_SECONDS": Option(_seconds, "5, a number of seconds"),
    "HEARTBEAT_SECONDS": Option(or_none(_seconds), "7.5, a number of seconds, or leave it out"),
    "ADMIN_STATEMENT_TIMEOUT": Option(
        or_none(_seconds), "3, a number of seconds, or None for no limit"
    ),
    "MAX_PAYLOAD_BYTES": Option(count_below(2**28), "1_048_576, a number of bytes"),
    "MAX_RESULT_BYTES": Option(count_below(2**28), "1_048_576, a number of bytes"),
    "CODE_VERSION": Option(
        rule(
            lambda value: isinstance(value, str) and len(value) <= 100,
            "not text of at most 100 characters",
        ),
        '"2026.11"',
    ),
    "METRICS_TOKEN": Option(_token, 'env("METRICS_TOKEN"), a long random text'),
    "ISSUE_URL": Option(
        _issue_url, '"https://github.com/acme/shop/issues/new?title={title}&body={body}"'
    ),
    "RETENTION": Option(_retention_of_all, RETENTION_EXAMPLE),
    "HISTORY": Option(_history, '{"partition": "day"}, or "week" or "month"'),
    "CANCEL_GRACE_SECONDS": Option(
        rule(
            lambda value: is_number(value) and 0 <= value < 1e9,
            "not a number of seconds from 0 to 1,000,000,000",
        ),
        "5, a number of seconds",
    ),
    "QUARANTINE": Option(
        _quarantine, '{"crashes": 10, "seconds": 600}, or {"crashes": None} to quarantine none'
    ),
    "RUN_LOGS": Option(_run_logs, '"INFO", or {"level": "INFO", "lines": 200, "bytes": 65_536}'),
    "STORAGE": Option(or_none(_storage), '{"alias": "default", "above_bytes": 100_000}'),
    "HTTP": Option(_http, '{"job_types": ["shop.send_report"]}'),
    "SCHEDULES": Option(_is_bool, "True, or False on workers that fire no schedules"),
    "TOTALS": Option(_is_bool, "True, or False where nobody reads metrics"),
    "RUNSERVER": Option(_is_bool, "True in development"),
    "IMMEDIATE": Option(_is_bool, "True in the settings of tests or of development"),
    "CHECK_ANNOTATIONS": Option(_is_bool, "True, or False"),
    "RUN_COST": Option(_is_bool, "True, or False"),
    "COUNT_QUERIES": Option(_is_bool, "True, or False"),
    "REDACT_KEYS": Option(_texts, '["password", "token"]'),
    "LINKS": Option(_links, '[{"label": "Logs", "url": "https://logs.example.com/?job={job_id}"}]'),
    "ADMIN_SCOPE": Option(_text, '"mysite.jobs.scope"'),
    "HOOKS": Option(
        rule(
            lambda value: isinstance(value, list | tuple) and _texts(value) is None,
            "not a list of dotted paths",
        ),
        '["mysite.hooks.locale", "mysite.hooks.tenant"]',
    ),
}
OBJECTIVE = {
    "slo_seconds": Option(_timeout, "30, a number of seconds, or leave it out for no objective"),
    "slo_target": Option(
        number(0.01, 0.99999), "0.99, the share of the jobs that should start in time"
    ),
}
QUEUES = Section(
    noun="queue",
    name=queue_name,
    name_example='"emails"',
    example='{"max_concurrency": 20}, or {} for a queue without options',
    rules={
        "max_concurrency": Option(count_below(2**31), "20, or leave it out for no limit"),
        "max_backlog": Option(count_below(2**31), "100_000, or leave it out for no limit"),
        "on_full": Option(
            rule(lambda value: value in OnFull.values, 'not "raise" or "drop_lowest"'),
            '"drop_lowest", or leave it out to refuse new jobs',
        ),
        "strict": Option(_is_bool, "True"),
        "priority_weight": Option(
            number(0, STRICT_WEIGHT),
            "60, the seconds of waiting that one point of priority is worth",
        ),
        "max_attempts": Option(count_below(2**15), "5"),
        "backoff": Option(
            _backoff,
            "Backoff.fixed(5) or Backoff.exponential(base=2), from django_jobs import Backoff",
        ),
        "timeout": Option(_timeout, "30, a number of seconds, or leave it out for no limit"),
        "retention": Option(_retention, RETENTION_EXAMPLE),
        **OBJECTIVE,
        "slo_since": Option(
            rule(lambda value: value in SloSince.values, 'not "due" or "ready"'),
            '"ready", or leave it out to count from the due time',
        ),
    },
)
ALERTS = Section(
    noun="alert",
    name=rule(
        lambda value: isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable(),
        "not text of 1 to 100 characters",
    ),
    name_example='"ops"',
    example='{"to": "mailto:ops@example.com"}',
    rules={
        "to": Option(
            _alert_to,
            '"mailto:ops@example.com", "https://hooks.example.com/…" or "mysite.alerts.send"',
        ),
        "on": Option(_alert_on, f"({', '.join(map(repr, HOLD_SECONDS))}), or leave it out for all"),
        "at_most_per_hour": Option(count_below(3_601), "20, a number of messages"),
    },
    required="to",
    secret="to",  # noqa: S106 — the name of an option
)
