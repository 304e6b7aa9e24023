"""What the filters offer: names from small tables and from the heads of the queues."""

from __future__ import annotations

from collections import defaultdict

from django.http import HttpRequest
from django.utils.translation import gettext

from ... import registry
from ...domain.hints import nearest
from ...domain.search_terms import means, term
from ...lifecycle.scope import Scope, scope_of
from ...models.database import fetch

MOST_NAMES = 1_000
"""Of each kind."""

# Job types: those that ran, those that a schedule names, and those at the head of a queue, where
# jobs collect that no worker can run.
NAMES = """
(SELECT 'queue' AS kind, name FROM django_jobs_queue ORDER BY name LIMIT %(most)s)
UNION ALL (SELECT 'schedule', name FROM django_jobs_schedule ORDER BY name LIMIT %(most)s)
UNION ALL (SELECT 'tenant', name FROM django_jobs_tenant ORDER BY name LIMIT %(most)s)
UNION ALL (SELECT DISTINCT 'worker', name FROM django_jobs_worker
    WHERE status IN ('running', 'draining') ORDER BY 2 LIMIT %(most)s)
UNION ALL (SELECT DISTINCT 'workflow', name FROM django_jobs_workflowdefinition
    ORDER BY 2 LIMIT %(most)s)
UNION ALL (SELECT 'job_type', seen.job_type FROM (
    SELECT job_type FROM django_jobs_runtotal WHERE period = 0
    UNION SELECT job_type FROM django_jobs_schedule
    UNION SELECT head.job_type
    FROM django_jobs_queue AS queue CROSS JOIN LATERAL (
        SELECT job.job_type FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT 100) AS head
    ) AS seen ORDER BY 2 LIMIT %(most)s)
"""
# For a user with a scope. Schedules, tenants, workers and workflows are of all queues. None is all.
NAMES_IN_SCOPE = """
WITH queue AS (
    SELECT name FROM django_jobs_queue
    WHERE %(queues)s::text[] IS NULL OR name = ANY(%(queues)s::text[])
    ORDER BY name LIMIT %(most)s)
SELECT 'queue' AS kind, name FROM queue
UNION ALL (SELECT 'job_type', seen.job_type FROM (
    SELECT job_type FROM django_jobs_runtotal
    WHERE period = 0 AND (%(queues)s::text[] IS NULL OR queue = ANY(%(queues)s::text[]))
    UNION SELECT head.job_type
    FROM queue CROSS JOIN LATERAL (
        SELECT job.job_type FROM django_jobs_job_live AS job
        WHERE job.status = 'ready' AND job.queue = queue.name
        ORDER BY job.rank, job.id LIMIT 100) AS head
    ) AS seen ORDER BY 2 LIMIT %(most)s)
"""


def types_of(value: str) -> list[str]:
    """The known job types that a search for ``type:value`` means."""
    return [one for one in registry.names() if means(value, one)]


def near_types(name: str) -> list[str]:
    """The terms of those that may be meant by a name that is none."""
    longer = [f"{name}."] if len(types_of(f"{name}.")) > 1 else types_of(f"{name}*")[:1]
    return [term("type", one) for one in longer or nearest(name, registry.names())]


def with_meant(text: str, near: list[str]) -> str:
    """The text, and the first of the terms that may be meant."""
    meant = gettext("Did you mean %(term)s?") % {"term": near[0]} if near else ""
    return " ".join(filter(None, (text, meant)))


def choices_of(request: HttpRequest, kind: str) -> list[tuple[str, str]]:
    """The names of one kind, as choices of a filter. They are read once for a request.

    A user with a scope is offered its queues and job types, and no other names.
    """
    names: dict[str, set[str]] | None = getattr(request, "_jobs_names", None)
    if names is None:
        scope = scope_of(getattr(request, "user", None))
        names = _all_names() if scope is None else _names_in(scope)
        request._jobs_names = names  # type: ignore[attr-defined]
    return [(name, name) for name in sorted(names[kind])]


def _all_names() -> dict[str, set[str]]:
    names = defaultdict(set, {"job_type": set(registry.names())})
    for of, name in fetch(NAMES, {"most": MOST_NAMES}):
        names[of].add(name)
    return names


def _names_in(scope: Scope) -> dict[str, set[str]]:
    known = {name for name in registry.names() if scope.has_queue(registry.get(name).queue)}
    names = defaultdict(set, {"job_type": known})
    queues = None if scope.queues is None else list(scope.queues)
    for of, name in fetch(NAMES_IN_SCOPE, {"queues": queues, "most": MOST_NAMES}):
        names[of].add(name)
    names["job_type"] = set(filter(scope.has_type, names["job_type"]))
    return names
