"""System checks of the settings, the job types and the database. Their ids never change."""

from __future__ import annotations

import inspect
import json
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.db.backends.utils import CursorWrapper
from django.utils.module_loading import import_string

from .. import registry
from ..conf import KEYS, conf, raw
from ..domain.errors import ErrorReport
from ..domain.hints import did_you_mean, why_not
from ..models import Job
from ..models.named_row import NEEDS
from . import limit_rules, setting_rules
from .setting_rules import RULES, Section

OLDEST_POSTGRESQL = 15
SERVER = "SELECT current_setting('server_version_num'), current_setting('server_encoding')"
BEATS_PER_LEASE = 3
MOST_NAMED = 10
SECRET = {"METRICS_TOKEN", "ALERTS", "HTTP"}
"""What no message shows."""
Users = defaultdict[str, list[str]]
"""The names of those that use a queue or a resource, by what they are."""
SECTIONS = {
    "QUEUES": setting_rules.QUEUES,
    "RESOURCES": limit_rules.RESOURCES,
    "TENANTS": limit_rules.TENANTS,
    "ALERTS": setting_rules.ALERTS,
}


def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """Check ``DJANGO_JOBS`` without opening a connection."""
    messages = _errors()
    if not any(message.id == _id("E007") for message in messages):
        messages += _unconfigured()
    return messages


def is_wrong() -> bool:
    """Whether a check that needs the settings cannot be made. Looks at no job type."""
    return any(message.is_serious() for message in _errors())


def _errors() -> list[CheckMessage]:
    try:
        setting = raw()
    except ImproperlyConfigured as error:
        return [_error("E007", f"{error}.", 'Write DJANGO_JOBS = {"QUEUES": {"default": {}}}.')]
    messages = [*_unknown(setting, KEYS, "DJANGO_JOBS"), *_bad_values(setting)]
    if not any(message.id == _id("E007") for message in messages):
        messages += [*_bad_lease(), *_bad_database(), *_bad_hooks()]
    return messages


def check_time_zone(**kwargs: Any) -> list[CheckMessage]:
    """Check ``USE_TZ``: without it a due time depends on the machine's time zone."""
    off = _error("E004", "django_jobs needs USE_TZ = True.", "Set USE_TZ = True in the settings.")
    return [] if settings.USE_TZ else [off]


def check_job_types(**kwargs: Any) -> list[CheckMessage]:
    """Check that no two handlers share a name or an alias: a row could mean either."""
    return [
        _error(
            "E005",
            f"The job type {name!r} is declared twice: by {first} and by {second}.",
            "Rename one of them with @job(name=...), or drop the alias.",
        )
        for name, first, second in registry.clashes()
    ]


def check_immediate(**kwargs: Any) -> list[CheckMessage]:
    """Check ``IMMEDIATE``, with ``check --deploy``: requests would run their jobs."""
    if is_wrong() or not conf().immediate:
        return []
    text = f"{_lookup('IMMEDIATE')} is on: each request waits for its jobs, and no worker is woken."
    hint = "Leave it out of the settings for production, and run jobworker."
    return [Warning(text, hint=hint, id=_id("W005"))]


def check_timeouts(**kwargs: Any) -> list[CheckMessage]:
    """Name the job types of the project without a time-out, with ``check --deploy``: a handler of
    them that hangs keeps its thread."""
    if is_wrong():
        return []
    limited = {name for name, options in conf().queues.items() if options.get("timeout")}
    names = [
        name
        for name, one in ((name, registry.get(name)) for name in sorted(registry.names()))
        if not (one.timeout or one.silence_timeout or one.queue in limited)
        and not one.handler.__module__.startswith("django_jobs.")
    ]
    if not names:
        return []
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return [
        Info(
            f"No time-out ends a handler that hangs of: {', '.join(names[:MOST_NAMED])}{more}.",
            hint='Write @job(timeout=60), or "timeout" on its queue in '
            f"{_lookup('QUEUES')}. If the queue has one in the admin, or they may take any time, "
            f"add {_id('I001')!r} to SILENCED_SYSTEM_CHECKS.",
            id=_id("I001"),
        )
    ]


def check_run_logs(**kwargs: Any) -> list[CheckMessage]:
    """Check that a logger passes on lines of the level that ``RUN_LOGS`` keeps: by default the root
    logger of Python takes warnings alone."""
    if is_wrong():
        return []
    if (kept := conf().run_logs) is None:
        return []
    loggers = (settings.LOGGING or {}).get("loggers", {}).values()
    levels = [_number(one["level"]) for one in loggers if "level" in one]
    if min([logging.getLogger().level, *levels]) <= _number(kept["level"]):
        return []
    return [
        Warning(
            f"No logger passes on lines of the level {kept['level']}, which "
            f"{_lookup('RUN_LOGS')} keeps: no run will have them.",
            hint='Write LOGGING = {"version": 1, "root": {"level": "INFO"}}, or give the loggers '
            "of the project a level.",
            id=_id("W007"),
        )
    ]


def _number(level: int | str) -> int:
    named = logging.getLevelNamesMapping()
    return level if isinstance(level, int) else named.get(level, logging.CRITICAL)


def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the server's version and encoding, if Django was asked to check its database."""
    if not databases or is_wrong():
        return []
    alias = conf().database
    if alias not in databases:
        return []
    with temporary_cursor(alias) as cursor:
        cursor.execute(SERVER)
        number, encoding = cursor.fetchone()
    messages: list[CheckMessage] = []
    major = int(number) // 10_000
    if major < OLDEST_POSTGRESQL:
        hint = f"Upgrade the server: django_jobs needs PostgreSQL {OLDEST_POSTGRESQL} or later."
        messages.append(_error("E009", f"The database {alias!r} is PostgreSQL {major}.", hint))
    if encoding != "UTF8":
        text = f"The database {alias!r} has the encoding {encoding}; django_jobs needs UTF8."
        hint = "Create a database with ENCODING 'UTF8' TEMPLATE template0, and move the jobs to it."
        messages.append(_error("E013", text, hint))
    return messages


@contextmanager
def temporary_cursor(alias: str) -> Iterator[CursorWrapper]:
    """A cursor whose connection and pool are closed afterwards, unless they were open before.

    The test runner forks after the checks, and its processes would share an open socket.
    """
    connection: Any = connections[alias]
    pool = getattr(connection, "pool", None)
    idle = pool is not None and pool.closed
    try:
        with connection.temporary_connection() as cursor:
            yield cursor
    finally:
        if idle:
            connection.close_pool()


def _id(number: str) -> str:
    return f"django_jobs.{number}"


def _error(number: str, text: str, hint: str) -> CheckMessage:
    return Error(text, hint=hint, id=_id(number))


def _unknown(keys: Iterable[Any], known: Collection[str], where: str) -> Iterator[CheckMessage]:
    for key in keys:
        if key not in known:
            meant = did_you_mean(str(key), known).replace("did", "Did", 1)
            hint = " ".join(filter(None, (meant, f"Known are: {', '.join(sorted(known))}.")))
            yield _error("E002", f"{where} has the unknown key {key!r}.", hint)


def _bad_lease() -> Iterator[CheckMessage]:
    if conf().lease_seconds < BEATS_PER_LEASE * conf().beat_seconds:
        yield _error(
            "E003",
            f"The lease of {conf().lease_seconds:g} s is shorter than {BEATS_PER_LEASE} heartbeats "
            f"of {conf().beat_seconds:g} s: one late heartbeat would cost a worker its jobs.",
            "Raise LEASE_SECONDS, lower HEARTBEAT_SECONDS, or leave HEARTBEAT_SECONDS out.",
        )


def _bad_database() -> list[CheckMessage]:
    alias = conf().database
    if alias not in connections.settings:
        aliases = ", ".join(map(repr, connections.settings))
        text = f"{_lookup('DATABASE')} names {alias!r}, which is not in DATABASES."
        return [_error("E008", text, f"Known are: {aliases}.")]
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        text = f"The jobs' database, {alias!r}, is {vendor}; django_jobs needs PostgreSQL."
        hint = (
            f'Set the ENGINE of DATABASES["{alias}"] to "django.db.backends.postgresql", or name '
            f"another alias in {_lookup('DATABASE')}."
        )
        return [_error("E001", text, hint)]
    if not connections.settings[alias]["AUTOCOMMIT"]:
        text = f"AUTOCOMMIT of the jobs' database, {alias!r}, is off: jobs would not be committed."
        hint = (
            f'Remove AUTOCOMMIT from DATABASES["{alias}"]. Use transaction.atomic() where '
            "statements belong together."
        )
        return [_error("E012", text, hint)]
    return list(_bad_routers(alias))


def _bad_routers(alias: str) -> Iterator[CheckMessage]:
    hint = 'Put "django_jobs.routers.JobsRouter" first in DATABASE_ROUTERS.'
    if not router.allow_migrate_model(alias, Job):
        text = f"DATABASE_ROUTERS forbid the tables of the jobs on their alias, {alias!r}."
        yield _error("E020", text, hint)
    elif others := {router.db_for_read(Job), router.db_for_write(Job)} - {alias}:
        text = f"Job.objects uses the database {min(others)!r}, and the jobs are in {alias!r}."
        yield Warning(text, hint=hint, id=_id("W004"))


def _bad_hooks() -> Iterator[CheckMessage]:
    for path in conf().hooks:
        try:
            hook = import_string(path)
        except Exception as error:  # of the module that is imported
            reason = f"cannot be imported: {ErrorReport.of(error).summary}"
            hint = "Write the dotted path of a function, such as mysite.hooks.locale."
        else:
            reason = _why_no_hook(hook)
            hint = "A hook is a function of one argument, decorated with @contextmanager."
        if reason:
            yield _error("E019", f"The hook {path!r} in {_lookup('HOOKS')} {reason}.", hint)


def _why_no_hook(hook: Any) -> str:
    """The end of the message about something that cannot be a hook; "" for what may be one."""
    if inspect.isgeneratorfunction(hook):
        return "is a generator function without @contextmanager"
    if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
        return "is async; a hook is a plain function, also for async handlers"
    return why_not(hook, ("event",))


def _unconfigured() -> Iterator[CheckMessage]:
    """A warning for each queue and resource in use that the setting does not name."""
    queues: defaultdict[str, Users] = defaultdict(lambda: defaultdict(list))
    resources: defaultdict[str, Users] = defaultdict(lambda: defaultdict(list))
    for name in registry.names():
        job_type = registry.get(name)
        queues[job_type.queue]["job type"].append(name)
        for resource in set(job_type.resources) - registry.rates().keys():  # which makes these
            resources[resource]["job type"].append(name)
    for name, fields in sorted(registry.schedules().items()):
        if fields["queue"]:
            queues[fields["queue"]]["schedule"].append(name)
    yield from _unnamed(queues, conf().queues, "queue", "QUEUES", "W001")
    yield from _unnamed(resources, conf().resources, "resource", "RESOURCES", "W002")


def _unnamed(
    used: Mapping[str, Users], known: Collection[str], noun: str, key: str, number: str
) -> Iterator[CheckMessage]:
    for name, users in sorted(used.items()):
        if name not in known:
            listed = " and ".join(
                f"the {kind}{'s' * (len(names) > 1)} {', '.join(names)}"
                for kind, names in users.items()
            )
            yield Warning(
                f"The {noun} {name!r} is not in {_lookup(key)}. It is used by {listed}.",
                hint=f"Add {json.dumps(name)}: {{}} there and run migrate. If the {noun} was "
                f"created in the admin, add {_id(number)!r} to SILENCED_SYSTEM_CHECKS.",
                id=_id(number),
            )


def _bad_values(setting: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for key, (rule, example) in RULES.items():
        if key in setting and (problem := rule(setting[key])):
            value = "(a secret)" if key in SECRET else repr(setting[key])
            yield _bad_value(_lookup(key), value, problem, example)
    for key, section in SECTIONS.items():
        if isinstance(named := setting.get(key), Mapping):
            for name, options in named.items():
                yield from _bad_options(section, key, name, options)


def _bad_options(section: Section, key: str, name: Any, options: Any) -> Iterator[CheckMessage]:
    where = _lookup(key, name)
    if problem := section.name(name):
        what = f"The {section.noun} name in {where}"
        yield _bad_value(what, repr(name), problem, section.name_example)
    if not isinstance(options, Mapping):
        text = "(a secret)" if section.secret else repr(options)
        yield _bad_value(where, text, "not a dict of options", section.example)
        return
    if section.required and options.get(section.required) is None:
        problem = f'without a "{section.required}"'
        yield _bad_value(where, repr(sorted(map(str, options))), problem, section.example)
    yield from _unknown(options, section.rules, where)
    for option, (rule, example) in section.rules.items():
        value = options.get(option)
        if value is None:
            continue
        needed = NEEDS.get(option)
        problem = rule(value)
        if problem is None and needed is not None and options.get(needed) is None:
            problem = f'wrong (it needs a "{needed}")'
        if problem:
            text = "(a secret)" if option == section.secret else repr(value)
            yield _bad_value(_lookup(key, name, option), text, problem, example)


def _lookup(*keys: Any) -> str:
    """The place in the setting as code: ``DJANGO_JOBS["QUEUES"]["emails"]``."""
    quoted = (json.dumps(key) if isinstance(key, str) else repr(key) for key in keys)
    return "DJANGO_JOBS" + "".join(f"[{key}]" for key in quoted)


def _bad_value(where: str, text: str, problem: str, example: str) -> CheckMessage:
    text = text if len(text) <= 100 else text[:99] + "…"
    return _error("E007", f"{where} is {problem}: {text}.", f"Write, for example, {example}.")
