"""The setting ``DJANGO_JOBS`` with its defaults. It is read at the first use and cached."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

DEFAULT_REDACT_KEYS = (
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "api_key",
    "apikey",
    "access_key",
    "private_key",
    "credential",
    "cookie",
)

RUN_LOGS = {"level": "INFO", "lines": 200, "bytes": 65_536}
"""What of the logs of a run is kept, if anything is."""


BEATS_OF_A_LEASE = 4
"""Heartbeats while a lease lasts, if HEARTBEAT_SECONDS does not say how often one is sent."""


class Conf(NamedTuple):
    """The values of the setting, with defaults. Times are in seconds."""

    database: str = "default"
    queues: Mapping[str, Mapping[str, Any]] = {"default": {}}
    resources: Mapping[str, Mapping[str, Any]] = {}
    tenants: Mapping[str, Mapping[str, Any]] = {}
    lease_seconds: float = 24.0
    heartbeat_seconds: float | None = None
    poll_seconds: float = 1.0
    sweep_seconds: float = 5.0
    max_payload_bytes: int = 1_048_576
    max_result_bytes: int = 1_048_576
    retention: Mapping[str, Any] = {
        "succeeded": "7d",
        "cancelled": "7d",
        "dead": None,
        "runs": None,
        "workflows": "7d",
    }
    history: Mapping[str, str] = {"partition": "day"}
    redact_keys: tuple[str, ...] = DEFAULT_REDACT_KEYS
    cancel_grace_seconds: float = 5.0
    quarantine: Mapping[str, float | None] = {"crashes": 10, "seconds": 600}
    code_version: str = ""
    schedules: bool = True
    totals: bool = True
    immediate: bool = False
    hooks: tuple[str, ...] = ()
    check_annotations: bool = False
    storage: Mapping[str, Any] | None = None
    runserver: bool = False
    run_cost: bool = False
    count_queries: bool = False
    run_logs: Mapping[str, Any] | None = None
    metrics_token: str = ""
    alerts: Mapping[str, Mapping[str, Any]] = {}
    http: Mapping[str, Any] = {}
    admin_statement_timeout: float | None = 3.0
    issue_url: str = ""
    links: Any = ()
    admin_scope: str = ""

    @property
    def beat_seconds(self) -> float:
        """Seconds between two heartbeats: HEARTBEAT_SECONDS, or a quarter of the lease."""
        return self.heartbeat_seconds or self.lease_seconds / BEATS_OF_A_LEASE


KEYS = frozenset(map(str.upper, Conf._fields))


def raw() -> Mapping[str, Any]:
    """``settings.DJANGO_JOBS``, or an empty mapping if it is None or left out. Raises
    ``ImproperlyConfigured`` unless it is a dict."""
    setting = getattr(settings, "DJANGO_JOBS", None)
    if setting is None:
        return {}
    if not isinstance(setting, Mapping):
        raise ImproperlyConfigured(f"DJANGO_JOBS must be a dict, not {type(setting).__name__}")
    return setting


@lru_cache(maxsize=1)
def conf() -> Conf:
    """The current settings. Unknown keys are ignored here; a system check reports them."""
    values = {key.lower(): value for key, value in raw().items() if key in KEYS}
    for key in ("retention", "history", "quarantine"):
        if key in values:
            values[key] = {**getattr(Conf(), key), **values[key]}
    if (logs := values.get("run_logs")) is not None:
        values["run_logs"] = {
            **RUN_LOGS,
            **(logs if isinstance(logs, Mapping) else {"level": logs}),
        }
    for key in ("redact_keys", "hooks"):
        if key in values:
            values[key] = tuple(values[key])
    return Conf(**values)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DJANGO_JOBS":
        conf.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_jobs.conf")
