"""The steps of a definition: their picture, their table, and how they differ from another one's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ... import registry
from ...domain.graph import Difference, StepKind, difference
from ...domain.graph_layout import Key, folded
from ...domain.workflows import When, condition_text
from ...models import StepCondition
from ...separators import number_text
from ..base.formatting import NOTHING, badge, with_quiet_line
from ..base.json_display import masked
from ..layout.tables import Column, Table, unseen
from .drawing import Line, Node, between, draw, steps_table

CONDITIONS = dict(StepCondition.choices)
STATES = {str(StepKind.WAIT): "waiting", str(StepKind.SLEEP): "scheduled"}
LONGEST_VALUE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredStep:
    """A step of a stored graph, as far as it can be read."""

    name: str
    job_type: str
    kind: str
    after: Mapping[str, Any]
    takes: Mapping[str, str]
    compensate: str
    document: Mapping[str, Any] = field(repr=False)

    @property
    def is_gone(self) -> bool:
        """Whether this process has no handler for it."""
        return self.kind == StepKind.JOB and registry.find(self.job_type) is None


def declared_steps(graph: Mapping[str, Any]) -> dict[str, DeclaredStep]:
    """The steps by name in a graph. What is not a step is left out."""
    stored = graph.get("steps")
    steps = [
        _step(one)
        for one in (stored if isinstance(stored, list) else ())
        if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]
    return {step.name: step for step in steps}


def _step(document: Mapping[str, Any]) -> DeclaredStep:
    after, takes = document.get("after"), document.get("takes")
    return DeclaredStep(
        name=document["name"],
        job_type=str(document.get("job_type") or ""),
        kind=str(document.get("kind") or StepKind.JOB),
        after=after if isinstance(after, dict) else {},
        takes=takes if isinstance(takes, dict) else {},
        compensate=str(document.get("compensate") or ""),
        document=document,
    )


def difference_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Difference, Table]:
    """How one graph differs from another, and the values that changed, without secrets."""
    old, new = declared_steps(before), declared_steps(after)
    found = difference(
        {**before, "steps": [dict(step.document) for step in old.values()]},
        {**after, "steps": [dict(step.document) for step in new.values()]},
    )
    changes = [
        (name, key, _value(old[name].document, key), _value(new[name].document, key))
        for name, keys in found.changed.items()
        for key in keys
    ]
    changes += [(NOTHING, key, _value(before, key), _value(after, key)) for key in found.options]
    columns = (
        *(Column(_("Step")), Column(_("What"))),
        *(Column(_("Before"), cells="jobs-after"), Column(_("Now"), cells="jobs-after")),
    )
    return found, Table(_("Steps that changed"), columns, changes, css="jobs-timeline jobs-steps")


def _value(document: Mapping[str, Any], key: str) -> str:
    if key not in document:
        return NOTHING
    text = json.dumps(masked({key: document[key]})[key], ensure_ascii=False)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def declared_table(steps: Mapping[str, DeclaredStep], changed: Difference) -> Table:
    """The steps of a definition. ``changed`` marks those that differ from another one."""
    marks = _marks(changed)
    rows = [_row(step, marks.get(step.name)) for step in steps.values()]
    columns = (
        *(Column(_("Step")), Column(_("After"), cells="jobs-after")),
        *(Column(_("Takes"), cells="jobs-after"), Column(_("Undone by"), cells="jobs-after")),
        Column(unseen(_("Note"))),
    )
    about = _("The steps, each after those it waits for")
    return steps_table(columns, rows, about)


def declared_picture(steps: Mapping[str, DeclaredStep], changed: Difference) -> dict[str, Any]:
    """The drawing of a definition. Without it, ``problem`` says why."""
    marks = _marks(changed)
    kinds: dict[Key, str] = {name: step.job_type for name, step in steps.items()}
    edges: list[tuple[Key, Key]] = [
        (parent, name) for name, step in steps.items() for parent in step.after if parent in steps
    ]
    try:
        groups = folded(kinds, edges)
    except ValueError as error:
        return {"problem": str(error)}
    whens = ((one, name, steps[str(name)].after[str(one)]) for one, name in edges)
    nodes = [_node([steps[str(key)] for key in group], marks) for group in groups]
    lines = []
    for (parent, child), found in between(groups, whens).items():
        words = {text for when in found if (text := _condition(when))}
        lines.append(Line(parent=parent, child=child, label=", ".join(sorted(words))))
    return {"drawing": draw(nodes, lines)}


def _marks(changed: Difference) -> dict[str, tuple[str, str]]:
    """The state and the words of each step that was added or changed."""
    marks = {name: ("added", _("added")) for name in changed.added}
    for name, keys in changed.changed.items():
        marks[name] = "changed", _("changed: %(keys)s") % {"keys": ", ".join(keys)}
    return marks


def _node(steps: Sequence[DeclaredStep], marks: Mapping[str, tuple[str, str]]) -> Node:
    first = steps[0]
    if len(steps) == 1:
        state, note = _state(first, marks.get(first.name))
        return Node(name=first.name, state=state, lines=[_runs(first), note])
    types = sorted({step.job_type for step in steps})
    name = types[0] if len(types) == 1 else f"{first.name} … {steps[-1].name}"
    marked = sum(step.name in marks for step in steps)
    gone = sum(step.is_gone for step in steps)
    notes = []
    if marked:
        notes.append(_("%(count)s changed") % {"count": number_text(marked)})
    if gone:
        notes.append(_("%(count)s without handler") % {"count": number_text(gone)})
    text = ngettext("%(count)s job type", "%(count)s job types", len(types))
    return Node(
        name=name,
        state="gone" if gone else "changed" if marked else "declared",
        lines=[text % {"count": len(types)}, ", ".join(notes)],
        size=len(steps),
    )


def _state(step: DeclaredStep, mark: tuple[str, str] | None) -> tuple[str, str]:
    if step.is_gone:
        return "gone", _("no handler is registered")
    if mark is not None:
        return mark
    note = _("undone by %(job_type)s") % {"job_type": step.compensate} if step.compensate else ""
    return STATES.get(step.kind, "declared"), note


def _runs(step: DeclaredStep) -> str:
    match step.kind:
        case StepKind.WAIT:
            return _("waits for a signal")
        case StepKind.SLEEP:
            return _("lets time pass")
    return step.job_type


def _row(step: DeclaredStep, mark: tuple[str, str] | None) -> tuple[str, ...]:
    gone = badge("gone", _("no handler is registered")) if step.is_gone else ""
    after = [
        f"{parent} ({words})" if (words := _condition(when)) else parent
        for parent, when in step.after.items()
    ]
    takes = [f"{argument}: {source}" for argument, source in step.takes.items()]
    return (
        with_quiet_line(step.name, _runs(step)),
        ", ".join(after) or NOTHING,
        ", ".join(takes) or NOTHING,
        step.compensate or NOTHING,
        gone or (badge(*mark) if mark else ""),
    )


def _condition(when: Any) -> str:
    """How a parent has to end, if that is not the usual way."""
    if when == When.SUCCEEDED:
        return ""
    return condition_text(when) if isinstance(when, dict) else str(CONDITIONS.get(when, when))
