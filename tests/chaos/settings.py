"""Settings of the chaos test: short leases, so that many run out in a minute."""

import os
from typing import Any

from django.conf import global_settings
from psycopg import IsolationLevel

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

from .alerts import RESOURCE
from .gates import BURST, RATE, SLOTS
from .outside import SECRET, TOO_LONG
from .timing import LEASE, POLL, SWEEP

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
ROOT_URLCONF = "tests.chaos.urls"
ALLOWED_HOSTS = ["testserver"]
STORAGES = {
    **global_settings.STORAGES,
    "chaos": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": os.environ.get("CHAOS_FILES", "")},
    },
}
DJANGO_JOBS = dict[str, Any](
    QUEUES={"default": {}, "second": {"max_concurrency": 4}},
    RESOURCES={
        "slots": {"max_concurrency": SLOTS["resource slots"]},
        RESOURCE: {"breaker": {"failures": 1_000}},
        "calls": {"rate": f"{RATE:g}/s", "burst": BURST},
    },
    TENANTS={
        "capped": {"max_concurrency": SLOTS["tenant capped"]},
        "metered": {"rate": f"{RATE:g}/s", "burst": BURST},
    },
    STORAGE={"alias": "chaos", "above_bytes": TOO_LONG},
    HTTP={
        "job_types": ["chaos.calls_back"],
        "authorize": "tests.chaos.urls.may",
        "callback_hosts": {os.environ.get("CHAOS_RECEIVER", "localhost"): SECRET},
    },
    LEASE_SECONDS=LEASE,
    SWEEP_SECONDS=SWEEP,
    POLL_SECONDS=POLL,
    QUARANTINE={"crashes": None},  # the pills' type is to crash as often as they are swallowed
)
if os.environ.get("CHAOS_SERIALIZABLE"):
    options = DATABASES["default"].setdefault("OPTIONS", {})
    options["isolation_level"] = IsolationLevel.SERIALIZABLE
if os.environ.get("CHAOS_WITHOUT_SCHEDULES"):
    DJANGO_JOBS["SCHEDULES"] = False
else:
    on = ["dead_jobs", "open_breaker"]
    DJANGO_JOBS["ALERTS"] = {
        "storm": {"to": "tests.chaos.alerts.send", "on": on, "at_most_per_hour": 3_600}
    }
