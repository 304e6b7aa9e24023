"""The table of tenants: their shares of the queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from ..domain.numbers import rate_of
from .fields import FloatField, TimestampField, check, count_or_none, index
from .named_row import OBJECTIVE_BOUNDS, RATE_BOUNDS, Objective, RatedRow, within

LONGEST_TENANT = 100
LOWEST_WEIGHT, HIGHEST_WEIGHT = 0.001, 1_000_000


class Tenant(RatedRow, Objective):
    """A tenant that differs from the others. One without a row has a weight of 1 and no limit, and
    the objectives of its queues."""

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
            check(
                "django_jobs_tenant_concurrency",
                models.Q(max_concurrency__isnull=True) | models.Q(max_concurrency__gte=1),
            ),
            check(
                "django_jobs_tenant_max_waiting",
                models.Q(max_waiting__isnull=True) | models.Q(max_waiting__gte=1),
            ),
        )

    def __str__(self) -> str:
        return self.name

    @classmethod
    def configured(cls, name: str, options: Mapping[str, Any]) -> Self:
        given = {option: value for option, value in options.items() if value is not None}
        if "rate" in given:
            given["rate"], given["rate_seconds"] = rate_of(given["rate"])
        return cls(name=name, **given)
