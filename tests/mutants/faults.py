"""The faults that can be planted in a module, by its syntax and by the SQL in its strings."""

from __future__ import annotations

import ast
import difflib
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, pairwise, zip_longest
from typing import TypeVar

T = TypeVar("T")

COMPARISONS = {
    **{ast.Lt: (b"<", b"<="), ast.LtE: (b"<=", b"<"), ast.Gt: (b">", b">=")},
    **{ast.GtE: (b">=", b">"), ast.Eq: (b"==", b"!="), ast.NotEq: (b"!=", b"==")},
}
SIGNS = {ast.Add: (b"+", b"-"), ast.Sub: (b"-", b"+")}
INERT = {"eq", "frozen", "hash", "kw_only", "slots", "strict"}
"""Arguments that change nothing of a correct program."""

ASKS = re.compile(rb"(?:\w+\.)*(?:has_perms?|has_\w+_permission|_?may_\w+|demand|allowed)\(")
OF_A_USER = re.compile(rb"\b(?:request|user|actor)\b")
CHECKS = re.compile(rb"(?:allowed_by|unlimited)\(")

SQL = re.compile(rb"\b(?:SELECT|UPDATE|DELETE|INSERT|WHERE|CASE WHEN)\b")
_VALUE = (
    rb"(?:\((?:'\w+',? ?)+\)|\(%\(\w+\)s::\w+\[\]\)\[.*\]|%\(\w+\)s(?:::\w+)?|'\w+'"
    rb"|ANY\(ARRAY\[[\w.]+\]\)|[\w.]+(?!\())"
)
IN_SQL = [
    ("lock", rb"\s+FOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF \w+)?(?: SKIP LOCKED)?", rb""),
    ("lock", rb" SKIP LOCKED", rb""),
    (
        "fence",
        rb"\b(AND|WHERE|ON)\s+(?:\w+\.)?(?:attempt|worker|worker_id|status) (?:[=<>]+|IN) "
        + _VALUE,
        rb"\1 true",
    ),
    *(
        ("comparison", rb" %b (?!ALL|ANY)" % one, b" %b " % other)
        for one, other in (*COMPARISONS.values(), (b"<>", b"="))
        if b"==" not in (one, other)
    ),
    *(("arithmetic", rb" \%b " % one, b" %b " % other) for one, other in SIGNS.values()),
    ("logic", rb"\bAND (?!NOT )", rb"OR "),
    ("logic", rb"\bNOT (?=EXISTS|NULL|%|\w+\.)", rb""),
]


@dataclass(frozen=True, order=True)
class Fault:
    """``text`` in the place of some bytes of a module, which is a path below the root."""

    module: str
    start: int
    end: int
    kind: str
    text: bytes

    @property
    def room(self) -> str:
        return self.module.split("/")[1]

    def planted(self, source: bytes) -> bytes:
        """The module with the fault."""
        return source[: self.start] + self.text + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The fault as a unified diff."""
        old, new = (text.decode().splitlines() for text in (source, self.planted(source)))
        return "\n".join(difflib.unified_diff(old, new, self.module, self.module, "", "", 2, ""))

    def line(self, source: bytes) -> str:
        """Where it is, and the first line that changes."""
        number = source[: self.start].count(b"\n") + 1
        changed = [line for line in self.diff(source).splitlines()[3:] if line[0] in "+-"]
        return f"{self.module}:{number} {self.kind}: " + " ".join(" ".join(changed).split())


def faults_in(module: str, source: bytes) -> Iterator[Fault]:
    """The faults that can be planted in a module, in no order."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def begin(node: ast.expr | ast.keyword | ast.stmt) -> int:
        return starts[node.lineno - 1] + node.col_offset

    def end(node: ast.expr | ast.keyword | ast.stmt) -> int:
        return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def between(one: ast.expr, other: ast.expr, kind: str, old: bytes, new: bytes) -> Fault:
        place = source.index(old, end(one), begin(other))
        return Fault(module, place, place + len(old), kind, new)

    def instead(node: ast.expr | ast.keyword | ast.stmt, kind: str, text: bytes) -> Fault:
        return Fault(module, begin(node), end(node), kind, text)

    def of(node: ast.AST) -> Iterator[Fault]:
        match node:
            case ast.Compare():
                for op, (one, other) in zip(
                    node.ops, pairwise([node.left, *node.comparators]), strict=True
                ):
                    if type(op) in COMPARISONS:
                        yield between(one, other, "comparison", *COMPARISONS[type(op)])
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as sign, right=right):
                if not any(
                    isinstance(one, ast.JoinedStr) or _is_text(one) for one in (left, right)
                ):
                    yield between(left, right, "arithmetic", *SIGNS[type(sign)])
            case ast.BoolOp(op=op, values=values):
                words = (b"and", b"or") if isinstance(op, ast.And) else (b"or", b"and")
                for one, other in pairwise(values):
                    yield between(one, other, "logic", *words)
            case ast.UnaryOp(op=ast.Not()):
                yield Fault(module, begin(node), begin(node) + len(b"not "), "logic", b"")
            case ast.Constant(value=bool(value)):
                yield instead(node, "constant", str(not value).encode())
            case ast.Raise(
                exc=ast.Name("PermissionDenied") | ast.Call(ast.Name("PermissionDenied"))
            ):
                yield instead(node, "permission", b"pass")
            case ast.Call():
                text = source[begin(node) : end(node)]
                if ASKS.match(text) and OF_A_USER.search(text):
                    yield instead(node, "permission", b"True")
                elif CHECKS.match(text):
                    yield instead(node, "permission", b"(lambda *given, **named: True)")
                elif text.startswith(b"scope_of("):
                    yield instead(node, "permission", b"None")
                elif isinstance(node.func, ast.Attribute) and node.func.attr == "select_for_update":
                    yield Fault(module, end(node.func.value), end(node), "lock", b"")
                elif isinstance(node.func, ast.Attribute) and node.func.attr == "filter":
                    for given in node.keywords:
                        if given.arg in ("attempt", "worker", "worker_id", "status"):
                            yield instead(given, "fence", b"**{}")
            case ast.JoinedStr() | ast.Constant(value=str()):
                text = source[begin(node) : end(node)]
                for kind, pattern, other in IN_SQL if SQL.search(text) else ():
                    for found in re.finditer(pattern, text):
                        place = begin(node) + found.start()
                        length = len(found.group())
                        yield Fault(module, place, place + length, kind, found.expand(other))

    def walk(node: ast.AST) -> Iterator[Fault]:
        yield from of(node)
        # Before Python 3.12 the nodes inside an f-string have wrong places.
        for child in () if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node):
            is_docstring = isinstance(child, ast.Expr) and _is_text(child.value)
            is_inert = isinstance(child, ast.keyword) and child.arg in INERT
            if not is_docstring and not is_inert:
                yield from walk(child)

    yield from walk(ast.parse(source))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def choose(faults: Iterable[Fault], seed: int, count: int) -> list[Fault]:
    """``count`` faults by chance: kind after kind in turn, and in each kind room after room."""
    chance = random.Random(seed)
    kinds: dict[str, dict[str, list[Fault]]] = {}
    for fault in sorted(faults):
        kinds.setdefault(fault.kind, {}).setdefault(fault.room, []).append(fault)
    for rooms in kinds.values():
        for some in rooms.values():
            chance.shuffle(some)
    shuffled = [chance.sample(list(rooms.values()), len(rooms)) for rooms in kinds.values()]
    return list(islice(_in_turn(map(_in_turn, shuffled)), count))


def _in_turn(lines: Iterable[Iterable[T]]) -> Iterator[T]:
    for row in zip_longest(*lines):
        yield from (one for one in row if one is not None)
