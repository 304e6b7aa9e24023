"""Settings of the chaos test: short leases, so that many run out in a minute."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

LEASE = 3.0
SWEEP = 0.5
POLL = 0.3

INSTALLED_APPS = [*INSTALLED_APPS, "tests.chaos"]
DJANGO_JOBS = {
    "QUEUES": {"default": {}, "second": {"max_concurrency": 3}},
    "LEASE_SECONDS": LEASE,
    "SWEEP_SECONDS": SWEEP,
    "POLL_SECONDS": POLL,
}
