"""Parses and validates the fields of a cron expression, and describes them in English.

Ranges are never expanded here, so that ``0-999999999`` costs nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
NTH = ("first", "second", "third", "fourth", "fifth")
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
NO_COMMAND = "the user and the command of a line of a crontab are left out"
MOST_TIMES = 6
"""Times of day that a description lists. For more it describes minutes and hours separately."""


class Field(NamedTuple):
    """A field and its values. ``names`` begin at ``low``. Weekday 7 is Sunday too."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, word: str) -> int:
        """The value of a word. Raises ``ValueError`` if it has none."""
        short = [name[:3].lower() for name in self.names]
        if word in short:
            return self.low + short.index(word)
        if not re.fullmatch("[0-9]+", word):
            meant = next((name for name in short if word.startswith(name)), "")
            raise ValueError(f"{word!r} is not a value{meant and f'; write {meant}'}")
        highest = 7 if self is WEEKDAY else self.high
        if len(word) > 4 or not self.low <= int(word) <= highest:
            raise ValueError(f"{word} is not between {self.low} and {highest}")
        return int(word)

    def spoken(self, word: str) -> str:
        """The name of a value, or the word itself."""
        try:
            return self.names[(self.number(word) - self.low) % len(self.names)]
        except (ValueError, ZeroDivisionError):
            return word


MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
DAY = Field("day", 1, 31)
MONTH = Field("month", 1, 12, MONTHS)
WEEKDAY = Field("day of the week", 0, 6, WEEKDAYS)
FIELDS = (MINUTE, HOUR, DAY, MONTH, WEEKDAY)

ITEM = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
HASHED = re.compile(r"h(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII)
NEAREST_WEEKDAY = re.compile(r"w(\d+)|(\d+)w", re.ASCII)
LAST_WEEKDAY = re.compile(r"(\w+)l|l([a-z]{3})", re.ASCII)  # of other dialects
BEFORE_LAST = re.compile(r"l-\d+w?", re.ASCII)  # of other dialects
ZONE_PREFIX = re.compile(r"((?:cron_)?tz)\s*=\s*['\":]*([^\s'\"]*)", re.ASCII | re.IGNORECASE)
NTH_WEEKDAY = re.compile(r"(\w+)#([1-5])|l(\d)", re.ASCII)


def split(cron: str) -> list[str]:
    """The five fields in lower case, with aliases replaced and ``?`` and ``*/1`` as ``*``.

    Raises ``ValueError`` unless there are five.
    """
    text = cron.strip().lower()
    if prefix := ZONE_PREFIX.match(cron.strip()):
        raise ValueError(f"{prefix[1]}= is no part of the expression")
    if text.startswith("@") and text not in ALIASES:
        hint = f"; {NO_COMMAND}" if text.split()[0] in ALIASES else ""
        raise ValueError(f"{cron!r} is not one of {', '.join(ALIASES)}{hint}")
    fields = ALIASES.get(text, text).split()
    if not fields:
        raise ValueError("the cron expression is empty")
    if len(fields) != len(FIELDS):
        names = ", ".join(field.name for field in FIELDS)
        hint = f"; {NO_COMMAND}" if len(fields) > len(FIELDS) else ""
        raise ValueError(f"{cron!r} has {len(fields)} fields, not five: {names}{hint}")
    for place in (2, 4):
        fields[place] = "*" if fields[place] == "?" else fields[place]
    return ["*" if re.fullmatch(r"\*/0*1", field) else field for field in fields]


def check(fields: list[str]) -> None:
    """Raise ``ValueError`` for fields that are invalid or easily misread."""
    for field, text in zip(FIELDS, fields, strict=True):
        try:
            if not _check_whole(field, text):
                for item in text.split(","):
                    _check_item(field, item)
        except ValueError as error:
            raise ValueError(f"{field.name} {text!r}: {error}") from None
    day, weekday = fields[2], fields[4]
    nth = [NTH_WEEKDAY.fullmatch(item) is not None for item in weekday.split(",")]
    if any(nth) and not all(nth):
        raise ValueError(f"{WEEKDAY.name} {weekday!r}: 1#1 and L5 do not mix with plain weekdays")
    if (any(nth) and day != "*") or ("w" in day and weekday != "*"):
        raise ValueError("15W, 1#1 and L5 do not combine with a second day field")


def needs_both_elsewhere(cron: str) -> bool:
    """Whether both day fields are given, and one begins with a star. Here a day that matches either
    is due; in Debian's cron and pg_cron, only one that matches both."""
    try:
        day, weekday = split(cron)[2::2]
    except ValueError:
        return False
    return "*" not in (day, weekday) and "*" in day + weekday


def _check_whole(field: Field, text: str) -> bool:
    """Whether ``text`` is a form that must be alone in its field."""
    if text == "*":
        return True
    if hashed := HASHED.fullmatch(text):
        low = field.number(hashed[1]) if hashed[1] else field.low
        high = field.number(hashed[2]) if hashed[2] else field.high
        if not low < high <= field.high:
            raise ValueError("the range of H goes from a lower to a higher value")
        if hashed[3] and not 1 <= _step(hashed[3]) <= high - low:
            raise ValueError("the step of H is shorter than its range")
        return True
    if re.match(r"r\b", text):
        raise ValueError("R stands for a random value, which changes at each use; use H")
    if field is DAY and (nearest := NEAREST_WEEKDAY.fullmatch(text)):
        field.number(nearest[1] or nearest[2])
        return True
    return False


def _check_item(field: Field, item: str) -> None:
    if field is DAY and item == "l":
        return
    if field is WEEKDAY and (nth := NTH_WEEKDAY.fullmatch(item)):
        field.number(nth[1] or nth[3])
        return
    if field is DAY and item in ("lw", "wl"):
        raise ValueError("there is no last weekday of the month; L is its last day")
    if field is DAY and BEFORE_LAST.fullmatch(item):
        raise ValueError("no day can be counted from the last one; L is the last day")
    if field is DAY and NEAREST_WEEKDAY.fullmatch(item):
        raise ValueError("15W is alone in its field; make a schedule for each such day")
    if field is WEEKDAY and (form := LAST_WEEKDAY.fullmatch(item)):
        raise ValueError(f"for the last one of the month write L{field.number(form[1] or form[2])}")
    parts = ITEM.fullmatch(item)
    if not parts:
        raise ValueError(f"{item!r} is neither a value nor a range nor a step")
    if re.fullmatch(r"\*(/0*1)?", item):
        raise ValueError("* means every value; use it alone")
    low, high, step = parts[1], parts[2], _step(parts[3] or "1")
    first = field.number(low) if low else field.low
    last = field.number(high) if high else field.high
    if high and (first == last or (field is WEEKDAY and (first, last) == (7, 0))):
        raise ValueError(f"{item!r} is a range of one value; write {low}, or * for all")
    if step == 0:
        raise ValueError("a step must be at least 1")
    if high and first > last and parts[3]:
        raise ValueError(f"{item!r} wraps around with a step; list the values instead")
    if parts[3] and first + step > last:
        fits = field.low + step <= field.high
        other = f", or */{step} for a step through all" if fits else ", or use an interval"
        raise ValueError(f"{item!r} means {low or first} only; write {low or first}{other}")


def _step(digits: str) -> int:
    return int(digits) if len(digits) <= 4 else 9999


@lru_cache(maxsize=1_024)
def describe(cron: str) -> str:
    """A cron expression in English, such as ``at 02:30 on weekdays``. Never raises."""
    try:
        minute, hour, day, month, weekday = split(cron[:200])
    except ValueError:
        return cron[:200]
    time = _time(minute, hour)
    days = _days(day, month, weekday)
    if not days and hour != "*" and time.startswith("at "):
        days = "every day"
    elif days.startswith("in ") and hour != "*" and time.startswith("at "):
        days = f"every day {days}"
    return f"{time} {days}".strip()


def _time(minute: str, hour: str) -> str:
    every = _every_minutes(minute)
    minutes, hours = _plain_numbers(minute), _plain_numbers(hour)
    window = re.fullmatch(r"(\d\d?)-(\d\d?)", hour, re.ASCII)
    if minute == hour == "h":
        return "at a time derived from its name"
    if hour == "*":
        if every:
            return every
        if minute == "h":
            return "every hour at a minute derived from its name"
        return "every hour" if minutes == [0] else f"at {_words(MINUTE, minute)} of every hour"
    if minutes and hours and len(minutes) * len(hours) <= MOST_TIMES:
        clock = [f"{h:02}:{m:02}" for h in sorted(set(hours)) for m in sorted(set(minutes))]
        return f"at {_joined(clock)}"
    if every and (window or len(hours) == 1):
        first, last = window.groups() if window else (hour, hour)
        return f"{every} between {first:0>2}:00 and {last:0>2}:59"
    if len(minutes) == 1:
        if window:
            first, last = (f"{word:0>2}:{minutes[0]:02}" for word in window.groups())
            return f"every hour from {first} to {last}"
        if step := re.fullmatch(r"(?:\*|0+)/(\d\d?)", hour, re.ASCII):
            even = minutes == [0] and int(step[1]) in (2, 3, 4, 6, 8, 12)
            return f"every {int(step[1])} hours" + ("" if even else f" from 00:{minutes[0]:02}")
    return f"{every or f'at {_words(MINUTE, minute)}'} of {_words(HOUR, hour)}"


def _every_minutes(minute: str) -> str:
    if minute == "*":
        return "every minute"
    step = re.fullmatch(r"(?:\*|0+)/(\d\d?)", minute, re.ASCII)
    if not step:
        return ""
    count = int(step[1])
    even = count and 60 % count == 0
    return f"every {count} minutes" + ("" if even else " from the start of every hour")


def _days(day: str, month: str, weekday: str) -> str:
    months = "every month" if month == "*" else _words(MONTH, month)
    within = "" if month == "*" else f" in {months}"
    on_day = f"on {_words(DAY, day)} of {months}"
    on_weekday = f"{_weekdays(weekday)}{within}"
    if "#" in weekday or weekday.startswith("l"):
        on_weekday = f"on {_words(WEEKDAY, weekday)} of {months}"
    if day == "*":
        return within.strip() if weekday == "*" else on_weekday
    return on_day if weekday == "*" else f"{on_day} or {on_weekday}"


def _weekdays(weekday: str) -> str:
    if weekday in ("1-5", "mon-fri"):
        return "on weekdays"
    if weekday in ("0,6", "6,0", "6,7", "6-7", "6-0", "sat,sun", "sun,sat", "sat-sun"):
        return "on weekends"
    words = _words(WEEKDAY, weekday)
    return f"from {words}" if re.fullmatch(r"\w+-\w+", weekday, re.ASCII) else f"on {words}"


def _words(field: Field, text: str) -> str:
    """``minute 5``, ``days 1 and 15``, ``Monday and Friday``, ``every 2nd hour from 9 to 17``."""
    if hashed := HASHED.fullmatch(text):
        within = f" from {hashed[1]} to {hashed[2]}" if hashed[1] else ""
        if hashed[3]:
            return (
                f"every {_ordinal(hashed[3])} {field.name}{within} (offset derived from its name)"
            )
        return f"a {field.name}{within} derived from its name"
    items = [_item(field, item) for item in text.split(",")]
    noun = "" if field.names else f"{field.name} "
    if all(plain for plain, _ in items):
        several = noun and (len(items) > 1 or " to " in items[0][1])
        noun = f"{field.name}s " if several else noun
        return noun + _joined([words for _, words in items])
    return _joined([f"{noun if plain else ''}{words}" for plain, words in items])


def _item(field: Field, item: str) -> tuple[bool, str]:
    """Whether the field's noun precedes the item, and the item in words."""
    if item == "l":
        return False, "the last day"
    if nearest := NEAREST_WEEKDAY.fullmatch(item):
        return False, f"the weekday nearest to day {nearest[1] or nearest[2]}"
    if field is WEEKDAY and (nth := NTH_WEEKDAY.fullmatch(item)):
        which = NTH[int(nth[2]) - 1] if nth[2] else "last"
        return False, f"the {which} {field.spoken(nth[1] or nth[3])}"
    parts = ITEM.fullmatch(item)
    if not parts:
        return True, item
    low, high, step = (field.spoken(word) if word else "" for word in parts.groups())
    span = f"{low} to {high}" if high else low
    if not step:
        return True, span or f"every {field.name}"
    return False, f"every {_ordinal(parts[3])} {field.name}" + (f" from {span}" if span else "")


def _plain_numbers(text: str) -> list[int]:
    """The values of a list of plain numbers; empty for any other text."""
    return [int(word) for word in text.split(",")] if re.fullmatch(r"\d\d?(,\d\d?)*", text) else []


def _ordinal(digits: str) -> str:
    teens = digits[-2:] in ("11", "12", "13")
    return digits + ("th" if teens else {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th"))


def _joined(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
