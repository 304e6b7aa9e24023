"""The app's configuration."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class JobsConfig(AppConfig):
    """Background jobs on PostgreSQL."""

    name = "django_jobs"
    label = "django_jobs"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, registry  # noqa: F401 — importing checks registers them

        registry.autodiscover()
        post_migrate.connect(seed_queues, sender=self, dispatch_uid="django_jobs.seed_queues")


def seed_queues(*, using: str, **kwargs: Any) -> None:
    """Create the configured queues after migrate, in the jobs' database only."""
    from .conf import conf
    from .models import Queue

    if using == conf().database:
        Queue.objects.seed(conf().queues, using)
