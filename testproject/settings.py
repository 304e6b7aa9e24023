"""Settings of the demo project. ``DATABASE_URL`` chooses the database; without it an embedded
PostgreSQL is started."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import environ

from django_jobs import __version__

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent

if not env.str("DATABASE_URL", default=""):
    from testproject import embedded

    # Child processes, such as the demo's server and worker, attach to the same one.
    os.environ["DATABASE_URL"] = embedded.start(embedded.demo_directory()).get_uri()

DATABASES = {"default": {**env.db("DATABASE_URL"), "CONN_MAX_AGE": 60}}

SECRET_KEY = env.str("SECRET_KEY", default="the demo is no production site")
DEBUG = env.bool("DEBUG", default=True)
# Behind a proxy or in a container the demo is reached under other names.
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_jobs",
    "testproject.demo",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "testproject.urls"
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
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# The Python sources that the demo indexes: those of the Python that it runs on.
DEMO_SOURCES = env.str("DEMO_SOURCES", default=sysconfig.get_path("stdlib"))

DJANGO_JOBS = {
    # What the workers run. A project gives a commit, which its deploy knows.
    "CODE_VERSION": env.str("CODE_VERSION", default=__version__),
    "QUEUES": {
        "default": {"timeout": 300},
        "index": {"timeout": 300},
        "webhooks": {"max_concurrency": 4, "timeout": 60},
        "shop": {"timeout": 300},
    },
}
