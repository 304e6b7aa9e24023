"""System checks of what a handler promises.

E011 exactly_once where the handler's app writes to another database than the jobs'
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
    """One transaction is of one database: the effect and the job's success must share it."""
    if any(message.is_serious() for message in check_settings()):
        return []
    found: list[CheckMessage] = []
    for name in registry.names():
        job_type = registry.get(name)
        elsewhere = sorted(_written_elsewhere(job_type))
        if job_type.delivery == "exactly_once" and elsewhere:
            found.append(_error(job_type, elsewhere))
    return found


def _written_elsewhere(job_type: JobType[..., Any]) -> Iterator[tuple[str, str]]:
    """(model, alias) of the models of the handler's app that the jobs' database does not hold."""
    app = apps.get_containing_app_config(job_type.handler.__module__)
    for model in app.get_models() if app is not None else ():
        alias = router.db_for_write(model)
        if model._meta.managed and not model._meta.proxy and alias != conf().database:
            yield model._meta.label, alias


def _error(job_type: JobType[..., Any], elsewhere: list[tuple[str, str]]) -> CheckMessage:
    model, alias = elsewhere[0]
    others = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    return Error(
        f"The job type {job_type.name!r} is delivered exactly once, but {model}{others} of its app "
        f"is written to the database {alias!r}, and its jobs are in {conf().database!r}.",
        hint="Use delivery='at_least_once' and make the handler idempotent, or keep the jobs in "
        "the same database. If the handler writes only to the jobs' database, move it to an app "
        f"whose models are there, or put '{TAG}.E011' into SILENCED_SYSTEM_CHECKS.",
        id=f"{TAG}.E011",
    )
