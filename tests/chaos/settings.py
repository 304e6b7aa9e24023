"""Settings of the chaos test: short leases, so that many run out in a minute."""

import os
from typing import Any

from psycopg import IsolationLevel

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS

from .gates import BURST, RATE, SLOTS
from .timing import LEASE, POLL, SWEEP

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
DJANGO_JOBS = dict[str, Any](
    QUEUES={"default": {}, "second": {"max_concurrency": 4}},
    RESOURCES={
        "slots": {"max_concurrency": SLOTS["resource slots"]},
        "calls": {"rate": f"{RATE:g}/s", "burst": BURST},
    },
    TENANTS={"capped": {"max_concurrency": SLOTS["tenant capped"]}},
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
