"""What the project's code does that jobs refuse, or do otherwise: what to find in it, and how."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from django.apps import apps as django_apps
from django.conf import settings

from ....exceptions import EnqueueError
from ..messages.options import INSTEAD, KNOWN, routed_to


class Level(StrEnum):
    """Whether it needs a change before the move."""

    ERROR = "error"
    """It will not work."""
    NOTE = "note"
    """It will behave otherwise."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``where`` is the name of a setting, a task or a line of code."""

    level: Level
    where: str
    text: str


def error(where: str, text: str) -> Finding:
    return Finding(Level.ERROR, where, text)


def note(where: str, text: str) -> Finding:
    return Finding(Level.NOTE, where, text)


SENDING = {"apply_async", "send_task"}
WITH_OPTIONS = SENDING | {"signature", "subtask", "set", "retry"}
OF_THE_CALL = {"args", "kwargs", "task_id", "task_type", "result_cls", "add_to_parent", "name"}
"""Parameters of a send that are no options of the message."""
MAKES_A_STEP = {"s", "si", "signature", "chain", "group", "chord"}


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a node is: the names that imports gave, what the file sent, and the function."""

    app: Any
    names: dict[str, str]
    sent: set[str] = field(default_factory=set)
    myself: str = ""
    """The name of the task in its body: its first parameter, if it is bound."""
    in_task: bool = False
    in_async: bool = False


Condition = Callable[[Any, Scope], bool]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One thing to find. ``row`` is a piece of code in the first column of a table of
    ``docs/celery.md``; ``keys`` are what :func:`_keys` says of a node."""

    row: str
    level: Level
    keys: tuple[str, ...]
    text: str
    condition: Condition = lambda node, scope: True


def _is_step(node: ast.Call, scope: Scope) -> bool:
    """Whether one task replaces another; ``str.replace`` takes two arguments."""
    if len(node.args) != 1 or node.keywords:
        return False
    of_self = ast.unparse(node.func) == f"{scope.myself or 'self'}.replace"
    argument = node.args[0]
    makes = isinstance(argument, ast.Call) and last_of(argument.func) in MAKES_A_STEP
    return of_self and (scope.in_task or makes)


def _is_group_result(node: ast.Call, scope: Scope) -> bool:
    """Whether a name says so, or a call that sends tasks made it. Many objects can be saved."""
    assert isinstance(node.func, ast.Attribute)
    value = node.func.value
    if isinstance(value, ast.Call):
        return is_sent(value)
    return ast.unparse(value).endswith("GroupResult") or ast.unparse(value) in scope.sent


def is_control(node: ast.Call) -> bool:
    assert isinstance(node.func, ast.Attribute)
    return ast.unparse(node.func.value).endswith("app.control")


def _is_no_json(node: ast.keyword, scope: Scope) -> bool:
    return isinstance(node.value, ast.Constant) and node.value.value not in ("json", None)


def _is_unbound(node: ast.Call, scope: Scope) -> bool:
    """Whether no queue is bound to the exchange and the routing key that a call names."""
    given = {one.arg: one.value for one in node.keywords}
    values = {
        name: given[name].value  # type: ignore[attr-defined]
        for name in ("exchange", "routing_key", "queue")
        if isinstance(given.get(name), ast.Constant)
    }
    if scope.app is None or not values.keys() & {"exchange", "routing_key"}:
        return False
    try:
        routed_to(scope.app, "", values)
    except EnqueueError:
        return True
    return False


def _is_stamp(node: ast.Call | ast.keyword, scope: Scope) -> bool:
    """Whether ``.stamp()`` may be of a signature."""
    if isinstance(node, ast.keyword) or (node.keywords and not node.args):
        return True
    assert isinstance(node.func, ast.Attribute)
    value = node.func.value
    if isinstance(value, ast.Call) and last_of(value.func) in MAKES_A_STEP:
        return True
    return any(name.partition(".")[0] == "celery" for name in scope.names.values())


def is_sent(value: ast.expr) -> bool:
    """Whether a call sends tasks: ``.delay()``, ``.apply_async()`` or ``group(...)()``."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Call):
        return last_of(value.func.func) in {"group", "chord", "chain"}
    return isinstance(value.func, ast.Attribute) and value.func.attr in ("delay", "apply_async")


def last_of(node: ast.expr) -> str:
    """The last part of a name; empty for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


THREADS = "the threads of a process share it: start jobworker --prefork, which has one task each"
LOGGING = "is never sent: nothing changes the project's LOGGING, which is in force"
NO_WORKER = "is never sent: no worker of Celery runs"

# level | row | keys | text | condition, of which further lines are indented
TABLE = """\
error | stamp | option stamped_headers, call stamp | stamps are not possible: pass headers= |
    is_stamp
error | on_error | call on_error | .on_error() is not possible: {ON_ERROR}
error | apply_async | unknown option | {}: no such option of a job; pass headers= for what the task
    shall read
error | serializer | option serializer | {}: a payload is JSON | is_no_json
error | routing_key | send | no queue of task_queues is bound to this exchange and routing_key:
    pass queue= | is_unbound
error | self.replace | call replace | self.replace() is not possible: use current_run().spawn(...)
    | is_step
error | add_to_chord | call add_to_chord | .add_to_chord() is not possible: use
    current_run().spawn(...)
error | self.request.chain | set request.chain, set request.callbacks, set request.errbacks, set
    request.chord | the request does not decide what runs next: raise Ignore, or send the next task
error | GroupResult.save | call save, call restore | a GroupResult is not stored: keep the ids of
    its results, and read AsyncResult(id) | is_group_result
error | on_message | option of get on_message | get(on_message=) is not possible: use get()
error | app.control | control, use celery.app.control.Inspect, use celery.app.control.Control | {}
    asks workers of Celery: use jobstatus
error | app.steps | steps | boot steps are not made: no worker of Celery starts
error | delay | sent in async def | a task is not sent in async code: await task.adelay(...)
error | store_result | call store_result | .store_result() stores nothing: the results of tasks are
    in the rows of jobs
error | celery.contrib.testing | import celery.contrib.testing, import celery.contrib.pytest, text
    celery.contrib.pytest, argument celery_worker, argument celery_session_worker | a worker of
    Celery in a test connects to a broker: use django_jobs.testing.run_jobs()
error | TaskResult | import django_celery_results.models | no row is written to its tables: read
    AsyncResult(id), or the rows of jobs
note | PeriodicTask | use django_celery_beat.models.PeriodicTask.objects, call of
    django_celery_beat.models.PeriodicTask | its rows are followed within a minute, once `manage.py
    jobimport celery` has made schedules of them
note | periodic_task_name | text periodic_task_name, read periodic_task_name | the header
    periodic_task_name is beat's: no job of a schedule has it
note | revoke | option of revoke terminate | revoke(terminate=) stops the task by force; signal= is
    ignored
note | CELERY_BROKER_URL | use kombu.Connection, read CELERY_BROKER_URL, call connection_or_acquire,
    call connection_for_read, call connection_for_write | the broker has no messages of these tasks:
    count and cancel jobs, as with jobstatus
note | task_id | option of set task_id | a step of a canvas cannot have a task_id
note | self.<name> = | set of the task | a task sets an attribute of itself; {THREADS}
note | os.environ | set os.environ, use os.putenv, use os.environ.update, use os.environ.setdefault
    | a task changes the environment; {THREADS} | in_task
note | os.chdir | use os.chdir, use os.umask | a task changes the folder or the mask of its process;
    {THREADS} | in_task
note | global | global | a task sets a global; {THREADS}
note | signal.signal | use signal.signal, use signal.setitimer, use signal.alarm, use
    asyncio.get_event_loop | a task is in the main thread with jobworker --prefork alone | in_task
"""
CONDITIONS: dict[str, Condition] = {
    "in_task": lambda node, scope: scope.in_task,
    "is_group_result": _is_group_result,
    "is_no_json": _is_no_json,
    "is_stamp": _is_stamp,
    "is_step": _is_step,
    "is_unbound": _is_unbound,
}


def _pattern(row: str) -> Pattern:
    level, place, keys, text, *condition = re.split(r"\s*\|\s*", " ".join(row.split()))
    text = text.replace("{THREADS}", THREADS).replace("{ON_ERROR}", INSTEAD["link_error"])
    return _made(level, place, keys, text, *(CONDITIONS[name] for name in condition))


def _made(level: str, row: str, keys: str, text: str, *condition: Condition) -> Pattern:
    return Pattern(row, Level(level), tuple(keys.split(", ")), text, *condition)


NEVER_SENT = (
    *("celeryd_init", "celeryd_after_setup", "user_preload_options"),
    *("worker_before_create_process", "worker_shutting_down", "heartbeat_sent"),
    *("task_unknown", "task_rejected", "beat_init", "beat_embedded_init", "task_internal_error"),
    *("eventlet_pool_started", "eventlet_pool_preshutdown", "eventlet_pool_postshutdown"),
    "eventlet_pool_apply",
)
"""Signals of Celery's commands."""
OF_LOGGING = "setup_logging", "after_setup_logger", "after_setup_task_logger"
"""Signals with which Celery's worker sets up its log."""

PATTERNS: tuple[Pattern, ...] = (
    *map(_pattern, re.split(r"\n(?! )", TABLE.rstrip())),
    *(
        _made("error", name, f"option {name}", f"{name}= is not possible: {INSTEAD[name]}")
        for name in ("link", "link_error")
    ),
    *(
        _made("error", name, f"call {name}", f".{name}() is not possible: use join() or get()")
        for name in ("iter_native", "join_native")
    ),
    *(
        _made("error", "beat_init", f"use celery.signals.{name}", f"{name} {NO_WORKER}")
        for name in NEVER_SENT
    ),
    *(
        _made("note", "setup_logging", f"use celery.signals.{name}", f"{name} {LOGGING}")
        for name in OF_LOGGING
    ),
)
"""All that is found in code. Most of it is a call of a method, or an option of a send."""


def _by_key() -> dict[str, list[Pattern]]:
    found = defaultdict(list)
    for pattern in PATTERNS:
        for key in pattern.keys:
            found[key].append(pattern)
    return dict(found)


BY_KEY = _by_key()


DECORATORS = {"task", "shared_task", "periodic_task"}
INSTALLED = {"site-packages", "dist-packages", "node_modules", "__pycache__"}
OURS = Path(__file__).resolve().parents[3]


def files_of(apps: Iterable[Any]) -> list[Path]:
    """The Python files of the project: of its Django apps, of the packages of its settings, its
    URLs and its Celery apps, and of their tasks. Those of installed packages are left out."""
    modules = {str(getattr(settings, name, "")) for name in ("SETTINGS_MODULE", "ROOT_URLCONF")}
    for app in apps:
        modules |= {str(app.main), *(type(task).__module__ for task in app.tasks.values())}
    folders = {Path(config.path) for config in django_apps.get_app_configs()}
    files: set[Path] = set()
    for name in modules:
        package = name if hasattr(sys.modules.get(name), "__path__") else name.rpartition(".")[0]
        folders |= {Path(place) for place in getattr(sys.modules.get(package), "__path__", ())}
        if path := getattr(sys.modules.get(name), "__file__", None):
            files.add(Path(path).resolve())
    for folder in folders:
        files.update(_files_below(folder.resolve()))
    return sorted(path for path in files if _is_of_the_project(path))


def _files_below(folder: Path) -> Iterator[Path]:
    if not _is_of_the_project(folder):
        return
    for at, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name not in INSTALLED
            and not name.startswith(".")
            and not Path(at, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(at, name) for name in names if name.endswith(".py"))


def _is_of_the_project(path: Path) -> bool:
    return not INSTALLED & set(path.parts) and not path.is_relative_to(OURS)


def findings_in_files(files: Iterable[Path], app: Any) -> Iterator[Finding]:
    for path in files:
        where = os.path.relpath(path)
        try:
            source = path.read_bytes()
        except OSError as problem:
            yield note(where, f"was not read: {problem}")
        else:
            yield from findings_in_source(source, where, app)


def findings_in_source(source: str | bytes, where: str, app: Any = None) -> Iterator[Finding]:
    """The findings in the source of a file. One that Python cannot read is a note."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as problem:
        yield note(where, f"was not read: {problem}")
        return
    scope = Scope(app, dict(_imports(tree)), set(_sent(tree)))
    seen = set()
    for node, key, inside in _keys(tree, scope):
        for pattern in BY_KEY.get(key, ()):
            line = getattr(node, "lineno", 1)
            if (line, pattern.text) not in seen and pattern.condition(node, inside):
                seen.add((line, pattern.text))
                text = pattern.text.replace("{}", ast.unparse(node), 1)
                yield Finding(pattern.level, f"{where}:{line}", text)


def _keys(tree: ast.AST, scope: Scope) -> Iterator[tuple[Any, str, Scope]]:
    """What there is to say of each node below ``tree``, and its scope."""
    waiting: list[tuple[ast.AST, Scope]] = [(tree, scope)]
    while waiting:
        node, scope = waiting.pop()
        yield from ((one, key, scope) for one, key in _keys_of(node, scope))
        inner = _scope_in(node, scope)
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]


def _keys_of(node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Call():
            yield from _keys_of_call(node, scope)
        case ast.Name() | ast.Attribute() if isinstance(node.ctx, ast.Load):
            if (name := _dotted(node, scope.names)) is not None:
                yield node, f"use {name}"
        case ast.Import():
            for alias in node.names:
                yield from ((node, f"import {name}") for name in _prefixes(alias.name))
        case ast.ImportFrom(module=str(module), level=0):
            for alias in node.names:
                yield from (
                    (node, f"import {name}") for name in _prefixes(f"{module}.{alias.name}")
                )
        case ast.Constant(value="celery.contrib.pytest" | "periodic_task_name" as text):
            yield node, f"text {text}"
        case ast.arg():
            yield node, f"argument {node.arg}"
        case ast.Global() if scope.in_task:
            yield node, "global"
        case ast.Subscript(value=ast.Attribute(attr="steps"), slice=ast.Constant(value=str(kind))):
            if kind in ("worker", "consumer"):
                yield node, "steps"
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node, f"read {node.attr}"
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
        yield from _keys_of_target(node, scope)


def _keys_of_target(
    node: ast.Attribute | ast.Subscript, scope: Scope
) -> Iterator[tuple[ast.AST, str]]:
    value = node.value
    if isinstance(node, ast.Subscript):
        if name := _dotted(value, scope.names):
            yield node, f"set {name}"
    elif isinstance(value, ast.Attribute) and value.attr == "request":
        yield node, f"set request.{node.attr}"
    elif isinstance(value, ast.Name) and scope.myself and value.id == scope.myself:
        yield node, "set of the task"


def _keys_of_call(node: ast.Call, scope: Scope) -> Iterator[tuple[ast.AST, str]]:
    function = node.func
    if (name := _dotted(function, scope.names)) is not None:
        yield node, f"call of {name}"
    if isinstance(function, ast.Name):
        if last_of(function) in WITH_OPTIONS:
            yield from ((one, f"option {one.arg}") for one in node.keywords)
        return
    if not isinstance(function, ast.Attribute):
        return
    called = function.attr
    yield node, f"call {called}"
    yield from ((one, f"option of {called} {one.arg}") for one in node.keywords)
    if called in WITH_OPTIONS:
        yield from ((one, f"option {one.arg}") for one in node.keywords)
    if called in SENDING:
        yield node, "send"
        known = KNOWN | INSTEAD.keys() | OF_THE_CALL
        unknown = (one for one in node.keywords if one.arg is not None and one.arg not in known)
        yield from ((one, "unknown option") for one in unknown)
    if scope.in_async and called in {"delay", *SENDING}:
        yield node, "sent in async def"
    if called not in ("revoke", "terminate") and is_control(node):
        yield node, "control"


def _scope_in(node: ast.AST, scope: Scope) -> Scope:
    match node:
        case ast.ClassDef(bases=bases) if any(last_of(base).endswith("Task") for base in bases):
            return replace(scope, in_task=True, myself="self")
        case ast.ClassDef():
            return replace(scope, in_task=False, myself="")
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            is_async = isinstance(node, ast.AsyncFunctionDef)
            made = [one for one in node.decorator_list if _decorates(one)]
            if node.name == "__init__":
                return replace(scope, in_task=False, myself="", in_async=is_async)
            if not made:
                return replace(scope, in_async=is_async)
            myself = node.args.args[0].arg if any(map(_binds, made)) and node.args.args else ""
            return replace(scope, in_task=True, myself=myself, in_async=is_async)
        case ast.Lambda():
            return replace(scope, in_async=False)
    return scope


def _decorates(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_of(function) in DECORATORS


def _binds(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(
        one.arg == "bind" and getattr(one.value, "value", None) is True
        for one in decorator.keywords
    )


def _sent(tree: ast.AST) -> Iterator[str]:
    """The names to which what a call sent is assigned."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_sent(node.value):
            yield from map(ast.unparse, node.targets)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The names that imports give, and what they stand for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                short = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (short, short)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if alias.name != "*":
                    yield alias.asname or alias.name, full
                    continue
                start = f"use {node.module}."
                for key in BY_KEY:
                    if key.startswith(start):
                        yield key.removeprefix(start).partition(".")[0], key.removeprefix("use ")


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """``celery.signals.worker_init`` for what an imported name, or an attribute of one, is."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    return ".".join([names[node.id], *reversed(parts)])


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))
