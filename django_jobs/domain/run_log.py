"""What is kept of a run: a bounded number of log lines without secrets, and what it used."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple

from .errors import cut, without_detail

MASK = "••••••"
LONGEST_LINE = 4_096
"""Characters of one record. Of a longer one the beginning and the end are kept."""
LARGEST_RECORD = 65_536
"""Characters that are looked at for secrets. What is beyond is left out before."""
SHORTEST_SECRET = 4
"""Shorter values of a payload would be masked in the midst of words."""

# Characters that a terminal or a browser acts on, and those that PostgreSQL cannot store.
UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


OPENING, CLOSING = tuple("([{"), tuple(")]}")
# A text that is not closed, because it was cut, ends with the record.
QUOTED = r"""b?"(?:[^"\\]|\\.)*(?:"|\\?\Z)|b?'(?:[^'\\]|\\.)*(?:'|\\?\Z)"""
# In JSON or a repr within another one. Its end is as often escaped as its begin.
ESCAPED = r"""(?P<end>\\{1,7}["'])(?:(?!(?<!\\)(?P=end)).)*(?:(?P=end)|\Z)"""
WORD = re.compile(r"[^\s,;&()\[\]{}]*")
QUOTED_OR_WORD = re.compile(
    rf"{QUOTED}|{ESCAPED}|(?:(?:Bearer|Basic|Token|Digest)\s)?{WORD.pattern}",
    re.IGNORECASE | re.DOTALL,
)
PIECE = re.compile(rf"{QUOTED}|[()\[\]{{}}]|b|[^()\[\]{{}}\"'b]+", re.DOTALL)
HEADER = re.compile("cookie|authorization", re.IGNORECASE)
"""Names of headers, whose values have blanks and semicolons in them."""
REST_OF_LINE = re.compile(r"[^\r\n]*")


class RunLog:
    """Takes up to ``lines`` records of together ``size`` characters: one half are the first, and
    the other the last. ``words`` are the parts of secret names, ``secrets`` values to mask."""

    def __init__(
        self, *, lines: int, size: int, words: Sequence[str] = (), secrets: Iterable[str] = ()
    ) -> None:
        self._lines = max(lines // 2, 1)
        self._size = size // 2
        self._words = tuple(words)
        self._secrets = sorted(
            {form for one in secrets if len(one) >= SHORTEST_SECRET for form in _forms(one)},
            key=len,
            reverse=True,
        )
        self._first: list[str] = []
        self._first_size = 0
        self._last: deque[str] = deque()
        self._last_size = 0
        self._left_out = 0

    def add(self, at: float, level: str, logger: str, message: str) -> None:
        """Add a record. ``at`` is in epoch seconds."""
        moment = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        text = f"{moment.removesuffix('+00:00')}Z {level} {logger}: {self._masked(message)}"
        line = readable(text)
        full = self._left_out or self._last or len(self._first) >= self._lines
        if not full and self._first_size + len(line) <= self._size:
            self._first.append(line)
            self._first_size += len(line)
            return
        self._last.append(line)
        self._last_size += len(line)
        while len(self._last) > self._lines or self._last_size > self._size:
            self._last_size -= len(self._last.popleft())
            self._left_out += 1

    def text(self) -> str:
        """All lines, with a note about those that were left out."""
        note = [f"({self._left_out} lines are left out)"] if self._left_out else []
        return "\n".join([*self._first, *note, *self._last])

    def _masked(self, message: str) -> str:
        message = without_detail(cut(message, LARGEST_RECORD))
        for secret in self._secrets:
            message = message.replace(secret, MASK)
        return without_assigned(message, self._words)


def masked(value: Any, words: Iterable[str], levels: int, too_deep: str) -> Any:
    """JSON with values under secret names masked, and ``too_deep`` for what is nested deeper."""
    if isinstance(value, dict | list) and not levels:
        return too_deep
    if isinstance(value, dict):
        return {
            key: MASK
            if any(word.lower() in key.lower() for word in words)
            else masked(item, words, levels - 1, too_deep)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [masked(item, words, levels - 1, too_deep) for item in value]
    return value


def readable(text: str) -> str:
    """A record as a line. What follows a line break is indented, so that no message looks like
    another record; other control characters are escaped."""
    text = UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return cut(text, LONGEST_LINE).rstrip("\n").replace("\n", "\n    ")


def secrets_in(value: Any, words: Sequence[str]) -> set[str]:
    """The texts and numbers under secret names in a payload, at any depth."""
    found: set[str] = set()
    todo = [(value, False)]
    while todo:
        item, is_secret = todo.pop()
        if isinstance(item, dict):
            for key, inner in item.items():
                named = any(word in str(key).lower() for word in words)
                todo.append((inner, is_secret or named))
        elif isinstance(item, list):
            todo += [(inner, is_secret) for inner in item]
        elif is_secret and item is not None and not isinstance(item, bool):
            found.add(str(item))
    return found


def _forms(secret: str) -> set[str]:
    """The text as it is logged: itself, in JSON and by ``repr``."""
    quoted = (json.dumps(secret), json.dumps(secret, ensure_ascii=False), repr(secret))
    return {secret, *(one[1:-1] for one in quoted)}


def without_assigned(message: str, words: tuple[str, ...]) -> str:
    """The message with the values masked in ``password=…``, ``"api_key": "…"``, ``tokens: […]`` and
    the like, ``words`` being parts of secret names. Each character is looked at once by each
    pattern, so that no text takes long."""
    folded = message.casefold()
    if not any(word.casefold() in folded for word in words):
        return message  # found twenty times as fast as by the pattern
    parts, at = [], 0
    while found := _names(words).search(message, at):
        end = _end_of_value(message, found)
        parts += [message[at : found.end()], MASK if end > found.end() else ""]
        at = end
    return "".join([*parts, message[at:]])


def _end_of_value(message: str, name: re.Match[str]) -> int:
    at = name.end()
    if not name["quote"] and HEADER.search(name[0]):
        return _end(REST_OF_LINE, message, at)
    at = _end(QUOTED_OR_WORD, message, at)
    while message[at : at + 1] in OPENING:  # a list, or a call such as bytearray(b"…")
        depth = 0
        for piece in PIECE.finditer(message, at):
            at = piece.end()
            depth += (piece[0] in OPENING) - (piece[0] in CLOSING)
            if depth == 0:
                break
        at = _end(WORD, message, at)
    return at


def _end(pattern: re.Pattern[str], message: str, at: int) -> int:
    found = pattern.match(message, at)
    return found.end() if found else at


@lru_cache(maxsize=8)
def _names(words: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(map(re.escape, words))
    # "TokenError: " is the class of an error, and what follows its message.
    name = rf"(?:{names})(?![\w-]{{0,64}}(?-i:Error|Exception):\s)[\w-]{{0,64}}"
    quote = r"""(?P<quote>(?:\\{0,7}["'])?)"""
    return re.compile(rf"{name}{quote}\s{{0,4}}[=:]\s{{0,4}}", re.IGNORECASE)


ALL_OF_ITS_TIME = inf
"""In place of CPU seconds those that the attempt ran: short attempts have one cost in common."""


class RunCost(NamedTuple):
    """CPU time, memory and queries of one attempt. None is what was not measured. CPU seconds may
    be :data:`ALL_OF_ITS_TIME`. Queries are statements that Django sent for it, and the seconds that
    it waited for them.

    It is a tuple because one is made for each run: a frozen dataclass takes four times as long.
    """

    cpu_seconds: float | None = None
    max_rss_kb: int | None = None
    queries: int | None = None
    query_seconds: float | None = None
