"""The table of queues."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..domain.backoff import Backoff
from ..domain.numbers import AGEING_WEIGHT, LONGEST_TIMEOUT, STRICT_WEIGHT
from .database import DROPPING
from .fields import FloatField, TimestampField, check, count_or_none, positive_or_none
from .named_row import OBJECTIVE_BOUNDS, NamedRow, Objective, within

QUEUE_NAME = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z",
    _("Use letters, digits, dots, hyphens and underscores; start with a letter or digit."),
)
LONGEST_NAME = 100
"""What is allowed. At a share of 1 each late job would burn an endless budget."""
WAITING_LIMITS = """jsonb_build_object(
    'resource', (SELECT jsonb_object_agg(name, max_waiting) FROM django_jobs_resource
                 WHERE max_waiting IS NOT NULL),
    'tenant', (SELECT jsonb_object_agg(name, max_waiting) FROM django_jobs_tenant
               WHERE max_waiting IS NOT NULL))::text"""
IS_WATCHED = f"EXISTS ({DROPPING.format(table='django_jobs_job_live')})"
A_QUEUE_NAME = f"1 to {LONGEST_NAME} letters, digits, dots, hyphens and underscores"


class OnFull(models.TextChoices):
    """What happens to a new job of a queue that holds ``max_backlog`` jobs, or one of whose gates
    has ``max_waiting``."""

    RAISE = "raise", _("refuse the new job")
    DROP_LOWEST = "drop_lowest", _("drop the lowest waiting job")


class SloSince(models.TextChoices):
    """From when the objective of a queue counts."""

    DUE = "due", _("the due time")
    READY = "ready", _("the moment when its gates let it go")


def slo_began(due: str, ready: str) -> str:
    """SQL: from when a job is counted, where ``slo_since`` is that of its queue. ``ready`` is null
    without gates, and earlier than ``due`` if it is of an earlier attempt."""
    return f"greatest({due}, CASE slo_since WHEN '{SloSince.READY}' THEN {ready} END)"


def is_queue_name(value: Any) -> bool:
    try:
        QUEUE_NAME(value)
    except ValidationError:
        return False
    return isinstance(value, str) and len(value) <= LONGEST_NAME


def level_field() -> models.CharField[str, str]:
    """The level of a pressure, when a worker last looked."""
    return models.CharField(
        _("pressure"),
        max_length=4,
        default="ok",
        db_default="ok",
        editable=False,
        help_text=_("The level when a worker last looked."),
    )


class Queue(NamedRow, Objective):
    """A named queue, and options of its jobs. ``migrate`` creates those of the settings."""

    name = models.CharField(
        _("name"), max_length=LONGEST_NAME, unique=True, validators=[QUEUE_NAME]
    )
    resumed_at = TimestampField(
        _("resumed at"),
        null=True,
        blank=True,
        editable=False,
        help_text=_("When the last pause ended: rates and forecasts begin there."),
    )
    max_concurrency = count_or_none(
        _("maximum concurrency"),
        _("Jobs of this queue that may run at once, on all workers together. Empty: no limit."),
    )
    max_backlog = count_or_none(
        _("maximum backlog"),
        _(
            "Jobs that are ready or wait at their gates at which the queue is full. Empty: no "
            "limit."
        ),
    )
    on_full = models.CharField(
        _("when full"),
        max_length=11,
        choices=OnFull,
        default=OnFull.RAISE,
        db_default=OnFull.RAISE.value,
        help_text=_(
            "The queue, or a resource, a tenant or a key of the job. The lowest job is the one "
            "that would start last; it is cancelled."
        ),
    )
    pressure = level_field()
    priority_weight = FloatField(
        _("priority weight"),
        default=AGEING_WEIGHT,
        validators=[MinValueValidator(0.0)],
        help_text=_(
            "Seconds of waiting that equal one point of priority. 100,000,000 is strict: priority "
            "always decides."
        ),
    )
    max_attempts = models.PositiveSmallIntegerField(
        _("attempts"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("For job types without max_attempts. Empty: 5."),
    )
    backoff = models.JSONField(
        _("backoff"),
        null=True,
        blank=True,
        help_text=_("For job types without a backoff, as returned by Backoff.as_json()."),
    )
    timeout = FloatField(
        _("time-out"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0.001), MaxValueValidator(LONGEST_TIMEOUT)],
        help_text=_(
            "Seconds that an attempt may take, for job types without a timeout. Empty: no limit."
        ),
    )
    retention = models.JSONField(
        _("retention"),
        null=True,
        blank=True,
        help_text=_('Overrides the setting RETENTION, such as {"succeeded": "1d", "dead": "30d"}.'),
    )
    slo_since = models.CharField(
        _("counted from"),
        max_length=5,
        choices=SloSince,
        default=SloSince.DUE,
        db_default=SloSince.DUE.value,
        help_text=_("From the due time, the wait for a rate limit counts too."),
    )
    created_at = TimestampField(_("created at"), auto_now_add=True)

    READ_WITH_RECENT = MappingProxyType(
        {"is_watched": IS_WATCHED, "waiting_limits": WAITING_LIMITS}
    )
    is_watched = False
    """Whether a trigger of the project's sees each new job first, and may drop it."""
    waiting_limits = "{}"

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("add", "change", "view")
        ordering = ("name",)
        permissions = (("pause_queue", "Can pause and resume queues"),)
        constraints = (
            positive_or_none("django_jobs_queue_concurrency", "max_concurrency"),
            check("django_jobs_queue_on_full", on_full__in=[choice.value for choice in OnFull]),
            *within("queue", OBJECTIVE_BOUNDS),
            check(
                "django_jobs_queue_slo_since", slo_since__in=[choice.value for choice in SloSince]
            ),
        )

    @property
    def max_waiting(self) -> dict[str, dict[str, int]]:
        """The limits of the resources and tenants that have one, by kind and name. Read with
        :meth:`~django_jobs.models.named_row.NamedRows.recent`, so that an enqueue reads no more."""
        return {kind: limits for kind, limits in json.loads(self.waiting_limits).items() if limits}

    @classmethod
    def configured(cls, name: str, options: Mapping[str, Any]) -> Self:
        given = dict(options)
        if given.pop("strict", False):
            given["priority_weight"] = STRICT_WEIGHT
        if isinstance(backoff := given.get("backoff"), Backoff):
            given["backoff"] = backoff.as_json()
        return super().configured(name, given)
