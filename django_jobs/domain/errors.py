"""Reports of exceptions: readable, bounded in size, and storable in PostgreSQL."""

from __future__ import annotations

import errno
import hashlib
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .numbers import is_whole

MAX_TYPE = 200
MAX_CODE = 32
MAX_MESSAGE = 8_192
MAX_TRACEBACK = 65_536
"""Characters. Of a longer text the head and the tail are kept."""

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
DETAIL = re.compile(r"^DETAIL: .*?(?=\n\n|\n[A-Z]{4,}: |\Z)", re.MULTILINE | re.DOTALL)
"""Matches to the next field or the end, because values of a row may contain line breaks."""

CODE = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_CODE}}}")
SQLSTATE = re.compile("[0-9A-Z]{5}")
REPLIES = "status_code", "status", "http_status", "smtp_code"
"""Attributes with the code of a reply, by HTTP or SMTP: a number from 100 to 599."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReport:
    """One error as it is stored with a run.

    ``fingerprint`` is equal for errors of one class raised at one place in the project's code. It
    does not depend on the message. Dead letters are grouped by it. ``code`` is a short text that
    operators search for, such as ``503``, ``23505`` or ``ECONNREFUSED``; it may be empty.
    """

    type: str
    message: str
    code: str = ""
    traceback: str = ""
    fingerprint: str = ""

    @property
    def summary(self) -> str:
        """``type: message`` on one line of at most 300 characters."""
        first_line = next(iter(self.message.strip().splitlines()), "")
        text = f"{self.type}: {first_line}" if first_line else self.type
        return text if len(text) <= 300 else text[:299] + "…"

    def noted(self, note: str) -> ErrorReport:
        """The same with ``note`` added to the first line of its message."""
        first_line, *others = self.message.strip().split("\n")
        first_line = f"{first_line} ({note})" if first_line else note
        message = cut(clean("\n".join([first_line, *others])), MAX_MESSAGE)
        return replace(self, message=message)

    @classmethod
    def of(cls, error: BaseException, callers: Iterable[str] = ()) -> ErrorReport:
        """Describe ``error``. Never raises, even if its ``__str__`` does. The traceback begins
        behind the first frames in the directories ``callers``."""
        name = _name_of(type(error))
        frames = _traceback_of(error, tuple(callers))
        return cls(
            type=cut(clean(name), MAX_TYPE),
            message=cut(clean(without_detail(text_of(error))), MAX_MESSAGE),
            code=_code_of(error),
            traceback=cut(clean(without_detail(frames)), MAX_TRACEBACK),
            fingerprint=_fingerprint(name, error),
        )

    @classmethod
    def plain(cls, type: str, message: str, traceback: str = "") -> ErrorReport:
        """An error without an exception, such as a crashed worker process.

        ``traceback`` is one that :meth:`of` made.
        """
        return cls(
            type=type,
            message=cut(clean(message), MAX_MESSAGE),
            traceback=traceback,
            fingerprint=_digest(type),
        )


def chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and its causes, at most ten of them, because a chain may be circular."""
    link: BaseException | None = error
    for _ in range(10):
        if link is None:
            return
        yield link
        link = link.__cause__


def clean(text: str) -> str:
    """``text`` with NUL and lone surrogates escaped, which PostgreSQL cannot store."""
    return UNSTORABLE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def reason_problem(reason: object) -> str | None:
    """Why a person's reason cannot be stored, or None. Raises ``TypeError`` for what is no text."""
    if not isinstance(reason, str):
        raise TypeError(f"a reason is text, not {reason!r}")
    if not (found := UNSTORABLE.search(reason)):
        return None
    what = "a NUL character" if found.group() == "\0" else "a lone surrogate"
    return f"the reason has {what}, which PostgreSQL cannot store"


def cut(text: str, limit: int) -> str:
    """At most ``limit`` characters of ``text``: its head, how many are left out, and its tail."""
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
    """``str(value)``, or a note if that raises. Never raises."""
    try:
        return str(value)
    except BaseException as second:
        kind = "error" if isinstance(value, BaseException) else "value"
        return f"(the {kind}'s own text is unreadable: {type(second).__name__})"


def _name_of(kind: type[BaseException]) -> str:
    try:
        if kind.__module__ == "builtins":
            return kind.__qualname__
        return f"{kind.__module__}.{kind.__qualname__}"
    except BaseException:  # a metaclass may raise
        return "(a class without a name)"


def _code_of(error: BaseException) -> str:
    try:
        return next(filter(None, map(_own_code, chain(error))), "")
    except BaseException:  # attributes may be properties that raise
        return ""


def _own_code(error: BaseException) -> str:
    """The SQLSTATE of a database error, the status of an HTTP or SMTP reply, a ``code`` that the
    exception has, or the name of the errno of an error of the operating system."""
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str) and SQLSTATE.fullmatch(state):
        return str(state)
    for source in (getattr(error, "response", None), error):
        for name in REPLIES:
            reply = getattr(source, name, None)
            if is_whole(reply) and 100 <= reply <= 599:
                return str(int(reply))
    code = getattr(error, "code", None)
    text = str(int(code)) if is_whole(code) else code
    if code and isinstance(text, str) and CODE.fullmatch(text):
        return str(text)
    # Libraries derive their errors from OSError, and number them by rules that are not errno's.
    if isinstance(error, OSError) and type(error).__module__ == "builtins":
        return errno.errorcode.get(error.errno or 0, "")
    return ""


def _traceback_of(error: BaseException, callers: tuple[str, ...]) -> str:
    try:
        report = traceback.TracebackException.from_exception(error, limit=-100)
        for link in _links(report):
            link.stack[:] = _behind(callers, link.stack)
        return "".join(report.format())
    except BaseException as second:
        return f"(the traceback is unreadable: {type(second).__name__})"


def _links(report: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """An exception, its causes, and those during whose handling they were raised."""
    links = [report]
    for link in links:  # it grows
        yield link
        links += filter(None, (link.__cause__, link.__context__))


def _behind(
    callers: tuple[str, ...], stack: list[traceback.FrameSummary]
) -> list[traceback.FrameSummary]:
    """The frames without those of the callers and of libraries before the first other one; all of
    them if there is no other, because a caller itself failed."""
    begin = 0
    for place, frame in enumerate(stack):
        if frame.filename.startswith(callers):
            begin = place + 1
        elif not _is_installed(frame.filename):
            break
    return stack[begin:] or stack


def _is_installed(filename: str) -> bool:
    return "site-packages" in filename or "/lib/python" in filename


def _fingerprint(name: str, error: BaseException) -> str:
    """From the class and the innermost frame of the project. Line numbers change too often."""
    return _digest(f"{name}@{_place_of(error)}")


def _place_of(error: BaseException) -> str:
    place = ""
    try:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            if not place or not _is_installed(code.co_filename):
                place = f"{frame.f_globals.get('__name__', '')}.{code.co_qualname}"
    except BaseException:  # the exception may raise when it is inspected
        return place
    return place


def _digest(text: str) -> str:
    return hashlib.sha256(clean(text).encode()).hexdigest()[:16]
