"""Calls in the project's code that will be refused, found by reading it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .finding import Finding, error, note

CHAIN = "use chain(this.s(), then.s())"
ON_FAILURE = "use a step with when='failed' of a django_jobs.Workflow"
JOIN = "use join() or get()"
KEEP_IDS = "keep the ids of its results, and read AsyncResult(id)"
OPTIONS = {"link": CHAIN, "link_error": ON_FAILURE}
METHODS = {
    **OPTIONS,
    "on_error": ON_FAILURE,
    "add_to_chord": "use django_jobs.current_run().spawn(...)",
    "iter_native": JOIN,
    "join_native": JOIN,
}
GROUPS = {"save", "restore"}
SENDING = {"apply_async", "send_task", "signature", "subtask", "set"}


def findings_in_code(app: Any) -> Iterator[Finding]:
    """Calls in the modules of the tasks that will be refused. Those of packages are not read."""
    modules = {type(task).__module__ for task in app.tasks.values()}
    for module in sorted(modules):
        path = getattr(sys.modules.get(module), "__file__", None)
        if path is not None and "site-packages" not in path and not module.startswith("celery."):
            yield from findings_in_source(Path(path).read_text(), module)


def findings_in_source(source: str, module: str) -> Iterator[Finding]:
    """The findings in the source of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield from _of_call(node, node.func, f"{module}:{node.lineno}")


def _of_call(call: ast.Call, function: ast.Attribute, where: str) -> Iterator[Finding]:
    of_self = isinstance(function.value, ast.Name) and function.value.id == "self"
    if function.attr in METHODS:
        yield error(where, f".{function.attr}() is not possible: {METHODS[function.attr]}")
    if function.attr == "replace" and of_self:
        yield error(where, "self.replace() is not possible: use current_run().spawn(...)")
    if function.attr in GROUPS and _is_group_result(function.value):
        yield error(where, f".{function.attr}() of a GroupResult is not possible: {KEEP_IDS}")
    if ast.unparse(function.value).endswith("app.control") and function.attr != "revoke":
        yield error(where, f"app.control.{function.attr}() asks workers of Celery; use jobstatus")
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if function.attr in SENDING:
        for name in OPTIONS.keys() & given.keys():
            yield error(where, f"{name}= is not possible: {OPTIONS[name]}")
        serializer = given.get("serializer")
        if isinstance(serializer, ast.Constant) and serializer.value != "json":
            yield error(where, f"serializer={serializer.value!r}: a payload is JSON")
    if function.attr == "revoke" and "terminate" in given:
        yield note(where, "revoke(terminate=) stops the task by force; signal= is ignored")


def _is_group_result(value: ast.expr) -> bool:
    """Whether a name says so, or a call that sends a task made it. Many objects can be saved."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        return value.func.attr in ("delay", "apply_async")
    return ast.unparse(value).endswith("GroupResult")
