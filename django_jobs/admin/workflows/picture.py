"""The picture of a run, the table below it with the same facts, and what the run does now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...domain.graph_layout import Key, folded
from ...domain.workflows import When, condition_text
from ...models import Job, JobStatus, StepCondition, StepSkipped, WorkflowRun
from ...separators import number_text
from ..base.actions import OperatorAction
from ..base.formatting import (
    NOTHING,
    Visible,
    ago,
    badge,
    change_url,
    duration,
    joined,
    moment,
    with_quiet_line,
)
from ..layout.tables import Column
from .drawing import TIMES, Line, Node, between, draw, steps_table
from .steps import SKIPPED, SPAWNED_BY, Edge, Step, Steps

STATES = (
    "dead",
    "cancelled",
    "running",
    "ready",
    "blocked",
    "scheduled",
    "waiting",
    SKIPPED,
    "succeeded",
)
"""The states of steps. The first of them that a folded node has is its colour."""
BUTTON = """
<span class="jobs-inline"><button type="submit" class="button" form="{}-{}">{}</button></span>
""".strip()
CONDITIONS = dict(StepCondition.choices)
SKIPS: dict[str | None, object] = dict(StepSkipped.choices)


def picture_of(
    run: WorkflowRun,
    steps: Steps,
    visible: Visible,
    now: datetime,
    actions: Sequence[OperatorAction],
) -> dict[str, Any]:
    """The drawing of a run and its table, with a button for each of the user's ``actions`` on a
    step: what is ``offered``, an action and the id of a job each. Without a drawing, ``problem``
    says why."""
    columns = [
        *(Column(_("Step")), Column(_("State"), cells="jobs-states")),
        *(Column(_("After"), cells="jobs-after"), Column(_("Attempts"), number=True)),
        *(Column(_("Started, took")), Column(_("Actions"))),
    ]
    about = _("The steps of the graph, from top to bottom")
    kinds: dict[Key, str] = {pk: step.job_type for pk, step in steps.by_id.items()}
    pairs: list[tuple[Key, Key]] = [(edge.parent, edge.child) for edge in steps.edges]
    try:
        groups = folded(kinds, pairs)
    except ValueError as error:  # its rows were changed by hand
        return {"table": steps_table(columns, (), about), "problem": str(error)}
    nodes = [
        _Group(
            [steps.by_id[key] for key in group if isinstance(key, int)], run, visible, now, actions
        )
        for group in groups
    ]
    lines = _lines(groups, steps)
    after: dict[int, list[str]] = {}
    for line in lines:
        name = nodes[line.parent].label
        after.setdefault(line.child, []).append(f"{name} ({line.label})" if line.label else name)
    rows = [node.row(after.get(at, [])) for at, node in enumerate(nodes)]
    offered = [(one.action, node.pk) for node in nodes for one in node.actions]
    if not offered:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    drawing = draw([node.node for node in nodes], lines)
    return {"drawing": drawing, "table": steps_table(columns, rows, about), "offered": offered}


def state_label(state: str) -> str:
    return _("skipped") if state == SKIPPED else str(JobStatus(state).label)


def _lines(groups: Sequence[tuple[Key, ...]], steps: Steps) -> list[Line]:
    edges = between(groups, ((edge.parent, edge.child, edge) for edge in steps.edges))
    return [
        Line(parent=parent, child=child, label=_conditions(found), state=_state(found, steps))
        for (parent, child), found in edges.items()
    ]


def _conditions(edges: Iterable[Edge]) -> str:
    """How parents have to end, if that is not the usual way, or that they spawned the child."""
    return ", ".join(sorted({text for edge in edges if (text := _condition(edge))}))


def _condition(edge: Edge) -> str:
    if edge.condition is not None:
        return condition_text(edge.condition)
    if edge.when == When.SUCCEEDED:
        return ""
    return _("spawned") if edge.when == SPAWNED_BY else str(CONDITIONS[edge.when])


def _state(edges: Iterable[Edge], steps: Steps) -> str:
    """The state of edges that are drawn as one. A child starts if none of its edges is broken."""
    of_child: dict[int, set[str]] = {}
    for edge in edges:
        of_child.setdefault(edge.child, set()).add(steps.edge_state(edge))
    alive = [states for states in of_child.values() if "broken" not in states]
    if not alive:
        return "broken"
    return "open" if any("open" in states for states in alive) else "met"


class _Group:
    """A step, or several that are drawn as one."""

    def __init__(
        self,
        steps: Sequence[Step],
        run: WorkflowRun,
        visible: Visible,
        now: datetime,
        actions: Sequence[OperatorAction],
    ) -> None:
        self._allowed = actions
        self._steps = steps
        self._first = steps[0]
        self.pk = steps[0].pk
        self._run = run
        self._visible = visible
        self._now = now
        self._counts = Counter(step.state for step in steps)
        self._types = {step.job_type for step in steps}

    @cached_property
    def name(self) -> str:
        if len(self._steps) == 1:
            return self._first.step
        if len(self._types) == 1:
            return self._first.job_type
        return f"{self._first.step} … {self._steps[-1].step}"

    @property
    def label(self) -> str:
        number = len(self._steps)
        return self.name if number == 1 else f"{self.name} {TIMES} {number_text(number)}"

    @property
    def node(self) -> Node:
        states = [(state, self._counts[state]) for state in STATES if state in self._counts]
        alone = len(self._steps) == 1
        return Node(
            name=self.name,
            state=states[0][0],
            lines=self._facts() if alone else _two_lines(states),
            url=self._url(),
            size=len(self._steps),
            shares=() if alone else states,
        )

    def row(self, after: Iterable[str]) -> tuple[str, ...]:
        begun = [at for step in self._steps if (at := step.started_at or step.claimed_at)]
        reason = self._first.reason_line if len(self._steps) == 1 else ""
        return (
            with_quiet_line(self._linked(self.label), ", ".join(sorted(self._types))),
            with_quiet_line(self._badges(), reason),
            ", ".join(after) or NOTHING,
            self._attempts(),
            with_quiet_line(moment(min(begun, default=None)), self._took(begun)),
            format_html_join(
                "", BUTTON, ((one.action, self.pk, one.label) for one in self.actions)
            ),
        )

    @cached_property
    def actions(self) -> list[OperatorAction]:
        if len(self._steps) > 1:
            return []
        return [action for action in self._allowed if action.applies(self._first)]

    def _facts(self) -> list[str]:
        """The state in words with its time, and what else is known of a single step."""
        step = self._first
        match step.state:
            case JobStatus.SCHEDULED:
                facts = [state_label(step.state), _coming(step.available_at, self._now)]
            case JobStatus.WAITING if step.awaits:
                facts = [_("waits for %(signal)s") % {"signal": step.awaits}]
            case _:
                facts = [state_label(step.state), step.took(self._now)]
        more = [str(SKIPS[step.skipped])] if step.state == SKIPPED else []
        more += [_("attempt %(number)s") % {"number": step.attempt}] if step.attempt else []
        return [_joined(facts), _joined([*more, f"#{step.pk}"])]

    def _took(self, begun: Sequence[datetime]) -> str:
        if len(self._steps) == 1:
            return self._first.took(self._now)
        ended = [step.finished_at for step in self._steps if step.finished_at]
        if not begun or len(ended) < len(self._steps):
            return ""
        return duration(max(ended) - min(begun))

    def _attempts(self) -> str:
        number = sum(step.attempt for step in self._steps)
        return number_text(number) if number else NOTHING

    def _badges(self) -> str:
        if len(self._steps) == 1:
            return badge(self._first.state, self._facts()[0])
        states = [state for state in STATES if state in self._counts]
        return joined(" ", map(self._counted, states))

    def _counted(self, state: str) -> str:
        shown = badge(state, f"{number_text(self._counts[state])} {state_label(state)}")
        return self._linked(shown, status="cancelled" if state == SKIPPED else state)

    def _linked(self, text: str, **filters: str) -> str:
        url = self._url(**filters)
        return format_html('<a href="{}">{}</a>', url, text) if url else text

    def _url(self, **filters: str) -> str:
        """The page of the job, or the list of the jobs; empty if the user may see neither."""
        if not self._visible.sees(Job):
            return ""
        if len(self._steps) == 1:
            return change_url(self._visible.site, Job, self._first.pk)
        of_type = {"job_type": self._first.job_type} if len(self._types) == 1 else {}
        return self._visible.list_url(Job, workflow_run=self._run.pk, **of_type, **filters)


def _two_lines(states: Sequence[tuple[str, int]]) -> list[str]:
    """The number of steps in each state, two of them in a line."""
    parts = [f"{number_text(count)} {state_label(state)}" for state, count in states]
    if len(parts) > 4:
        rest = len(parts) - 3
        more = ngettext("%(count)s more state", "%(count)s more states", rest) % {"count": rest}
        parts = [*parts[:3], more]
    return [", ".join(parts[:2]), ", ".join(parts[2:])] if len(parts) > 2 else [", ".join(parts)]


def _coming(at: datetime, now: datetime) -> str:
    return _("in %(time)s") % {"time": duration(at - now)} if at > now else _("due")


def _joined(parts: Iterable[str]) -> str:
    return " · ".join(filter(None, parts))


NAMED = 5

Fact = tuple[str, str]


def now_of(steps: Steps, visible: Visible, read_at: datetime) -> list[Fact]:
    """Problems first. Nothing, if no step failed, runs or waits."""

    def fact(label: str, chosen: Sequence[Step], show: Callable[[Step], str]) -> list[Fact]:
        return [(label, _listed(chosen, show, steps.cut))] if chosen else []

    def named(step: Step, more: str = "") -> str:
        link = visible.job(step.pk, step.step)
        return format_html("{} ({})", link, more) if more else link

    def in_state(*states: str) -> list[Step]:
        return [step for step in steps.by_id.values() if step.state in states]

    waiting = [step for step in in_state(JobStatus.WAITING) if step.awaits]
    due = sorted(in_state(JobStatus.SCHEDULED), key=lambda step: step.available_at)
    return [
        *fact(_("Failed"), in_state(JobStatus.DEAD), named),
        *fact(
            _("Running now"),
            in_state(JobStatus.RUNNING),
            lambda step: named(step, step.took(read_at)),
        ),
        *fact(_("Waits for a signal"), waiting, lambda step: named(step, step.awaits or "")),
        *fact(_("Due later"), due, lambda step: named(step, ago(step.available_at, read_at))),
    ]


def _listed(steps: Sequence[Step], show: Callable[[Step], str], cut: bool) -> str:
    """The first of the steps, and how many others there are; ``cut``: at least."""
    text = joined(", ", map(show, steps[:NAMED]))
    more = len(steps) - NAMED
    if more <= 0:
        return text
    count = number_text(more, more=cut)
    also = ngettext("and %(count)s more", "and %(count)s more", more) % {"count": count}
    return format_html("{} {}", text, also)
