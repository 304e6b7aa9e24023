"""System checks of settings, schedules and delivery."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from django.core.checks import CheckMessage, Tags, register

TAG = "django_jobs"
CHECKS = {
    "settings.check_settings": [TAG],
    "settings.check_time_zone": [TAG],
    "settings.check_job_types": [TAG],
    "settings.check_immediate": [TAG],
    "settings.check_timeouts": [TAG],
    "settings.check_run_logs": [TAG],
    "settings.check_server": [Tags.database],
    "project.check_console": [TAG],
    "project.check_schedules": [TAG],
    "project.check_delivery": [TAG],
    "project.check_metrics_token": [TAG, Tags.urls],
    "project.check_workflows": [TAG],
    "project.check_definitions": [Tags.database],
}
"""Each check with its tags."""
OF_A_DEPLOYMENT = {"settings.check_immediate", "settings.check_timeouts"}
"""Those of ``check --deploy`` alone."""


def register_checks() -> None:
    """Register them. A module is imported when its check runs, not when a process enqueues."""
    for path, tags in CHECKS.items():
        register(_when_run(path), *tags, deploy=path in OF_A_DEPLOYMENT)


def _when_run(path: str) -> Callable[..., list[CheckMessage]]:
    module, _, name = path.partition(".")

    def check(**given: Any) -> list[CheckMessage]:
        found: list[CheckMessage] = getattr(import_module(f"{__name__}.{module}"), name)(**given)
        return found

    return check
