"""Chains and groups: graphs that need no declaration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ...domain.graph import ancestors
from ...domain.hints import hint
from ...domain.workflows import When
from ...exceptions import WorkflowError
from ..job_type import JobType
from ..steps import Step, check_step_name, compensation_name
from ..validation import LONGEST_NAME
from .edges import check_children
from .new_runs import StartArguments
from .startable import Startable

MOST_EDGES = 1_000_000
"""Of one run. A group of 1,000 after one has as many; with a step between them 2,000."""


class Composition(Startable):
    """A chain or a group. Its members are steps, chains and groups."""

    kind = ""

    def __init__(self, members: Iterable[Any]) -> None:
        self._members = [self._member(one) for one in members]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._members)}>"

    @cached_property
    def name(self) -> str:
        """The name of its runs: what it is, and its first job type."""
        return f"{self.kind} {self.steps[0].job_type.name}"[:LONGEST_NAME]

    @cached_property
    def steps(self) -> Sequence[Step]:
        """The steps, each after those it waits for. Of several with one name each has a number."""
        layout = Layout()
        self._lay(layout, ())
        return layout.steps()

    @cached_property
    def _arguments(self) -> StartArguments:
        arguments = StartArguments()
        for step in self.steps:
            arguments.add(step)
        return arguments

    def _member(self, given: Any) -> Step | Composition:
        if isinstance(given, JobType):
            return given.step()
        if not isinstance(given, Step | Composition):
            raise TypeError(
                f"{self.kind}() takes steps, chains and groups, such as resize.step(size=64), "
                f"not {given!r}"
            )
        return given

    def _lay(self, layout: Layout, parents: Sequence[int]) -> Sequence[int]:
        """Add the steps after ``parents``; return the places of the last ones."""
        raise NotImplementedError


class Chain(Composition):
    """Steps one after the other. Made by :func:`chain`."""

    kind = "chain"

    def _lay(self, layout: Layout, parents: Sequence[int]) -> Sequence[int]:
        for member in self._members:
            parents = layout.add(member, parents)
        return parents


class Group(Composition):
    """Steps at the same time, and one after all of them. Made by :func:`group`."""

    kind = "group"

    def __init__(self, members: Iterable[Any], then: Any = None) -> None:
        super().__init__(members)
        self._then = None if then is None else self._member(then)

    def _lay(self, layout: Layout, parents: Sequence[int]) -> Sequence[int]:
        ends = [end for member in self._members for end in layout.add(member, parents)]
        ends = ends if self._members else list(parents)
        return ends if self._then is None else layout.add(self._then, ends)


class Layout:
    """The steps of a composition as they are laid out: each with the places of its parents."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._parents: list[Sequence[int]] = []
        self._edges = 0
        self._children: Counter[int] = Counter()

    def add(self, member: Step | Composition, parents: Sequence[int]) -> Sequence[int]:
        """Add a member after ``parents``; return the places of its last steps."""
        if isinstance(member, Composition):
            return member._lay(self, parents)
        self._edges += len(parents)
        if self._edges > MOST_EDGES:
            raise WorkflowError(
                f"a run has at most {MOST_EDGES:,} edges: put one step between two large groups"
            )
        self._children.update(parents)
        for parent in parents:
            check_children(self._children[parent], self._steps[parent].name)
        self._steps.append(member)
        self._parents.append(parents)
        return [len(self._steps) - 1]

    def steps(self) -> list[Step]:
        """The steps with their final names and edges. Raises :class:`WorkflowError` for a result
        of an unknown step, or of one that is not upstream."""
        if not self._steps:
            raise WorkflowError("there are no steps to start")
        names = self._names()
        places = {name: place for place, name in enumerate(names)}
        laid = []
        for place, step in enumerate(self._steps):
            after = {names[parent]: When.SUCCEEDED for parent in self._parents[place]}
            laid.append(replace(step, name=names[place], after=after))
            self._check_takes(laid[-1], place, places)
        return laid

    def _names(self) -> list[str]:
        counts = Counter(step.name for step in self._steps)
        numbers: Counter[str] = Counter()
        names = []
        for step in self._steps:
            numbers[step.name] += 1
            several = counts[step.name] > 1
            names.append(f"{step.name}-{numbers[step.name]}" if several else step.name)
        every = list(names)
        for name, step in zip(names, self._steps, strict=True):
            check_step_name(name, step.job_type.name)
            if step.compensate is not None:
                every.append(compensation_name(name))
                check_step_name(every[-1], step.compensate.name)
        if twice := [name for name, count in Counter(every).items() if count > 1]:
            raise WorkflowError(f"two steps are named {twice[0]!r}; rename one with .named()")
        return names

    def _check_takes(self, step: Step, place: int, places: dict[str, int]) -> None:
        for argument, source in step.takes.items():
            where = f"step {step.name!r} takes {argument!r} from {source!r}"
            if source not in places:
                raise WorkflowError(f"{where}: there is no such step{hint(source, places)}")
            if source not in step.after and places[source] not in ancestors(
                self._parents[place], self._parents.__getitem__
            ):
                raise WorkflowError(f"{where}, which is not upstream of it")


def chain(*members: Any) -> Chain:
    """Steps one after the other; each starts when the one before it succeeded.

    A member is a step (``resize.step(size=64)``), a job type, a chain or a group. After a group the
    next one waits for all of its members.
    """
    return Chain(members)


def group(*members: Any, then: Any = None) -> Group:
    """Steps at the same time. ``then`` starts when all of them succeeded.

    A member is a step, a job type, a chain, a group, or a list of these, such as
    ``resize.steps([{"size": 64}, {"size": 128}])``.
    """
    flat: list[Any] = []
    for member in members:
        if isinstance(member, Iterable) and not isinstance(member, str):
            flat += member
        else:
            flat.append(member)
    return Group(flat, then)
