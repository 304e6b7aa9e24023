"""The configuration of the app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.apps import apps as current_apps
from django.core.signals import setting_changed
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    name = "django_jobs"
    label = "django_jobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import backend, registry
        from .checks import register_checks
        from .contrib import celery
        from .management.worker import beside_runserver
        from .worker.handlers import built_in  # noqa: F401 — registers job types

        register_checks()
        setting_changed.connect(follow_immediate, dispatch_uid="django_jobs.follow_immediate")
        follow_immediate(setting="DJANGO_JOBS")
        beside_runserver.start_worker_if_asked()
        registry.autodiscover()
        celery.autodiscover()
        backend.discover()
        for after in (seed, make_ahead, take_over, keep_roles):
            post_migrate.connect(after, sender=self, dispatch_uid=f"django_jobs.{after.__name__}")


def follow_immediate(*, setting: str, **kwargs: Any) -> None:
    """Run the jobs of this process at once if the setting says so. Nothing of the testing kit is
    imported otherwise."""
    from django.conf import settings

    from .lifecycle import notifying

    if setting != "DJANGO_JOBS":
        return
    values = getattr(settings, "DJANGO_JOBS", None)  # whose type a check looks at later
    at_once = isinstance(values, dict) and values.get("IMMEDIATE") is True
    if at_once and notifying.run_at_once is None:
        from .testing.draining import AtOnce

        notifying.run_at_once = AtOnce(of_the_setting=True)
    elif not at_once and getattr(notifying.run_at_once, "of_the_setting", False):
        notifying.run_at_once = None


def seed(*, using: str, **kwargs: Any) -> None:
    """Create the queues, resources and tenants of the settings after migrate, where this database
    has the current table."""
    from .conf import conf
    from .contrib import celery
    from .models import Queue, Resource, Tenant
    from .models.database import has_todays_columns

    if using != conf().database:
        return
    if has_todays_columns(Queue, using):
        Queue.objects.seed(conf().queues, using)
    if has_todays_columns(Resource, using):
        celery.seed()  # first: their rates hold if the setting names none
        Resource.objects.seed(conf().resources, using)
    if has_todays_columns(Tenant, using):
        Tenant.objects.seed(conf().tenants, using)


def make_ahead(*, using: str, **kwargs: Any) -> None:
    """Make the partitions of the next days after migrate, if the database has current tables."""
    from .conf import conf
    from .maintenance.history import make_due_partitions
    from .models import Run
    from .models.database import has_todays_columns

    if using == conf().database and has_todays_columns(Run, using):
        make_due_partitions()


def take_over(*, using: str, **kwargs: Any) -> None:
    """Write the declared schedules, workflows and options of job types after migrate, if this is
    the jobs' database."""
    from .api import schedules, sql_defaults
    from .api.workflows import definitions
    from .conf import conf

    if using == conf().database:
        schedules.synchronise(using)
        definitions.synchronise(using)
        sql_defaults.synchronise(using)


def keep_roles(*, using: str, apps: Any = current_apps, **kwargs: Any) -> None:
    """Give the groups that ``jobs roles`` made the permissions of this version after migrate."""
    from django.db import router

    try:
        group = apps.get_model("auth", "Group")
    except LookupError:  # not installed, or not migrated yet
        return
    if router.allow_migrate_model(using, group):
        from .management.roles import set_roles

        set_roles(using=using)
