"""Settings of the benchmarks: the queue and its tables, nothing that slows a worker's start."""

from __future__ import annotations

import json
import os

import environ

# tox runs its environments side by side, maybe on one server: a database for each.
OWN_NAME = os.environ.get("BENCHMARK_NAME", os.environ.get("TOX_ENV_NAME", "local"))

DATABASES = {
    "default": {
        **environ.Env().db("DATABASE_URL"),
        "CONN_MAX_AGE": None,
        "TEST": {"NAME": f"django_jobs_benchmark_{OWN_NAME}"},
    }
}
# Worker processes use the database that was made for the run.
if "BENCHMARK_DATABASE_NAME" in os.environ:
    DATABASES["default"]["NAME"] = os.environ["BENCHMARK_DATABASE_NAME"]
SECRET_KEY = "the benchmarks serve nothing"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django_jobs",
    "tests.app",
]
DJANGO_JOBS = {"QUEUES": {"default": {}, "other": {}}}

# To measure what a setting costs: as JSON.
DJANGO_JOBS |= json.loads(os.environ.get("BENCHMARK_DJANGO_JOBS", "{}"))

if "BENCHMARK_ADMIN" in os.environ:  # for the sections that measure its pages
    ROOT_URLCONF = "testproject.urls"
    INSTALLED_APPS = [
        *("django.contrib.admin", "django.contrib.sessions", "django.contrib.messages"),
        *("django.contrib.staticfiles", *INSTALLED_APPS),
    ]
    MIDDLEWARE = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ]
    STATIC_URL = "static/"
    ALLOWED_HOSTS = ["testserver"]
    TEMPLATES = [
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ]
