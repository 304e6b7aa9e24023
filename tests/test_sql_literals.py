"""No statement depends on ``standard_conforming_strings``, which may be off up to PostgreSQL 18."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_jobs

PACKAGE = Path(django_jobs.__file__).parent
IS_SQL = re.compile(
    r"\b(?:SELECT|INSERT|UPDATE|DELETE|COPY|CREATE|ALTER|FROM|WHERE|CASE|AND|AS)\b|::|~ '"
)
LITERAL = re.compile(
    r"(?P<escaped>\b[eE]'(?:[^'\\]|\\.|'')*')|--[^\n]*|'(?P<plain>(?:[^']|'')*)'", re.DOTALL
)

ENQUEUE_FUNCTION = "_enqueue_function.py"
r"""Its ``'\u00A0'`` is the same character in a literal as in a regular expression: a test in
``tests/migrations/test_enqueue_function.py`` calls the function with both settings."""


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module but its docstrings and regular expressions of Python, with an x for
    each value of an f-string."""
    tree = ast.parse(path.read_text())
    passed = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            passed.add(id(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            passed |= {id(one) for argument in node.args for one in ast.walk(argument)}
    for node in ast.walk(tree):
        if id(node) in passed:
            continue
        if isinstance(node, ast.JoinedStr):
            passed |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant):
            yield node.lineno, str(node.value)


def depending(text: str) -> list[str]:
    r"""The literals of a statement that are read in two ways: plain ones with a backslash."""
    if not IS_SQL.search(text):
        return []
    literals = (match["plain"] for match in LITERAL.finditer(text))
    return [literal for literal in literals if literal and "\\" in literal]


def test_no_literal_of_a_statement_depends_on_a_setting() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}:{line}": literals
        for path in PACKAGE.rglob("*.py")
        if path.name != ENQUEUE_FUNCTION
        for line, text in strings(path)
        if (literals := depending(text))
    }
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        r"SELECT regexp_match(x, 'FROM \(''([^'']+)''\)')",
        r"DELETE FROM t WHERE name LIKE 'a\_%%' AND note = 'b'",
        r"note ~ '^\d+$'",
        r"split_part(name, '\', 1)::integer",
        r"SELECT E'\'', '\s'",
    ],
)
def test_a_literal_that_depends_on_it_is_found(text: str) -> None:
    assert depending(text)


def test_a_literal_that_does_not_is_passed() -> None:
    assert not depending(r"SELECT E'it\'s \\d', 'it''s', '[(]' -- don't \d")
