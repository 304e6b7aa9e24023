"""The options of one run: what ``using()`` of a workflow, a chain or a group takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ...domain.concurrency import name_problem
from ...exceptions import EnqueueError
from ...models.tenant import LONGEST_TENANT
from ..job_type import JobType
from ..validation import OF_REQUESTS, check_due, check_key, check_number, check_rules, tag_names


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run. ``tenant``, ``priority``, ``queue``, ``headers`` and ``tags`` are for
    all of its steps, ``run_at`` and ``delay`` for those that wait for no other;
    ``overrides`` has arguments by the name of a step."""

    idempotency_key: str | None = None
    tenant: str | None = None
    priority: int | None = None
    queue: str | None = None
    headers: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    run_at: datetime | None = None
    delay: float | timedelta | None = None
    overrides: Mapping[str, Mapping[str, Any]] | None = None

    def changed(self, where: str, **options: Any) -> RunOptions:
        """These options with others; None keeps one. Raises :class:`EnqueueError`."""
        given = {name: value for name, value in options.items() if value is not None}
        if "tags" in given:
            given["tags"] = tag_names(given["tags"], where)
        changed = replace(self, **given)
        changed._check(where)
        return changed

    def _check(self, where: str) -> None:
        if self.idempotency_key is not None:
            check_key(self.idempotency_key, where)
        if self.tenant is not None and (problem := name_problem(self.tenant, LONGEST_TENANT)):
            raise EnqueueError(f"{where}: tenant {problem}")
        check_rules(OF_REQUESTS, self, where)
        if self.run_at is not None and self.delay is not None:
            raise EnqueueError(f"{where}: give run_at or delay, not both")
        delay = 0.0 if self.delay is None else self.delay
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        check_due(self.run_at, seconds, where)
        check_number(self.tags, where)
        overrides = self.overrides
        if overrides is not None and not (
            isinstance(overrides, Mapping)
            and all(isinstance(payload, Mapping) for payload in overrides.values())
        ):
            raise EnqueueError(
                f"{where}: overrides are dicts of arguments by the name of a step, such as "
                '{"ship": {"express": True}}'
            )

    def applied_to(
        self, job_type: JobType[..., Any], *, is_first: bool = False
    ) -> JobType[..., Any]:
        """``job_type`` with the options that are for all steps, and those for the first ones.
        Headers are merged."""
        options: dict[str, Any] = {
            "tenant": self.tenant,
            "priority": self.priority,
            "queue": self.queue,
            "tags": self.tags or None,
        }
        if is_first:
            options |= {"run_at": self.run_at, "delay": self.delay}
        if self.headers:
            options["headers"] = {**(job_type.headers or {}), **self.headers}
        if all(value is None for value in options.values()):
            return job_type
        return job_type.using(**options)
