"""The files of ``jobarchive``: a partition of the history in each.

A file is written under its name with ``.part`` appended. It is renamed once all of it is on the
disk and was read back, so a file without ``.part`` is complete.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from django.core.management.base import CommandError

from ..lifecycle.archiving import Contents, contents_of, copy_out
from ..lifecycle.history import Partition

BUFFER = 1 << 20
"""Bytes that are written at once. COPY sends each row apart."""

LARGEST_VALUE = 2**31 - 1
"""Characters. The csv module accepts 131,072 of them unless it is set otherwise."""

RECORD = re.compile(rb'\{"id":(\d+),.*\}\n', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveFile:
    """A complete file of a partition. ``others`` are complete files of it with other rows."""

    path: Path
    contents: Contents
    is_new: bool
    others: list[Path]

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def demand_directory(name: str) -> Path:
    """The directory of this name; raise ``CommandError`` if no file can be made in it."""
    if not name:  # Path("") is the working directory
        raise CommandError("--to: '' does not exist")
    directory = Path(name)
    if not directory.is_dir():
        problem = "is not a directory" if directory.exists() else "does not exist"
        raise CommandError(f"--to: {name} {problem}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise CommandError(f"--to: {name} is not writable")
    return directory


def archived(partition: Partition, directory: Path, form: str) -> ArchiveFile:
    """The file that has exactly the rows of the partition. It is written if there is none.

    Raises ``CommandError`` if that fails, and leaves no part of a file.
    """
    others: list[Path] = []
    while True:
        number = f".{len(others) + 1}" if others else ""
        path = directory / f"{partition.name}{number}.{form}"
        try:
            is_new = not path.exists()
            if is_new:
                contents = _write(partition, path, form)
            else:
                contents = contents_of(partition)
                if _read_back(path, form) != contents:
                    others.append(path)
                    continue
                _sync(path)  # it may be of a command that was killed
            _sync(directory)  # keeps the name through a power failure
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror or error}") from error
        return ArchiveFile(path=path, contents=contents, is_new=is_new, others=others)


def _write(partition: Partition, path: Path, form: str) -> Contents:
    part = path.with_name(f"{path.name}.part")
    with _locked(part) as stream:
        try:
            if path.exists():
                raise CommandError(f"{path} was written by another process; run the command again")
            contents = copy_out(partition, form, stream.write)
            stream.flush()
            os.fsync(stream.fileno())
            if _read_back(part, form) != contents:
                raise CommandError(
                    f"{part} was not read back as it was written; {partition.name} was kept"
                )
            part.rename(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    return contents


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The empty file ``part``, for its owner alone: payloads may be secret."""
    number = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with open(number, "wb", buffering=BUFFER) as stream:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last owner may have renamed it between our open() and our lock.
            is_ours = os.path.samestat(os.fstat(number), os.stat(part))
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        if not is_ours:
            raise CommandError(f"another process is writing {part}")
        os.truncate(number, 0)
        yield stream


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _read_back(path: Path, form: str) -> Contents | None:
    """The contents of a file; None if one of its records is not complete."""
    rows = ids = 0
    try:
        for id_ in READERS[form](path):
            rows += 1
            ids += id_
    except (ValueError, csv.Error):
        return None
    return Contents(rows, ids)


def _csv_ids(path: Path) -> Iterator[int]:
    """The id of each record. Raises ``ValueError`` or ``csv.Error`` at one that is not complete."""
    with path.open(newline="\n", encoding="utf-8") as lines, _long_values():
        records = csv.reader(map(_complete, lines), strict=True)
        head = next(records, [])
        for record in records:
            if len(record) != len(head):
                raise ValueError("a record ends early")
            yield int(record[0])


def _complete(line: str) -> str:
    if not line.endswith("\n"):
        raise ValueError("a line ends early")
    return line


def _json_ids(path: Path) -> Iterator[int]:
    """The id of each line. Raises ``ValueError`` at one that is not complete."""
    with path.open("rb") as lines:
        for line in lines:
            record = RECORD.fullmatch(line)
            if record is None:
                raise ValueError("a line ends early")
            yield int(record[1])


READERS = {"csv": _csv_ids, "jsonl": _json_ids}


@contextmanager
def _long_values() -> Iterator[None]:
    """The limit of the csv module is the process's."""
    before = csv.field_size_limit(LARGEST_VALUE)
    try:
        yield
    finally:
        csv.field_size_limit(before)
