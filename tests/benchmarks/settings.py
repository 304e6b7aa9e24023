"""Settings of the benchmarks: the queue and its tables, nothing that slows a worker's start."""

from __future__ import annotations

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
