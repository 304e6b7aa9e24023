"""The tables of resources and tenants: what jobs use, for whom they are, and how many at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from .fields import FloatField, TimestampField, check, count_or_none, index, positive_or_none
from .named_row import (
    FINITE,
    LARGEST_INTEGER,
    OBJECTIVE_BOUNDS,
    RATE_BOUNDS,
    Objective,
    RatedRow,
    within,
)
from .queue import LONGEST_NAME, QUEUE_NAME, level_field

WINDOW_SECONDS = 60.0
"""What was started counts for about this long: its weight falls by the factor e in this time."""

# The time is bounded because exp() fails for less than 1e-308.
FADED = f"""exp(least(greatest(date_part('epoch', statement_timestamp() - counted_at), 0), 6000)
        / -{WINDOW_SECONDS})"""
"""What is left of the weight of ``recent_starts`` and ``recent_retries``, in SQL."""


LIMITS_MORE_THAN_SLOTS = """resource.rate IS NOT NULL OR resource.breaker_failures IS NOT NULL
               OR resource.breaker_state <> 'closed' OR resource.retry_budget IS NOT NULL
               OR resource.paused_at IS NOT NULL OR resource.over_limit"""
"""Whether a free slot of a ``resource`` is not enough for a job to start, in SQL."""

BOUNDS = {
    "max_concurrency": (1, LARGEST_INTEGER),
    "max_waiting": (1, LARGEST_INTEGER),
    **RATE_BOUNDS,
    "breaker_failures": (1, LARGEST_INTEGER),
    "breaker_window": (1.0, FINITE),
    "breaker_open_for": (1.0, FINITE),
    "retry_budget": (0.0, 1.0),
}


class BreakerState(models.TextChoices):
    CLOSED = "closed", _("closed")
    OPEN = "open", _("open")
    HALF_OPEN = "half_open", _("half open")


class Resource(RatedRow):
    """A named limit for all workers together, such as an API that allows 50 calls a second.

    ``migrate`` creates the resources of the setting; they are edited in the admin.
    """

    name = models.CharField(
        _("name"), max_length=LONGEST_NAME, unique=True, validators=[QUEUE_NAME]
    )
    max_concurrency = count_or_none(
        _("maximum concurrency"), _("Jobs that may use it at once. Empty: no limit.")
    )
    max_waiting = count_or_none(
        _("maximum waiting"), _("Jobs that may wait for it. Empty: no limit.")
    )
    breaker_failures = count_or_none(
        _("failures"), _("Failures in the window at which the breaker opens. Empty: it never does.")
    )
    breaker_window = FloatField(
        _("window"), default=60.0, validators=[MinValueValidator(1.0)], help_text=_("Seconds.")
    )
    breaker_open_for = FloatField(
        _("open for"),
        default=30.0,
        validators=[MinValueValidator(1.0)],
        help_text=_("Seconds after which an open breaker lets a few jobs try."),
    )
    breaker_state = models.CharField(
        _("breaker"),
        max_length=9,
        choices=BreakerState,
        default=BreakerState.CLOSED,
        editable=False,
    )
    breaker_changed_at = TimestampField(
        _("breaker changed at"), null=True, blank=True, editable=False
    )
    breaker_reason = models.CharField(
        _("reason of the breaker"), max_length=300, blank=True, default="", editable=False
    )
    pressure = level_field()
    retry_budget = FloatField(
        _("retry budget"),
        null=True,
        blank=True,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text=_("The share of starts that may be retries, from 0 to 1. Empty: no limit."),
    )
    recent_starts = FloatField(
        _("recent starts"), null=True, editable=False, help_text=_("For the retry budget.")
    )
    recent_retries = FloatField(
        _("recent retries"), null=True, editable=False, help_text=_("For the retry budget.")
    )
    counted_at = TimestampField(_("counted at"), null=True, editable=False)
    over_limit = models.BooleanField(
        _("over its limit"),
        default=False,
        editable=False,
        help_text=_("More jobs use it than the limit allows, because the limit was lowered."),
    )
    created_at = TimestampField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("resource")
        verbose_name_plural = _("resources")
        default_permissions = ("add", "change", "view")
        ordering = ("name",)
        permissions = (("pause_resource", "Can pause and resume resources"),)
        # Forms validate; code that writes rows does not, and an admission divides by the rate.
        constraints = within("resource", BOUNDS)

    @classmethod
    def configured(cls, name: str, options: Mapping[str, Any]) -> Self:
        breaker = options.get("breaker") or {}
        given = {option: value for option, value in options.items() if option != "breaker"}
        given |= {f"breaker_{option}": value for option, value in breaker.items()}
        return super().configured(name, given)


LONGEST_TENANT = 100
LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.001, 1_000_000


class Tenant(RatedRow, Objective):
    """A tenant that differs from others. Without a row: a weight of 1, no limit."""

    name = models.CharField(_("name"), max_length=LONGEST_TENANT, unique=True)
    weight = FloatField(
        _("weight"),
        default=1.0,
        validators=[MinValueValidator(LOWEST_WEIGHT), MaxValueValidator(HIGHEST_WEIGHT)],
        help_text=_("Its share of a busy queue, in proportion to the other tenants' weights."),
    )
    max_concurrency = count_or_none(
        _("maximum concurrency"),
        _("Jobs of this tenant that may be ready or running at once. Empty: no limit."),
    )
    max_waiting = count_or_none(
        _("maximum waiting"),
        _("Jobs of this tenant that may wait at their gates. Empty: no limit."),
    )
    created_at = TimestampField(_("created at"), auto_now_add=True)

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        ordering = ("name",)
        permissions = (("pause_tenant", "Can pause and resume tenants"),)
        # Read with a queue: most tenants have no such limit, and are not in the index.
        indexes = (
            index("django_jobs_tenant_until", "paused_until", paused_until__isnull=False),
            index("django_jobs_tenant_waiting", "name max_waiting", max_waiting__isnull=False),
        )
        # Forms validate; code that writes rows does not, and an admission divides by the weight.
        constraints = (
            *within("tenant", RATE_BOUNDS | OBJECTIVE_BOUNDS),
            check(
                "django_jobs_tenant_weight", weight__gte=LOWEST_WEIGHT, weight__lte=HIGHEST_WEIGHT
            ),
            positive_or_none("django_jobs_tenant_concurrency", "max_concurrency"),
            positive_or_none("django_jobs_tenant_max_waiting", "max_waiting"),
        )
