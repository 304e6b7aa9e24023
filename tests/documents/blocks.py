"""The fenced code blocks of README and of the pages of docs, in their order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *DOCS.rglob("*.md"))
}

EXECUTED = frozenset({"python", "console", "sql"})
SHOWN = frozenset({"text", "ini", "toml", "yaml", "json", "dockerfile"})
"""What no process here can run: files of other programs, and samples of output."""

FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S
)
FILE = re.compile(r"# (?P<path>[\w/]+\.py)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block. ``file`` is the path that its first line names as a comment."""

    page: str
    line: int
    language: str
    body: str

    @property
    def file(self) -> str | None:
        named = FILE.match(self.body)
        return named["path"] if named else None

    @property
    def declares_jobs(self) -> bool:
        """Whether it belongs into ``jobs.py``, though it does not say so."""
        return re.search(r"^@job\b", self.body, re.M) is not None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Of a console block: each command after ``$``, and the output that is shown below it."""
        parts = re.split(r"^\$ ", self.body, flags=re.M)
        if len(parts) == 1:
            return [(line, "") for line in self.body.splitlines()]
        assert parts[0] == "", f"{self}: output before the first command"
        pairs = [part.partition("\n") for part in parts[1:]]
        return [(command, output.strip()) for command, _, output in pairs]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: str) -> list[Block]:
    """All blocks of a page, also those inside a list, without its indent."""
    text = PAGES[page].read_text()
    return [
        Block(
            page=page,
            line=text.count("\n", 0, found.start()) + 1,
            language=found["language"].strip(),
            body=re.sub(rf"^{found['indent']}", "", found["body"], flags=re.M),
        )
        for found in FENCE.finditer(text)
    ]
