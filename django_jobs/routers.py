"""A database router for projects that keep the jobs on another alias than the default."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from .conf import conf

LABEL = "django_jobs"


class JobsRouter:
    """Reads, writes and migrates the tables of the jobs on the alias ``DJANGO_JOBS["DATABASE"]``
    and nowhere else. Has no opinion about other apps. For ``DATABASE_ROUTERS``."""

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return conf().database if model._meta.app_label == LABEL else None

    db_for_write = db_for_read

    def allow_relation(self, first: Model, second: Model, **hints: Any) -> bool | None:
        return True if first._meta.app_label == second._meta.app_label == LABEL else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == conf().database if app_label == LABEL else None
