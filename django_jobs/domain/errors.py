"""What is kept of an exception: readable, bounded and storable, whatever the exception is."""

from __future__ import annotations

import hashlib
import re
import traceback
from dataclasses import dataclass
from typing import Any

MAX_TYPE = 200
MAX_MESSAGE = 8_192
MAX_TRACEBACK = 65_536
"""Characters kept of each; of a longer text the head and the tail."""

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
DETAIL = re.compile(r"^DETAIL: .*?(?=\n\n|\n[A-Z]{4,}: |\Z)", re.MULTILINE | re.DOTALL)
"""Up to the next field or the end: the values of a row may hold line breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """One error as it is stored with a run.

    ``fingerprint`` is equal for errors of one class raised at one place in the project's code,
    whatever their message says; it is what dead letters are grouped by.
    """

    type: str
    message: str
    traceback: str = ""
    fingerprint: str = ""

    @property
    def summary(self) -> str:
        """``type: message`` on one line of at most 300 characters."""
        first_line = next(iter(self.message.strip().splitlines()), "")
        text = f"{self.type}: {first_line}" if first_line else self.type
        return text if len(text) <= 300 else text[:299] + "…"

    @classmethod
    def of(cls, error: BaseException) -> ErrorReport:
        """Describe ``error``. Never raises, also where its ``__str__`` does."""
        name = _name_of(type(error))
        return cls(
            type=cut(clean(name), MAX_TYPE),
            message=cut(clean(without_detail(text_of(error))), MAX_MESSAGE),
            traceback=cut(clean(without_detail(_traceback_of(error))), MAX_TRACEBACK),
            fingerprint=_fingerprint(name, error),
        )

    @classmethod
    def plain(cls, type: str, message: str, traceback: str = "") -> ErrorReport:
        """An error that has no exception of its own behind it, such as a worker that died.
        ``traceback`` is one of :meth:`of`."""
        return cls(
            type=type,
            message=cut(clean(message), MAX_MESSAGE),
            traceback=traceback,
            fingerprint=_digest(type),
        )


def clean(text: str) -> str:
    """``text`` with NUL and lone surrogates escaped: PostgreSQL stores neither."""
    return UNSTORABLE.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``: its head and its tail, and how much is missing."""
    if len(text) <= limit:
        return text
    if limit < 100:
        return text[: limit - 1] + "…"
    notice = f"\n… {len(text) - limit} characters left out …\n"
    head = (limit - len(notice)) // 2
    tail = limit - len(notice) - head
    return text[:head] + notice + text[-tail:]


def without_detail(text: str) -> str:
    """``text`` without PostgreSQL's DETAIL lines, which quote the values of rows."""
    return DETAIL.sub("DETAIL: (left out)", text)


def text_of(value: Any) -> str:
    """``str(value)``, or a note where that raises."""
    try:
        return str(value)
    except BaseException as second:
        kind = "error" if isinstance(value, BaseException) else "value"
        return f"(the {kind}'s own text could not be made: {type(second).__name__})"


def _name_of(kind: type[BaseException]) -> str:
    try:
        if kind.__module__ == "builtins":
            return kind.__qualname__
        return f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:  # of a metaclass
        return "(a class without a name)"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, limit=-100))
    except BaseException as second:
        return f"(the traceback could not be made: {type(second).__name__})"


def _fingerprint(name: str, error: BaseException) -> str:
    """Class and the innermost frame outside installed packages; line numbers move too often."""
    return _digest(f"{name}@{_place_of(error)}")


def _place_of(error: BaseException) -> str:
    place = ""
    try:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            installed = "site-packages" in code.co_filename or "/lib/python" in code.co_filename
            if not place or not installed:
                place = f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}"
    except BaseException:  # of an exception that allows no look at itself
        return place
    return place


def _digest(text: str) -> str:
    return hashlib.sha256(clean(text).encode()).hexdigest()[:16]
