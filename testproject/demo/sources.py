"""Reads a tree of Python sources, without the database."""

from __future__ import annotations

import ast
import contextlib
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = frozenset({"site-packages", "dist-packages", "__pycache__", "test"})
"""Top-level directories that are not read. ``test``, Python's own test-suite, is two thirds of
all lines; without it the demo takes seconds instead of a minute."""


PARSE_ATTEMPTS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """One file and what was counted in it. ``error`` says why it could not be read, if so."""

    path: str
    lines: int = 0
    functions: int = 0
    classes: int = 0
    error: str = ""

    @property
    def module(self) -> str:
        """The dotted name under which the file is imported."""
        dotted = self.path.removesuffix(".py").replace("/", ".")
        return dotted.removesuffix(".__init__")


def package_names(root: Path) -> list[str]:
    """The top-level packages and modules under ``root``, sorted."""
    names = {entry.stem for entry in root.glob("*.py") if entry.is_file()}
    for entry in root.iterdir():
        if entry.name in LEFT_OUT or entry.is_symlink() or not entry.is_dir():
            continue
        if next(entry.rglob("*.py"), None):
            names.add(entry.name)
    return sorted(names)


def read_package(root: Path, name: str) -> list[SourceFile]:
    """Every file of one top-level package or module, in order of path."""
    ignore_parse_warnings()
    return [_read(root, path) for path in sorted(_files(root, name))]


def ignore_parse_warnings() -> None:
    """Silence the warnings of old sources when they are parsed. If warnings are errors, such a file
    would count as unreadable."""
    # For good: warnings.catch_warnings is not safe between threads, and handlers run in threads.
    warnings.filterwarnings("ignore", category=SyntaxWarning)
    # Until Python 3.12 it was this one.
    warnings.filterwarnings("ignore", message="invalid ", category=DeprecationWarning)


def _files(root: Path, name: str) -> Iterator[Path]:
    module = root / f"{name}.py"
    if module.is_file():
        yield module
    if name not in LEFT_OUT:
        yield from (path for path in (root / name).rglob("*.py") if path.is_file())


def _parsed(source: bytes, name: str) -> ast.Module:
    """The tree of a source. In Python 3.11 threads share the parser's count of its recursion, and
    one that meets the count of another fails with a ``SystemError``, whatever the source is."""
    for _ in range(PARSE_ATTEMPTS - 1):
        with contextlib.suppress(SystemError):
            return ast.parse(source, filename=name)
    return ast.parse(source, filename=name)


def _read(root: Path, path: Path) -> SourceFile:
    relative = path.relative_to(root).as_posix()
    try:
        source = path.read_bytes()
    except OSError as error:
        return SourceFile(path=relative, error=str(error))
    lines = sum(1 for _ in io.BytesIO(source))
    try:
        nodes = list(ast.walk(_parsed(source, relative)))
    except (SyntaxError, ValueError, RecursionError) as error:
        return SourceFile(path=relative, lines=lines, error=f"{type(error).__name__}: {error}")
    return SourceFile(
        path=relative,
        lines=lines,
        functions=sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
    )
