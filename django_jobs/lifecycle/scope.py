"""The queues and job types to which ``DJANGO_JOBS["ADMIN_SCOPE"]`` limits a user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, NamedTuple, TypeVar, cast

from django.core.exceptions import ImproperlyConfigured
from django.db.models import Q
from django.utils.module_loading import import_string
from django.utils.translation import gettext_noop

from ..conf import conf
from ..models import Job
from ..models.database import jobs_connection

OUTSIDE = gettext_noop("it is of a queue or a job type that you may not act on")
LIMITED = frozenset(
    f"django_jobs.{verb}"
    for verb in (
        *("cancel_job", "reprioritize_job", "run_job", "inspect_job", "replay_job", "dismiss_job"),
        *("edit_job", "view_job_payload", "reveal_job", "enqueue_job", "pause_queue", "stop_job"),
        "export_job",
    )
)
"""The permissions whose operations look at queue and type. A user with a scope has no other."""

Operation = TypeVar("Operation", bound=Callable[..., Any])


class Scope(NamedTuple):
    """Names of queues and of job types, of which ``billing.*`` are several; None is all."""

    queues: tuple[str, ...] | None = None
    job_types: tuple[str, ...] | None = None

    def has_queue(self, name: str) -> bool:
        return self.queues is None or name in self.queues

    def has_type(self, name: str) -> bool:
        return self.job_types is None or any(
            name.startswith(one[:-1]) if one.endswith("*") else name == one
            for one in self.job_types
        )

    def has(self, queue: str, job_type: str) -> bool:
        return self.has_queue(queue) and self.has_type(job_type)

    def has_declared(self, queue: str, job_type: str) -> bool:
        """Whether a job type that is declared for ``queue`` is in it. In a scope without job types
        that queue decides."""
        return self.has_type(job_type) and (self.job_types is not None or self.has_queue(queue))

    def of(self, *, queue: str, job_type: str = "") -> Q:
        """The condition on rows with these columns. A table may have no job type."""
        condition = Q()
        if self.queues is not None:
            condition &= Q(**{f"{queue}__in": self.queues})
        if self.job_types is not None and job_type:
            exact = [name for name in self.job_types if not name.endswith("*")]
            types = Q(**{f"{job_type}__in": exact})
            for name in self.job_types:
                if name.endswith("*"):
                    types |= Q(**{f"{job_type}__startswith": name[:-1]})
            condition &= types
        return condition

    @classmethod
    def of_term(cls, terms: Mapping[str, Any]) -> Scope:
        return cls(**{name: tuple(names) for name, names in terms.get("scope", {}).items()})

    def as_term(self) -> dict[str, list[str]]:
        """What an operation on all that match stores of it."""
        return {name: sorted(names) for name, names in self._asdict().items() if names is not None}


def scope_of(actor: Any) -> Scope | None:
    """The scope of a user; None for one without, for superusers, and for code and commands.

    The function of the setting is called once for each user object. Raises
    ``ImproperlyConfigured`` if it returns anything but None or a dict of names.
    """
    path = conf().admin_scope
    if not path or actor is None or getattr(actor, "is_superuser", False):
        return None
    known = vars(actor).setdefault("_django_jobs_scope", {})
    if path not in known:
        known[path] = _checked(import_string(path)(actor), path)
    scope: Scope | None = known[path]
    return scope


def _checked(given: Any, path: str) -> Scope | None:
    if given is None:
        return None
    keys = {"queues", "job_types"}
    if isinstance(given, Mapping) and given and given.keys() <= keys:
        names = {
            key: tuple(value) for key, value in given.items() if isinstance(value, list | tuple)
        }
        if len(names) == len(given) and all(
            isinstance(name, str) for some in names.values() for name in some
        ):
            return Scope(**names)
    raise ImproperlyConfigured(
        f"{path} returns None or a dict with lists of names, such as "
        f'{{"queues": ["billing"], "job_types": ["billing.*"]}}, not {given!r}'
    )


def limited(operation: Operation) -> Operation:
    """An operation on ids of jobs that leaves those alone that are outside of the actor's scope."""

    @wraps(operation)
    def inside(ids: Iterable[int], *given: Any, actor: Any = None, **options: Any) -> Any:
        scope = scope_of(actor)
        if scope is None:
            return operation(ids, *given, actor=actor, **options)
        wanted = list(ids)
        jobs = Job.objects.using(jobs_connection().alias).filter(pk__in=wanted)
        outside = set(
            jobs.exclude(scope.of(queue="queue", job_type="job_type")).values_list("pk", flat=True)
        )
        allowed = [id_ for id_ in wanted if id_ not in outside]
        result = operation(allowed, *given, actor=actor, **options)
        result.refused.update(dict.fromkeys(sorted(outside), OUTSIDE))
        return result

    return cast("Operation", inside)
