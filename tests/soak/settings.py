"""Settings of the soak: short retention, so that the tables reach their size within minutes."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.soak"]
DJANGO_JOBS = {
    "QUEUES": {"default": {}, "limited": {"max_concurrency": 2}},
    "RETENTION": {"succeeded": "1m", "cancelled": "1m", "dead": "1m"},
}
