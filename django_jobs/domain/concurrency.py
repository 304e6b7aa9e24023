"""What a job type declares of its gates: templates of names, and the limit of a concurrency key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Any, NamedTuple

from .gates import OnConflict
from .hints import Explained, did_you_mean, why_not
from .payload import a_kind

LONGEST_KEY = 200
"""Characters of a concurrency key."""
MOST_RESOURCES = 8
"""Resources of one job: with the longest names, its gates fit into a row of an index."""
HIGHEST_LIMIT = 2**31 - 1

Arguments = Mapping[str, Any]


class Template(NamedTuple):
    """A text with the names of arguments in braces: ``"account:{account_id}"``."""

    text: str
    parts: tuple[tuple[str, str | None], ...]
    """Each literal text with the name of the argument that follows it."""

    @property
    def names(self) -> Iterator[str]:
        return (name for _, name in self.parts if name is not None)

    def fill(self, arguments: Arguments) -> str:
        """The text with the values of ``arguments``.

        Raises ``ValueError`` if one is missing or is neither text nor a number. The message has no
        values, which may be secret.
        """
        filled = []
        for literal, name in self.parts:
            filled.append(literal)
            if name is None:
                continue
            if name not in arguments:
                raise ValueError(f"the argument {name!r} is missing")
            value = arguments[name]
            if not isinstance(value, str | int | float):
                shown = "None" if value is None else a_kind(value)
                raise ValueError(f"the argument {name!r} is {shown}, not text or a number")
            filled.append(_text_of(value))
        return "".join(filled)


def _text_of(value: str | float) -> str:
    """The text of a value as its payload has it: of a member of an enumeration, its value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value)
    return int.__repr__(value) if isinstance(value, int) else float.__repr__(value)


@lru_cache(maxsize=1_000)
def template_of(text: str) -> Template:
    """The template that is written as ``text``.

    Raises ``ValueError`` unless each pair of braces holds the name of an argument and nothing else.
    """
    parts: list[tuple[str, str | None]] = []
    try:
        fields = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a template: {error}") from None
    for literal, name, form, conversion in fields:
        if name is not None and not (name.isidentifier() and not form and conversion is None):
            raise ValueError(
                f"{text!r} is not a template: braces hold the name of an argument and nothing "
                'else, such as "account:{account_id}"; for anything else, give a function of the '
                "payload"
            )
        parts.append((literal, name))
    return Template(text, tuple(parts))


def literal(text: str) -> Template:
    """A template that is filled with ``text`` itself, even if it has braces."""
    return Template(text, ((text, None),))


@dataclass(frozen=True, slots=True)
class Concurrency(metaclass=Explained):
    """How many jobs with the same key may be ready or running at once.

    ``key`` is a text with arguments of the handler in braces, or a function. ``limit`` is a number
    or a function. A function takes the payload, a dict of all arguments; a key of None is no key.
    ``on_conflict`` decides about a job whose key has no room: ``"wait"``, ``"discard"``,
    ``"cancel_running"`` or ``"replace_waiting"``. With ``"wait"``, an enqueue is refused
    while ``max_waiting`` jobs wait for the key; None is no limit.

    Raises ``TypeError`` or ``ValueError`` for anything else.
    """

    key: str | Callable[[dict[str, Any]], str | None]
    limit: int | Callable[[dict[str, Any]], int] = 1
    on_conflict: str = OnConflict.WAIT
    max_waiting: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            template_of(self.key)
        elif not callable(self.key):
            raise TypeError(f"key is text or a function of the payload, not {self.key!r}")
        for name in ("key", "limit"):
            rule = getattr(self, name)
            if callable(rule) and (why := why_not(rule, ("payload",))):
                raise TypeError(f"{name} {why}")
        if not callable(self.limit) and (problem := limit_problem(self.limit)):
            kind = ValueError if isinstance(self.limit, int) else TypeError
            raise kind(f"{problem}, or a function of the payload")
        most = self.max_waiting
        if most is not None and (problem := limit_problem(most, "max_waiting")):
            raise (ValueError if isinstance(most, int) else TypeError)(f"{problem}, or None")
        known = [choice.value for choice in OnConflict]
        if self.on_conflict not in known:
            hint = did_you_mean(str(self.on_conflict), known)
            listed = f"known are: {', '.join(known)}"
            raise ValueError(
                f"on_conflict has no choice {self.on_conflict!r}; "
                f"{' '.join(filter(None, (hint, listed)))}"
            )
        if most is not None and self.on_conflict != OnConflict.WAIT:
            raise ValueError(
                f"max_waiting is for on_conflict='wait': with {self.on_conflict!r} no more jobs "
                "wait for a key than its limit"
            )
        object.__setattr__(self, "on_conflict", OnConflict(self.on_conflict))


def limit_problem(limit: Any, name: str = "limit") -> str | None:
    """Why ``limit`` cannot be the limit of a key, or None. ``name`` is the option."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= HIGHEST_LIMIT:
        return None
    return f"{name} is a whole number from 1 to {HIGHEST_LIMIT:,}, not {limit!r}"


def name_problem(name: Any, longest: int) -> str | None:
    """Why ``name`` cannot name a tenant or a key of at most ``longest`` characters, or None."""
    if not isinstance(name, str):
        return f"is {a_kind(name)}, not text"
    if not 1 <= len(name) <= longest:
        return f"has {len(name):,} characters, not 1 to {longest}"
    if name.isprintable():
        return None
    if any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in name):
        return "has a control character"
    if any("\ud800" <= letter <= "\udfff" for letter in name):
        return "has a lone surrogate, which is not valid Unicode"
    return None
