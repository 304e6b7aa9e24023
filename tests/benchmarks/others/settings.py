"""Settings of a Django project whose jobs or Tasks the queue ``OTHERS_NAME`` runs. Connections are
kept, as in all benchmarks."""

from __future__ import annotations

import os
from typing import Any

from tests.benchmarks.settings import *  # noqa: F403

BACKENDS = {
    "django_ox": "django_ox.backend.OxBackend",
    "dj_queue": "dj_queue.backend.DjQueueBackend",
}
# Of dj_queue, as many threads as of the others, and some 50 jobs in hand.
WORKERS = [{"queues": "*", "threads": 4, "prefetch_multiplier": 12}]
_name = os.environ["OTHERS_NAME"]

INSTALLED_APPS = ["django.contrib.contenttypes", _name, "tests.benchmarks.others"]
INSTALLED_APPS += ["django.contrib.auth"]  # for the permissions of ours
DATABASE_ROUTERS = ["dj_queue.routers.DjQueueRouter"] if _name == "dj_queue" else []
_options: dict[str, Any] = {"workers": WORKERS} if _name == "dj_queue" else {}
if _name in BACKENDS:
    TASKS = {"default": {"BACKEND": BACKENDS[_name], "OPTIONS": _options}}
