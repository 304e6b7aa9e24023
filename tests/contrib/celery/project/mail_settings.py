"""Of a project with django-post-office, whose mail is sent by the tasks of that package."""

from __future__ import annotations

from tests.contrib.celery.project.settings import *  # noqa: F403
from tests.contrib.celery.project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "post_office"]
POST_OFFICE = {
    "CELERY_ENABLED": True,
    "BACKENDS": {"default": "django.core.mail.backends.dummy.EmailBackend"},
}
