"""Settings of the tests: the demo project's, on a cluster of their own."""

from __future__ import annotations

import json
import os

import psycopg

if "DATABASE_URL" not in os.environ:
    from testproject import embedded

    embedded.PATIENCE = 60.0  # a machine that others use may stand still for seconds
    # tox runs its environments side by side: a cluster for each.
    cluster = f"tests-{os.environ.get('TOX_ENV_NAME', 'local')}"
    os.environ["DATABASE_URL"] = embedded.start(embedded.data_directory(cluster)).get_uri()
    # Nothing of a test has to outlive a power failure; the disk of a shared machine may stall for
    # seconds.
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as server:
        server.execute("ALTER SYSTEM SET fsync = off")
        # A test that fails shows the end of the server's log: tests/sessions.py.
        server.execute("ALTER SYSTEM SET log_lock_waits = on")
        server.execute("ALTER SYSTEM SET log_min_duration_statement = '10s'")
        server.execute("ALTER SYSTEM SET log_line_prefix = '%m [%p] %d '")
        server.execute("SELECT pg_reload_conf()")

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, INSTALLED_APPS
from testproject.settings import DJANGO_JOBS as DEMO
from tests.patience import PATIENCE

# The worker processes that a test starts use the database that the test uses.
if "TEST_DATABASE_NAME" in os.environ:
    DATABASES["default"]["NAME"] = os.environ["TEST_DATABASE_NAME"]

if "TEST_DATABASE_POOL" in os.environ:
    DATABASES["default"] |= {
        "CONN_MAX_AGE": 0,
        "OPTIONS": {
            **DATABASES["default"].get("OPTIONS", {}),
            "pool": {"min_size": 1, "max_size": 4},
        },
    }

if "TEST_DATABASE_AUTOCOMMIT" in os.environ:
    DATABASES["default"]["AUTOCOMMIT"] = bool(int(os.environ["TEST_DATABASE_AUTOCOMMIT"]))

if "TEST_DATABASE_ISOLATION" in os.environ:
    DATABASES["default"]["OPTIONS"] = {
        **DATABASES["default"].get("OPTIONS", {}),
        "isolation_level": psycopg.IsolationLevel[os.environ["TEST_DATABASE_ISOLATION"]],
    }

DEBUG = False
INSTALLED_APPS = [*INSTALLED_APPS, "tests.app"]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DJANGO_JOBS = {
    "QUEUES": {
        **DEMO["QUEUES"],
        "default": {},
        "emails": {"max_concurrency": 2},
        "strict": {"strict": True},
        "bulk": {"max_attempts": 2, "timeout": 60},
    },
    "ADMIN_STATEMENT_TIMEOUT": PATIENCE,
}

TASKS = {
    "default": {"BACKEND": "django_jobs.backend.JobsBackend", "QUEUES": ["default", "bulk"]},
}

# Tests make the resources that they need: of some, the rows of this setting would be counted.
SILENCED_SYSTEM_CHECKS = ["django_jobs.W002"]

# What the worker processes of one test are to do otherwise, as JSON.
DJANGO_JOBS |= json.loads(os.environ.get("TEST_DJANGO_JOBS", "{}"))
