"""Who may do what over HTTP: the allow-list, and the project's function or Django's permissions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string

from .. import registry
from ..conf import conf
from ..lifecycle.scope import scope_of
from ..models import Job

PERMISSIONS = {
    "enqueue": "django_jobs.enqueue_job",
    "view": "django_jobs.view_job",
    "result": "django_jobs.view_job_payload",
    "error": "django_jobs.view_job_error",
    "cancel": "django_jobs.cancel_job",
}
"""What a session needs for each action."""
Authorize = Callable[[HttpRequest, str, str, Job | None], bool]


def allowed_types() -> list[str]:
    return [name for one in conf().http.get("job_types", ()) for name in registry.family(one)]


def own_rule() -> Authorize | None:
    """The function of the setting, or None."""
    path = conf().http.get("authorize")
    return import_string(path) if path else None


def may(request: HttpRequest, action: str, job_type: str, job: Job | None = None) -> bool:
    """Whether the request may do this to jobs of a type in the allow-list: to ``job``, or to a new
    one, or to some."""
    if rule := own_rule():
        return bool(rule(request, action, job_type, job))
    user: Any = getattr(request, "user", None)
    if user is None or not user.has_perm(PERMISSIONS[action]):
        return False
    scope = scope_of(user)
    if scope is None:
        return True
    if job is not None:
        return scope.has(job.queue, job.job_type)
    declared = registry.find(job_type)
    return declared is not None and scope.has_declared(declared.queue, declared.name)


def actor_of(request: HttpRequest) -> Any:
    """The user who acts, if Django's permissions decide."""
    return None if own_rule() else request.user


def forged(request: HttpRequest) -> bool:
    """Whether a request that a session authorizes lacks its CSRF token. A function of the project
    finds who calls in what no browser sends of itself."""
    if own_rule():
        return False

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    middleware = CsrfViewMiddleware(view)
    middleware.process_request(request)
    return middleware.process_view(request, view, (), {}) is not None
