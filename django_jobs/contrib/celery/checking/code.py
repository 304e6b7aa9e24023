"""What the project's code does that jobs refuse, or do otherwise, found by reading it."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.apps import apps as django_apps
from django.conf import settings

from ..messages.options import INSTEAD, KNOWN
from .patterns import (
    BY_KEY,
    OF_THE_CALL,
    SENDING,
    WITH_OPTIONS,
    Finding,
    Scope,
    is_control,
    is_sent,
    last_of,
    note,
)

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
    """The findings in files, by their path from the working directory."""
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
