"""Settings of a project that runs django-celery-beat, in the database of the test."""

from __future__ import annotations

import os

import environ

DATABASES = {"default": environ.Env().db("DATABASE_URL")}
DATABASES["default"]["NAME"] = os.environ["TEST_DATABASE_NAME"]
INSTALLED_APPS = ["django_celery_beat"]
USE_TZ = True
SECRET_KEY = "a test"
