"""What is known of a job's way to a worker: gates, and the texts about them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from ..separators import number_text


@dataclass(frozen=True, slots=True)
class Ref:
    """A row that a text names. ``kind``, of its model: ``job``, ``queue``, ``worker``."""

    kind: str
    id: int
    label: str


Text = tuple[str | Ref, ...]
"""A text whose rows can be made links."""
Value = str | int | Ref | Text


def fill(template: str, **values: Value) -> Text:
    """``template`` with its ``%(name)s`` replaced; numbers get thousands separators."""
    parts: list[str | Ref] = []
    for place, part in enumerate(re.split(r"%\((\w+)\)s", template)):
        if place % 2 == 0:
            parts.append(part.replace("%%", "%"))
            continue
        match values[part]:
            case tuple() as text:
                parts += text
            case int() as number:
                parts.append(number_text(number))
            case value:
                parts.append(value)
    return tuple(part for part in parts if part)


def joined(texts: Iterable[Text], separator: str = ", ") -> Text:
    parts: list[str | Ref] = []
    for text in texts:
        parts += [separator, *text] if parts else text
    return tuple(parts)


def plain(text: Text) -> str:
    return "".join(part.label if isinstance(part, Ref) else part for part in text)


class GateState(StrEnum):
    """Whether a gate lets the job pass. ``UNKNOWN``: it cannot be known yet, or from outside."""

    PASSED = "passed"
    HOLDS = "holds"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Gate:
    """One thing that may hold up a job. ``text`` says how it is, and by whom or what it is closed;
    ``details`` are lines below it.

    Of a gate that holds, ``sentence`` says so by itself, and ``phrase`` says it in a list.
    ``lasting``: it ends when a person acts, or at a time that nobody knows. ``momentary``: what it
    reads changes from second to second, so it says nothing about a job that is due later.
    """

    name: str
    title: str
    text: Text
    _: KW_ONLY
    state: GateState = GateState.PASSED
    sentence: Text = ()
    phrase: str = ""
    details: tuple[Text, ...] = ()
    lasting: bool = False
    momentary: bool = False

    @property
    def holds(self) -> bool:
        """Whether it holds up the job now."""
        return self.state == GateState.HOLDS


holding = partial(Gate, state=GateState.HOLDS)
"""A gate that holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """In how many seconds the job should start, and from what. ``at_least``: it may be more."""

    seconds: float
    basis: str
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer for one job: a sentence, and each gate in the order in which a job passes them.

    ``before`` is how many jobs are before it, counted up to 10,000, or up to 1,000 of
    those with the same gates; None if it is in no line.
    ``expected`` is None where it is not known.
    """

    job: int
    status: str
    sentence: Text
    gates: tuple[Gate, ...] = ()
    before: int | None = None
    more_before: bool = False
    expected: Expected | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "job": self.job,
            "status": self.status,
            "sentence": plain(self.sentence),
            "before": self.before,
            "more_before": self.more_before,
            "expected_start_seconds": self.expected.seconds if self.expected else None,
            "expected_start_basis": self.expected.basis if self.expected else None,
            "gates": [
                {
                    "gate": gate.name,
                    "title": gate.title,
                    "state": gate.state.value,
                    "text": plain(gate.text),
                    "details": list(map(plain, gate.details)),
                    "refs": [
                        {"kind": part.kind, "id": part.id, "label": part.label}
                        for text in (gate.text, *gate.details)
                        for part in text
                        if isinstance(part, Ref)
                    ],
                }
                for gate in self.gates
            ],
        }
