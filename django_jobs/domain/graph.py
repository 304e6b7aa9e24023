"""The graph of a workflow: its steps in order, what is upstream of each, and how two differ."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from .workflows import If, When

T = TypeVar("T", bound=Hashable)

Document = dict[str, Any]
"""A graph as JSON: ``{"steps": [{"name": …, "job_type": …, "after": {…}, …}, …]}``, in order."""


class StepKind(StrEnum):
    """What a step does: runs a handler, waits for a signal, lets time pass, or ends a workflow
    whose steps are those before it."""

    JOB = "job"
    WAIT = "wait"
    SLEEP = "sleep"
    WORKFLOW = "workflow"


class Circle(ValueError):
    """Steps that wait for each other. ``path`` begins and ends with the same name."""

    def __init__(self, path: list[str]) -> None:
        self.path = path
        super().__init__(f"steps wait for each other in a circle: {' -> '.join(path)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStep:
    """A step of a graph. ``after`` has what each parent's end has to be, by the parent's name;
    ``takes`` the step whose result an argument gets. ``details`` are further keys of the JSON."""

    name: str
    job_type: str
    kind: StepKind = StepKind.JOB
    after: Mapping[str, When | If] = field(default_factory=dict)
    takes: Mapping[str, str] = field(default_factory=dict)
    compensate: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> Document:
        return {
            "name": self.name,
            "job_type": self.job_type,
            "kind": str(self.kind),
            "after": {
                parent: when.document if isinstance(when, If) else str(when)
                for parent, when in self.after.items()
            },
            "takes": dict(self.takes),
            "compensate": self.compensate,
            **self.details,
        }


def document_of(steps: Iterable[GraphStep]) -> Document:
    """The JSON of a graph, in topological order. Raises :class:`Circle`."""
    by_name = {step.name: step for step in steps}
    order = topological_order({name: step.after for name, step in by_name.items()})
    return {"steps": [by_name[name].document() for name in order]}


def topological_order(parents: Mapping[str, Collection[str]]) -> list[str]:
    """The names, each after its parents, and otherwise in the given order. Raises
    :class:`Circle`. Every parent has to be a name too."""
    names = list(parents)
    place = {name: at for at, name in enumerate(names)}
    children: dict[str, list[str]] = {name: [] for name in names}
    missing = {name: len(set(parents[name])) for name in names}
    for name in names:
        for parent in set(parents[name]):
            children[parent].append(name)
    free = [place[name] for name in names if not missing[name]]  # sorted, so it is a heap
    order: list[str] = []
    while free:
        name = names[heapq.heappop(free)]
        order.append(name)
        for child in children[name]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(free, place[child])
    if len(order) < len(names):
        raise Circle(_circle({name: parents[name] for name in names if missing[name]}))
    return order


def _circle(parents: Mapping[str, Collection[str]]) -> list[str]:
    """A circle among names of which each has a parent among them."""
    name = next(iter(parents))
    way: dict[str, int] = {}
    while name not in way:
        way[name] = len(way)
        name = next(parent for parent in parents[name] if parent in parents)
    circle = list(way)[way[name] :]  # against the edges
    return [name, *reversed(circle)]


def ancestors(names: Iterable[T], parents: Callable[[T], Iterable[T]]) -> set[T]:
    """``names`` and all names upstream of them."""
    found: set[T] = set()
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += parents(name)
    return found


def fingerprint(graph: Document) -> str:
    """A text that is equal for equal graphs, in any order of their steps."""
    steps = sorted(graph["steps"], key=lambda step: str(step["name"]))
    text = json.dumps({**graph, "steps": steps}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Difference:
    """How a new graph differs from an old one, by the names of steps. ``changed`` has the keys
    that differ, and ``options`` those of the whole graph."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.options)

    def __str__(self) -> str:
        changed = [f"{name} ({', '.join(keys)})" for name, keys in self.changed.items()]
        parts = (
            *(("added", self.added), ("removed", self.removed)),
            ("changed", [*changed, *self.options]),
        )
        return "; ".join(f"{word}: {', '.join(names)}" for word, names in parts if names)


def difference(old: Document, new: Document) -> Difference:
    """How ``new`` differs from ``old``, in the order of their steps."""
    before = {step["name"]: step for step in old["steps"]}
    after = {step["name"]: step for step in new["steps"]}
    changed = {
        name: tuple(sorted(key for key in before[name] | step if _differ(key, before[name], step)))
        for name, step in after.items()
        if name in before and before[name] != step
    }
    return Difference(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=changed,
        options=tuple(
            key for key in sorted((old | new).keys() - {"steps"}) if _differ(key, old, new)
        ),
    )


def _differ(key: str, before: Document, after: Document) -> bool:
    return (key in before, before.get(key)) != (key in after, after.get(key))
