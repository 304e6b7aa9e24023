"""Tables of rows that a setting names: read through a cache, seeded after migrate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeVar, cast

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.expressions import RawSQL
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..domain.numbers import LONGEST_TIMEOUT, LOWEST_RATE, SHORTEST_PERIOD, rate_of
from .fields import FloatField, TimestampField, check, count_or_none

RECENT_SECONDS = 2.0

LARGEST_INTEGER, FINITE = 2**31 - 1, 1e100
RATE_BOUNDS = {
    "rate": (LOWEST_RATE, FINITE),
    "rate_seconds": (SHORTEST_PERIOD, FINITE),
    "burst": (1, LARGEST_INTEGER),
}
"""The values of each number with which something starts. PostgreSQL has NaN above all others."""

# The age counts back from the current transaction, whose savepoints come after it. A row that this
# transaction wrote has no age, and must not be cached, because it may be rolled back.
COMMITTED = "age({table}.xmin) > 0"


Row = TypeVar("Row", bound="NamedRow")


class NamedRows(models.Manager[Row]):
    _recent: ClassVar[dict[tuple[str, str, str], tuple[float, Any]]] = {}

    def recent(self, name: str, alias: str, *, or_none: bool = False) -> Row | None:
        """The row, from a cache of two seconds, so that an enqueue costs one statement. ``or_none``
        if there may well be none, and one that was just made may be missed.

        Settings that apply at once, such as a pause, are read by the claim or the admission itself.
        """
        if not isinstance(name, str):  # nor is it hashed
            return None
        table = self.model._meta.db_table
        cached = self._recent.get((alias, table, name))
        is_known = cached is not None and (or_none or cached[1] is not None)
        if cached is not None and is_known and time.monotonic() - cached[0] < RECENT_SECONDS:
            return cast("Row | None", cached[1])  # an object takes a microsecond
        also = {"_committed": COMMITTED.format(table=table), **self.model.READ_WITH_RECENT}
        read = {key: RawSQL(value, ()) for key, value in also.items()}  # noqa: S611 — constants
        row: Any = self.using(alias).filter(name=name).annotate(**read).first()
        if or_none if row is None else row._committed:
            self._recent[alias, table, name] = time.monotonic(), row
        return cast("Row | None", row)

    def names(self) -> models.QuerySet[Row, str]:
        return self.using(conf().database).order_by("name").values_list("name", flat=True)

    @classmethod
    def forget_recent(cls) -> None:
        """Clear the cache of :meth:`recent`, for all models."""
        cls._recent.clear()

    def seed(self, configured: Mapping[str, Mapping[str, Any]], alias: str) -> None:
        """Create the rows of a setting that do not exist yet.

        An existing row is not changed, because it is edited in the admin.
        """
        rows = [self.model.configured(name, options) for name, options in configured.items()]
        self.using(alias).bulk_create(rows, ignore_conflicts=True)
        self.forget_recent()


class Pausable(models.Model):
    """A row that can be paused: since when, why, by whom, and until when."""

    paused_at = TimestampField(_("paused at"), null=True, blank=True, editable=False)
    paused_reason = models.CharField(
        _("reason for the pause"), max_length=300, blank=True, default="", editable=False
    )
    paused_by = models.CharField(
        _("paused by"), max_length=150, blank=True, default="", db_default="", editable=False
    )
    paused_until = TimestampField(_("paused until"), null=True, blank=True, editable=False)

    class Meta:
        abstract = True

    @property
    def paused(self) -> bool:
        """Whether no job starts from this queue, for this tenant, by this resource or schedule."""
        return self.paused_at is not None


class NamedRow(Pausable):
    name: models.CharField[str, str]
    objects: ClassVar[NamedRows[Self]] = NamedRows()
    READ_WITH_RECENT: ClassVar[Mapping[str, str]] = {}
    """Attributes that :meth:`NamedRows.recent` reads with the row, each with its expression."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **kwargs: Any) -> None:
        super().save(*args, **kwargs)
        NamedRows.forget_recent()

    @classmethod
    def configured(cls, name: str, options: Mapping[str, Any]) -> Self:
        """The unsaved row for one entry of its setting. An option of None is its default."""
        return cls(name=name, **{key: value for key, value in options.items() if value is not None})


NEEDS = {"burst": "rate", "slo_target": "slo_seconds"}
"""Columns and options that mean nothing without another one."""
SLO_TARGET = 0.99
OBJECTIVE_BOUNDS = {"slo_seconds": (0.001, LONGEST_TIMEOUT), "slo_target": (0.01, 0.99999)}


def _between(column: str) -> list[Any]:
    least, most = OBJECTIVE_BOUNDS[column]
    return [MinValueValidator(least), MaxValueValidator(most)]


class Objective(models.Model):
    """A row with a service level objective: how many of its jobs should start in time."""

    slo_seconds = FloatField(
        _("start within"),
        null=True,
        blank=True,
        validators=_between("slo_seconds"),
        help_text=_("Seconds within which a job should start. Empty: none."),
    )
    slo_target = FloatField(
        _("share of jobs"),
        default=SLO_TARGET,
        db_default=SLO_TARGET,
        validators=_between("slo_target"),
        help_text=_("The share of the jobs that should start in time, such as 0.99."),
    )

    class Meta:
        abstract = True


class RatedRow(NamedRow):
    """A row with a token bucket: how many jobs may start in a time."""

    rate = FloatField(
        _("rate"),
        null=True,
        blank=True,
        validators=[MinValueValidator(LOWEST_RATE)],
        help_text=_("Jobs that may start in each period. Empty: no limit."),
    )
    rate_seconds = FloatField(
        _("period"),
        default=1.0,
        db_default=1.0,
        validators=[MinValueValidator(SHORTEST_PERIOD)],
        help_text=_("The period of the rate, in seconds."),
    )
    burst = count_or_none(
        _("burst"), _("Jobs that may start at once after a rest. Empty: as many as in a period.")
    )
    tokens = FloatField(
        _("tokens"), null=True, blank=True, editable=False, help_text=_("At the last refill.")
    )
    refilled_at = TimestampField(_("refilled at"), null=True, blank=True, editable=False)

    class Meta:
        abstract = True

    @classmethod
    def configured(cls, name: str, options: Mapping[str, Any]) -> Self:
        row = super().configured(name, {**options, "rate": None})
        if rate := options.get("rate"):
            row.rate, row.rate_seconds = rate_of(rate)
        return row


def within(
    table: str, bounds: Mapping[str, tuple[float, float]]
) -> tuple[models.CheckConstraint, ...]:
    """The constraints of columns that are null or within these bounds."""
    return tuple(
        check(
            f"django_jobs_{table}_{name}",
            models.Q(**{f"{name}__isnull": True}) | models.Q(**{f"{name}__range": both}),
        )
        for name, both in bounds.items()
    )
