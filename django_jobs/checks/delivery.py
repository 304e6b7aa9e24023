"""System checks of job types with ``delivery="exactly_once"``.

E011 a model of the handler's app is written to another database than the jobs
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, register
from django.db import router

from .. import registry
from ..api.job_type import JobType
from ..conf import conf
from .settings import TAG, check_settings


@register(TAG)
def check_delivery(**kwargs: Any) -> list[CheckMessage]:
    """Check that the handler's app writes to the jobs' database.

    One transaction cannot span two databases.
    """
    if any(message.is_serious() for message in check_settings()):
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
