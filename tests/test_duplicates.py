"""No six lines stand twice in the package, except where docs/architecture.md says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "django_jobs"
PAGE = PACKAGE.parent / "docs" / "architecture.md"
RUN = 6
"""Lines that may not stand twice. Imports, comments, blank lines and lone brackets do not count."""

Place = tuple[str, int]


def counted_lines(source: str) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines that count, with spaces folded."""
    inside_import = False
    for number, line in enumerate(source.splitlines(), start=1):
        text = " ".join(line.split())
        if inside_import or re.match(r"(?:import|from [\w.]+ import) ", text):
            inside_import = (inside_import or "(" in text) and ")" not in text
        elif re.search(r"\w", text) and not text.startswith("#"):
            yield number, text


def repeated(sources: dict[str, str]) -> list[tuple[Place, Place]]:
    """Where runs of six lines stand twice."""
    places: dict[tuple[str, ...], list[Place]] = {}
    for name, source in sources.items():
        lines = list(counted_lines(source))
        for start in range(len(lines) - RUN + 1):
            run = lines[start : start + RUN]
            places.setdefault(tuple(text for _, text in run), []).append((name, run[0][0]))
    return [
        (one, other)
        for found in places.values()
        for one, other in combinations(found, 2)
        if one[0] != other[0] or other[1] - one[1] >= RUN
    ]


def named_on_the_page() -> list[list[str]]:
    """The files or folders of each row of the table."""
    section = PAGE.read_text().split("## Duplicates that stay", 1)[1].split("\n## ", 1)[0]
    return [
        re.findall(r"`([\w/.]+)`", row.split("|")[1])
        for row in section.splitlines()
        if row.startswith("| `")
    ]


def is_named(row: list[str], pair: tuple[Place, Place]) -> bool:
    return all(any(name.startswith(one) for one in row) for name, _ in pair)


def test_no_six_lines_are_repeated_without_a_reason() -> None:
    sources = {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for suffix in ("py", "html", "css", "js")
        for path in PACKAGE.rglob(f"*.{suffix}")
    }
    found, rows = repeated(sources), named_on_the_page()
    assert [pair for pair in found if not any(is_named(row, pair) for row in rows)] == []
    assert [row for row in rows if not any(is_named(row, pair) for pair in found)] == []


def test_six_repeated_lines_are_found() -> None:
    lines = [f"row[{number}] = {number}" for number in range(RUN)]
    spread = ["", "import json", *"\n\n# why\n".join(lines).splitlines(), ")"]
    found = repeated({"a.py": "\n".join(lines), "b.py": "\n".join(spread), "c.py": lines[0] * RUN})
    assert found == [(("a.py", 1), ("b.py", 3))]
    assert repeated({"a.py": "\n".join(lines[1:] * 2)}) == []
