"""Of a project with django-celery-beat, whose rows its workers follow."""

from __future__ import annotations

import os

from tests.contrib.celery.project.settings import *  # noqa: F403
from tests.contrib.celery.project.settings import DATABASES, INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "django_celery_beat"]
if "TEST_DATABASE_NAME" in os.environ:
    DATABASES["default"]["NAME"] = os.environ["TEST_DATABASE_NAME"]
