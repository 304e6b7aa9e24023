"""The one setting, ``DJANGO_JOBS``, with its defaults. Read late, forgotten when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

QUEUE_KEYS = (
    "max_concurrency",
    "max_backlog",
    "strict",
    "priority_weight",
    "max_attempts",
    "backoff",
    "timeout",
    "retention",
)
"""What a queue may be given in ``DJANGO_JOBS["QUEUES"]``; see docs/reference/settings.md."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """The values in force. Times are seconds."""

    database: str = "default"
    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"default": {}})
    lease_seconds: float = 30.0
    heartbeat_seconds: float | None = None
    poll_seconds: float = 1.0
    sweep_seconds: float = 5.0
    max_payload_bytes: int = 1_048_576
    max_result_bytes: int = 1_048_576
    retention: Mapping[str, Any] = field(
        default_factory=lambda: {"succeeded": "7d", "cancelled": "7d", "dead": None}
    )
    redact_keys: tuple[str, ...] = DEFAULT_REDACT_KEYS
    cancel_grace_seconds: float = 5.0
    quarantine: Mapping[str, float | None] = field(
        default_factory=lambda: {"crashes": 10, "seconds": 600}
    )
    code_version: str = ""
    schedules: bool = True

    @property
    def beat_seconds(self) -> float:
        """Time between two heartbeats: a quarter of the lease unless HEARTBEAT_SECONDS says so."""
        return self.heartbeat_seconds or self.lease_seconds / 4


KEYS = frozenset(known.name.upper() for known in fields(Conf))


def raw() -> Mapping[str, Any]:
    """``settings.DJANGO_JOBS`` as it stands, or an empty mapping."""
    given = getattr(settings, "DJANGO_JOBS", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DJANGO_JOBS must be a dict")
    return given


@lru_cache(maxsize=1)
def conf() -> Conf:
    """The settings in force. Unknown keys are passed over here; a system check names them."""
    given = {key.lower(): value for key, value in raw().items() if key in KEYS}
    if "retention" in given:
        given["retention"] = {**Conf().retention, **given["retention"]}
    if "quarantine" in given:
        given["quarantine"] = {**Conf().quarantine, **given["quarantine"]}
    if "redact_keys" in given:
        given["redact_keys"] = tuple(given["redact_keys"])
    return Conf(**given)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "DJANGO_JOBS":
        conf.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_jobs.conf")
