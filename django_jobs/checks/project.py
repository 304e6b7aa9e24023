"""What of a project cannot work: its console, schedules, deliveries, metrics and workflows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.db import router
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils.module_loading import import_string

from .. import registry
from ..api.job_type import JobType
from ..api.workflows.definitions import changed_definitions
from ..conf import conf
from ..domain.errors import ErrorReport
from ..domain.graph import difference
from ..domain.hints import did_you_mean, named, why_not
from ..exceptions import JobsError
from ..models import WorkflowDefinition
from ..models.database import has_todays_columns
from . import TAG
from .settings import is_wrong, temporary_cursor


def check_console(**kwargs: Any) -> list[CheckMessage]:
    """Check the functions and the job types in ``LINKS``, ``ADMIN_SCOPE`` and ``HTTP``."""
    if is_wrong():
        return []
    return [
        *_of("LINKS", conf().links, "job"),
        *_of("ADMIN_SCOPE", conf().admin_scope, "user"),
        *_of("HTTP", conf().http.get("authorize"), "request", "action", "job_type", "job"),
        *_unknown_types(conf().http.get("job_types", ())),
    ]


def _unknown_types(names: Iterable[str]) -> Iterator[CheckMessage]:
    for name in names:
        if registry.find(name) is None:
            yield Error(
                f'DJANGO_JOBS["HTTP"] allows the job type {name!r}, which does not exist.',
                hint=did_you_mean(name, registry.names()).replace("did", "Did", 1)
                or "Declare it with @job in the jobs.py of an app, or leave it out.",
                id="django_jobs.E022",
            )


def _of(key: str, path: Any, *arguments: str) -> Iterator[CheckMessage]:
    if not (isinstance(path, str) and path):
        return
    try:
        function = import_string(path)
    except Exception as error:  # of the module that is imported
        problem = f"cannot be imported: {ErrorReport.of(error).summary}"
    else:
        problem = why_not(function, arguments)
    if problem:
        yield Error(
            f'{path!r} in DJANGO_JOBS["{key}"] {problem}.',
            hint=f"Write the dotted path of a function of {named(arguments)}.",
            id="django_jobs.E021",
        )


def check_delivery(**kwargs: Any) -> list[CheckMessage]:
    """Check that the handler's app writes to the jobs' database.

    One transaction cannot span two databases.
    """
    if is_wrong():
        return []
    messages: list[CheckMessage] = []
    for name in registry.names():
        job_type = registry.get(name)
        elsewhere = sorted(_written_elsewhere(job_type))
        starts_workflow = registry.workflow(name) is not None  # writes our tables alone
        if job_type.delivery == "exactly_once" and elsewhere and not starts_workflow:
            messages.append(_error(job_type, elsewhere))
    return messages


def _written_elsewhere(job_type: JobType[..., Any]) -> Iterator[tuple[str, str]]:
    """(model, alias) of each model of the handler's app that is written to another database."""
    app = apps.get_containing_app_config(job_type.handler.__module__)
    for model in app.get_models() if app is not None else ():
        alias = router.db_for_write(model)
        if model._meta.managed and not model._meta.proxy and alias != conf().database:
            yield model._meta.label, alias


def _error(job_type: JobType[..., Any], elsewhere: list[tuple[str, str]]) -> CheckMessage:
    model, alias = elsewhere[0]
    others = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    return Error(
        f"The job type {job_type.name!r} has delivery='exactly_once', but its app writes {model}"
        f"{others} to the database {alias!r}, and its jobs are in {conf().database!r}.",
        hint="Use delivery='at_least_once' and make the handler idempotent, or keep the jobs in "
        "the same database. If the handler writes only to the jobs' database, move it to an app "
        f"whose models are there, or add '{TAG}.E011' to SILENCED_SYSTEM_CHECKS.",
        id=f"{TAG}.E011",
    )


URLS = "django_jobs.metrics.urls"


def check_metrics_token(**kwargs: Any) -> list[CheckMessage]:
    """Check that the metrics have a token if the project includes their URLs."""
    if not getattr(settings, "ROOT_URLCONF", None) or not _included(get_resolver().url_patterns):
        return []
    if is_wrong() or conf().metrics_token:
        return []
    text = f"{URLS} is included, and DJANGO_JOBS has no METRICS_TOKEN: all requests are refused."
    hint = "Set METRICS_TOKEN to a long random text, and let Prometheus send it."
    return [Warning(text, hint=hint, id="django_jobs.W006")]


def _included(patterns: list[URLPattern | URLResolver]) -> bool:
    resolvers = [one for one in patterns if isinstance(one, URLResolver)]
    return any(
        getattr(one.urlconf_name, "__name__", one.urlconf_name) == URLS
        or _included(one.url_patterns)
        for one in resolvers
    )


def check_workflows(**kwargs: Any) -> list[CheckMessage]:
    """Check that no version of a workflow is declared twice with different graphs."""
    return [
        Error(
            f"The {first} is declared twice with different steps ({change}).",
            hint="Give one of them another version.",
            id=f"{TAG}.E014",
        )
        for first, copy in registry.workflow_copies()
        if (change := difference(first.graph, copy.graph))
    ]


def check_definitions(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the graph of a version that has runs is still the stored one."""
    if not databases or is_wrong():
        return []
    alias = conf().database
    if alias not in databases or not registry.workflows():
        return []
    with temporary_cursor(alias):
        if not has_todays_columns(WorkflowDefinition, alias):
            return []
        return [
            Error(
                f"The {problem}.",
                hint="Runs keep the version with which they started; a new version may stand "
                "next to the old one until its runs have ended.",
                id=f"{TAG}.E015",
            )
            for problem in changed_definitions()
        ]


def check_schedules(**kwargs: Any) -> list[CheckMessage]:
    """Check that each declared schedule names a known job type and arguments that it takes."""
    messages: list[CheckMessage] = [
        Error(
            f"The schedule {name!r} is declared twice with different options.",
            hint="Rename one of them, or remove it.",
            id=f"{TAG}.E010",
        )
        for name in registry.schedule_clashes()
    ]
    for name, fields in sorted(registry.schedules().items()):
        messages += _problems(name, fields)
    return messages


def _problems(name: str, fields: Mapping[str, Any]) -> Iterator[CheckMessage]:
    try:
        job_type = registry.get(fields["job_type"])
        job_type.gates_of(job_type.bind(**fields["payload"]))
    except JobsError as error:
        yield Error(
            f"The schedule {name!r} cannot be fired: {error}.",
            hint="Correct its job type or its payload in the call of schedule() in jobs.py.",
            id=f"{TAG}.E010",
        )
