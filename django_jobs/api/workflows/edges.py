"""What a step waits for, as it is declared, and what is upstream of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...domain.graph import Circle, Document, StepKind, ancestors, document_of, fingerprint
from ...domain.hints import hint
from ...domain.workflows import If, When
from ...exceptions import WorkflowError
from ..steps import ADDED_FIELDS, Step, compensation_name

Reference = Step | str
"""A step, or its name."""
Condition = str | If
After = Reference | Iterable[Reference] | Mapping[Reference, Condition]

CONDITIONS = tuple(when.value for when in When)

MOST_CHILDREN = 10_000
"""Steps right after one. Its end opens or skips them all in one transaction. For 10,000 that took
0.7 s, and the worker ends a statement that takes more than 3."""


def check_children(count: int, name: str, where: str = "") -> None:
    """Raise :class:`WorkflowError` if too many steps come right after the step ``name``."""
    if count > MOST_CHILDREN:
        raise WorkflowError(
            f"{where}step {name!r} has more than {MOST_CHILDREN:,} steps right after it: make them "
            "in its handler, with current_run().spawn(), which writes them batch by batch"
        )


class DeclaredSteps:
    """The steps of one workflow by name. A step names steps that were declared before it, so that
    there is no circle, and a wrong name is refused at its own line."""

    def __init__(self, where: str, options: Document) -> None:
        self._where = where
        self._options = options
        self._by_name: dict[str, Step] = {}
        self._compensations: set[str] = set()
        self._children: Counter[str] = Counter()
        self._stored: tuple[Document, str] | None = None
        self.part_of = ""
        """A workflow whose steps these are too. It would not know one that is added later."""

    def __iter__(self) -> Iterator[Step]:
        return iter(self._by_name.values())

    def add(self, step: Step) -> None:
        """Add a step whose edges this object found. Raises :class:`WorkflowError` for too many."""
        if self.part_of:
            raise WorkflowError(
                f"{self._where}: its steps are steps of {self.part_of} already: declare step "
                f"{step.name!r} before that"
            )
        for parent in step.after:
            check_children(self._children[parent] + 1, parent, f"{self._where}: ")
        self._children.update(step.after.keys())
        self._by_name[step.name] = step
        if step.compensate is not None:
            self._compensations.add(compensation_name(step.name))
        self._stored = None

    def stored(self) -> tuple[Document, str]:
        """The graph as JSON, and its fingerprint. For 10,000 steps that takes half a second."""
        if self._stored is None:
            graph = document_of(step.graph_step() for step in self) | self._options
            self._stored = graph, fingerprint(graph)
        return self._stored

    def named(self, name: str) -> Step:
        return self._by_name[name]

    def check_free(self, name: str) -> None:
        """Raise :class:`WorkflowError` if a step or a compensation has this name."""
        if name in self._by_name or name in self._compensations:
            raise WorkflowError(
                f"{self._where}: two steps are named {name!r}; give one of them another name="
            )

    def edges(self, name: str, after: After | None, when: Condition) -> dict[str, When | If]:
        """The condition of each parent of the step ``name``, by the parent's name."""
        if when != When.SUCCEEDED and (after is None or isinstance(after, Mapping)):
            wrong = "needs after=" if after is None else "is in the dict of after="
            raise WorkflowError(f"{self._where}: step {name!r}: when {wrong}")
        if after is None:
            given: Mapping[Any, Condition] = {}
        elif isinstance(after, Mapping):
            given = after
        elif isinstance(after, Iterable) and not isinstance(after, str):
            given = dict.fromkeys(after, when)
        else:
            given = {after: when}
        for condition in (when, *given.values()):
            if not isinstance(condition, If) and condition not in CONDITIONS:
                raise WorkflowError(
                    f"{self._where}: step {name!r}: when is 'succeeded', 'failed' or 'finished', "
                    f"or an If, not {condition!r}{hint(condition, CONDITIONS)}"
                )
        edges = {
            self.name_of(one, name): condition if isinstance(condition, If) else When(condition)
            for one, condition in given.items()
        }
        for parent, condition in edges.items():
            if condition == When.FAILED and self.named(parent).is_optional:
                raise WorkflowError(
                    f"{self._where}: step {name!r}: {parent!r} is optional, so it never counts as "
                    "failed; use when='finished'"
                )
            if isinstance(condition, If):
                self._check_path(self.source_of(parent, name), condition, name)
        return edges

    def _check_path(self, source: str, condition: If, name: str) -> None:
        """Raise :class:`WorkflowError` for a key that the data of a wait do not have."""
        fields = dict(self._by_name[source].payload.get("fields") or {})
        if self._by_name[source].kind is not StepKind.WAIT or not fields:
            return
        key = condition.document["path"].split(".")[0]
        if key and key not in (known := [*fields, *ADDED_FIELDS]):
            end = hint(key, known, f"it has {', '.join(known)}")
            where = f"{self._where}: step {name!r}"
            raise WorkflowError(f"{where}: {source!r} has no field {key!r}{end}")

    def name_of(self, reference: Any, name: str) -> str:
        """The name of a step that the step ``name`` refers to. Raises :class:`WorkflowError`."""
        where = f"{self._where}: step {name!r}"
        if isinstance(reference, Step):
            if self._by_name.get(reference.name) is reference:
                return reference.name
            raise WorkflowError(f"{where}: {reference.name!r} is not a step of this workflow")
        if not isinstance(reference, str):
            raise WorkflowError(
                f"{where}: a step or its name is needed, not {reference!r}: step() returns it"
            )
        if reference == name:
            raise WorkflowError(f"{where}: {Circle([name, name])}")
        if reference not in self._by_name:
            listed = f"declared so far: {', '.join(self._by_name) or 'none'}"
            end = hint(reference, self._by_name, listed)
            raise WorkflowError(f"{where}: there is no step {reference!r}{end}")
        return reference

    def source_of(self, reference: Any, name: str) -> str:
        """The name of the step whose result the step ``name`` takes: of a workflow the last one."""
        found = self.name_of(reference, name)
        while self._by_name[found].kind is StepKind.WORKFLOW:
            last = self._by_name[found].payload["last"]
            if last is None:
                raise WorkflowError(
                    f"{self._where}: step {name!r}: {found!r} ends with several steps, so it has "
                    "no result; name one of them"
                )
            found = last
        return found

    def check_upstream(self, takes: Mapping[str, str], after: Iterable[str], name: str) -> None:
        """Raise :class:`WorkflowError` unless each step of ``takes`` is upstream."""
        rest = [pair for pair in takes.items() if pair[1] not in set(after)]
        if not rest:
            return
        upstream = ancestors(after, lambda one: self._by_name[one].after)
        for argument, source in rest:
            if source not in upstream:
                raise WorkflowError(
                    f"{self._where}: step {name!r} takes {argument!r} from {source!r}, which is "
                    "not upstream of it; add it to after="
                )
