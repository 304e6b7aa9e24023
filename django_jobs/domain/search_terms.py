"""The language of the search box: ids, ``type:name``, and paths into the payload."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from .hints import nearest

TERM = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*"?)+')
QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,30})(?:\.[0-9]{1,30})?")
FINGERPRINT = re.compile(r"[0-9a-f]{16}")
LITERALS = {"true": True, "false": False, "null": None}
LONGEST_PATH = 10
"""Names."""
MOST_TERMS = 20
"""Terms of a search besides ids. Each is a condition: 500 of them took six seconds."""


class Argument(NamedTuple):
    """An argument of the handler, or a value inside of one, that has one of ``values``."""

    path: tuple[str, ...]
    values: tuple[Any, ...]

    def documents(self) -> Iterable[dict[str, Any]]:
        """Parts of a payload of which one has to be in it: the value, or a list that has it."""
        for value in (*self.values, *([value] for value in self.values)):
            part = value
            for name in reversed(self.path):
                part = {name: part}
            yield part

    def is_secret(self, words: Collection[str]) -> bool:
        """Whether a name of its path contains one of these words, so that its value is masked."""
        return any(word.lower() in name.lower() for word in words for name in self.path)


@dataclass(slots=True)
class Terms:
    """What a text in the search box asks for: ``numbers``, values by the ``kinds`` that the page
    knows, and ``arguments``. ``unknown`` are the terms that are none of these. If there are
    ``too_many``, there is nothing else."""

    numbers: list[int] = field(default_factory=list)
    kinds: dict[str, list[str]] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    too_many: bool = False

    def of(self, kind: str) -> list[str]:
        return self.kinds.get(kind, [])


class Word(NamedTuple):
    """A part of a text in a search box. Without a colon its ``kind`` is empty."""

    text: str
    kind: str
    value: str
    quoted: bool


def words(text: str) -> Iterator[Word]:
    """The parts of ``text``, as they are typed. Quotes are around values with spaces."""
    for match in TERM.finditer(text):
        whole = match[0]
        kind, colon, given = whole.partition(":")
        if not colon or whole.startswith('"'):
            kind, given = "", whole
        yield Word(whole, kind, *_value(given))


def parsed(text: str, kinds: Collection[str], *, arguments: bool = False) -> Terms:
    """The terms of ``text`` on a page that knows these kinds, and maybe arguments too."""
    terms = Terms()
    for place, (term, kind, value, quoted) in enumerate(words(text)):
        if place - len(terms.numbers) >= MOST_TERMS:
            return Terms(too_many=True)
        if ":" not in term and term.isascii() and term.lstrip("#").isdigit():
            terms.numbers.append(int(term.lstrip("#")[:40]))
        elif not kind or not (value or quoted):
            terms.unknown.append(term)
        elif kind in kinds:
            terms.kinds.setdefault(kind, []).append(value)
        elif arguments and (path := _path(kind)):
            terms.arguments.append(Argument(path, (value,) if quoted else _values(value)))
        else:
            terms.unknown.append(term)
    return terms


def means(value: str, name: str) -> bool:
    """Whether ``value`` asks for this name: exactly, or by its begin if it ends in a point or an
    asterisk, as ``billing.`` and ``billing.*``."""
    return name == value or (value.endswith((".", "*")) and name.startswith(value.rstrip("*")))


def near_terms(text: str, known: Mapping[str, Collection[str]]) -> list[str]:
    """The terms that may be meant by a word of ``text``, which found nothing, the closest first:
    those of a ``known`` kind, or with one of the names of their kind. The empty kind has the names
    that are found without one."""
    for word in islice(filter(lambda one: one.value, words(text)), 5):  # compared with all names
        if word.kind not in known:
            found = [term(kind, word.value) for kind in nearest(word.kind, known)]
            found = found or nearest(word.value, known.get("", ()))
        elif any(means(word.value, name) for name in known[word.kind]):
            continue
        else:
            near = nearest(word.value.rstrip(".*"), known[word.kind])
            found = [term(word.kind, name) if word.kind else name for name in near]
        if found:
            return found
    return []


def term(kind: str, value: str) -> str:
    return f"{kind}:{value}" if re.fullmatch(r'[^\s"]+', value) else f"{kind}:{_quote(value)}"


def _quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _value(given: str) -> tuple[str, bool]:
    if match := QUOTED.fullmatch(given):
        return re.sub(r"\\(.)", r"\1", match[1]), True
    return given, False


def _path(kind: str) -> tuple[str, ...]:
    """The names of a path; empty if it is none. ``args.`` before it is left out."""
    names = kind.removeprefix("args.").split(".")
    usable = all(names) and '"' not in kind and len(names) <= LONGEST_PATH
    return tuple(names) if usable else ()


def _values(value: str) -> tuple[Any, ...]:
    """What a value without quotes may be in JSON."""
    if NUMBER.fullmatch(value):
        return json.loads(value), value
    return (LITERALS[value], value) if value in LITERALS else (value,)
