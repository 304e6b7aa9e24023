"""The table of schedules, and the columns that Django has no field for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, tzinfo
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, router, transaction
from django.utils.translation import gettext_lazy as _

from ..domain.numbers import HIGHEST_PRIORITY, LOWEST_PRIORITY
from ..domain.policies import LIMITS, CatchUp, Overlap, in_utc
from .fields import FloatField, TimestampField, check, count_or_none, index
from .named_row import Pausable
from .querysets import ARMED, ScheduleQuerySet, ScheduleState, state_at
from .queue import QUEUE_NAME

if TYPE_CHECKING:
    from ..domain.policies import Change
    from ..domain.schedules import Rule


class DatesField(models.Field):  # type: ignore[type-arg]
    """A list of dates, in order and each once. Django's ``ArrayField`` would need
    ``django.contrib.postgres`` among the installed apps.

    Dates that Python cannot represent are left out when a row is read. It is selected as JSON, so
    that one of them does not fail the whole query.
    """

    def db_type(self, connection: Any) -> str:
        return "date[]"

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        return f"to_jsonb({sql})", params

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> list[date]:
        if not value or value == "[]":
            return []
        return in_order(json.loads(value) if isinstance(value, str) else value)

    def to_python(self, value: Any) -> list[date]:
        values = value.split() if isinstance(value, str) else value or ()
        if None in map(_as_date, values):
            raise ValidationError(_("Enter dates, such as 2026-12-25."))
        return in_order(values)

    def value_to_string(self, obj: Any) -> str:
        return " ".join(map(str, self.value_from_object(obj)))


def in_order(values: Iterable[Any]) -> list[date]:
    """The dates among ``values``, which may be texts."""
    return sorted({day for day in map(_as_date, values) if day is not None})


def _as_date(value: Any) -> date | None:
    if isinstance(value, date):
        return None if isinstance(value, datetime) else value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return None


class CountField(models.PositiveIntegerField):  # type: ignore[type-arg]
    """A number that only statements raise. ``save()`` of a row that exists keeps what is stored, so
    that a row that was read before loses no count; ``QuerySet.update()`` writes it."""

    def pre_save(self, model_instance: Any, add: bool) -> Any:
        return super().pre_save(model_instance, add) if add else models.F(self.attname)


LONGEST_NAME = 200
LONGEST_JITTER = 86_400.0
"""Seconds."""


class Schedule(Pausable):
    """A rule that enqueues jobs. Declare it by :func:`django_jobs.schedule`, or add a row."""

    class Dst(models.TextChoices):
        """When a fixed local time is due on a day on which the clock changes."""

        ONCE = "once", _("once on each day")
        SKIP = "skip", _("not in a skipped hour")
        TWICE = "twice", _("twice in an hour that occurs twice")

    class Overlaps(models.TextChoices):
        """What a due time does while the last job is live."""

        SKIP = Overlap.SKIP.value, _("skip")
        QUEUE_ONE = Overlap.QUEUE_ONE.value, _("let one wait")
        QUEUE_ALL = Overlap.QUEUE_ALL.value, _("let all wait, and run them in order")
        ALLOW = Overlap.ALLOW.value, _("run at the same time, up to the limit")
        CANCEL = Overlap.CANCEL.value, _("cancel the last job")

    class CatchUps(models.TextChoices):
        """Which of the due times that no worker saw in time make a job."""

        LATEST = CatchUp.LATEST.value, _("run only the latest")
        SKIP = CatchUp.SKIP.value, _("skip them")
        AT_MOST = CatchUp.AT_MOST.value, _("run the newest, up to the limit")
        WINDOW = CatchUp.WINDOW.value, _("run those within the limit in seconds")

    RULE_FIELDS: ClassVar[tuple[str, ...]] = (
        *("name", "cron", "every", "timezone", "dst", "starts_at", "ends_at"),
        *("excluded_dates", "max_jobs", "enabled", "paused_at", "error"),
    )
    """The fields that determine the next due time. A change makes a worker recompute it."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=LONGEST_NAME, unique=True)
    job_type = models.CharField(_("job type"), max_length=200)
    payload = models.JSONField(
        _("payload"), default=dict, blank=True, help_text=_("Arguments by name.")
    )
    payload_version = models.PositiveSmallIntegerField(
        _("payload version"), default=1, db_default=1, editable=False
    )
    queue = models.CharField(
        _("queue"),
        max_length=100,
        blank=True,
        default="",
        validators=[QUEUE_NAME],
        help_text=_("Empty: the queue that the job type declares."),
    )
    priority = models.SmallIntegerField(
        _("priority"),
        null=True,
        blank=True,
        validators=[MinValueValidator(LOWEST_PRIORITY), MaxValueValidator(HIGHEST_PRIORITY)],
        help_text=_("Empty: the priority that the job type declares."),
    )
    cron = models.CharField(
        _("cron expression"),
        max_length=100,
        blank=True,
        default="",
        help_text=_("Minute, hour, day of the month, month, day of the week."),
    )
    every = FloatField(
        _("interval"),
        null=True,
        blank=True,
        help_text=_("Seconds, counted from the start or else from 1970."),
    )
    timezone = models.CharField(_("time zone"), max_length=64, default="UTC")
    starts_at = TimestampField(_("starts at"), null=True, blank=True)
    ends_at = TimestampField(_("ends at"), null=True, blank=True)
    excluded_dates = DatesField(
        _("excluded dates"),
        default=list,
        db_default=models.Value("{}"),
        blank=True,
        help_text=_("Dates in the time zone of the schedule on which it is not due."),
    )
    max_jobs = count_or_none(
        _("maximum number of jobs"),
        _("After this many jobs it ends; a larger number starts it again. Empty: any number."),
    )
    jobs_made = CountField(
        _("jobs made"),
        default=0,
        db_default=0,
        editable=False,
        help_text=_("The number of jobs that its due times made."),
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    jitter_seconds = FloatField(
        _("jitter"),
        default=0.0,
        validators=[MinValueValidator(0.0), MaxValueValidator(LONGEST_JITTER)],
        help_text=_("Each job starts up to this many seconds late, so that not all start at once."),
    )
    dst = models.CharField(_("when the clock changes"), max_length=5, choices=Dst, default=Dst.ONCE)
    overlap = models.CharField(
        _("while the last job is not done"), max_length=9, choices=Overlaps, default=Overlaps.SKIP
    )
    overlap_limit = count_or_none(
        _("overlap limit"), _("Jobs that may run at once, or wait. Empty: any number.")
    )
    catch_up = models.CharField(
        _("missed due times"), max_length=7, choices=CatchUps, default=CatchUps.LATEST
    )
    catch_up_limit = FloatField(
        _("limit of missed due times"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text=_("A number of jobs, or seconds."),
    )
    pause_after_dead = models.PositiveSmallIntegerField(
        _("pause after dead jobs"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text=_("The number of dead jobs in a row that pauses the schedule. Empty: never."),
    )
    declared = models.BooleanField(
        _("declared in code"),
        default=False,
        editable=False,
        help_text=_("Each migrate writes the values from the code."),
    )
    origin = models.TextField(default="", db_default="", editable=False)
    """Of an imported schedule the row that it was made of, and what that row said then."""
    resumed_at = TimestampField(_("resumed at"), null=True, blank=True, editable=False)
    error = models.TextField(
        _("error"),
        blank=True,
        default="",
        editable=False,
        help_text=_("The schedule does not fire until it is saved or resumed."),
    )
    stale = models.BooleanField(default=True, editable=False)
    """Whether ``next_due_at`` has to be computed from the rule."""
    next_due_at = TimestampField(_("next due at"), null=True, blank=True, editable=False)
    last_due_at = TimestampField(_("last due at"), null=True, blank=True, editable=False)
    created_at = TimestampField(_("created at"), auto_now_add=True)

    objects = ScheduleQuerySet.as_manager()

    now: datetime
    """The database's time at which the row was read, if it was read with an annotation."""
    changes_json: str | None = None
    """Its exceptions from today on, if it was read with the annotation of
    :mod:`~django_jobs.models.tick`."""
    _rule_before: Mapping[str, Any] = MappingProxyType({})

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        ordering = ("name",)
        permissions = (
            ("pause_schedule", "Can pause and resume schedules"),
            ("run_schedule", "Can run schedules now"),
            ("backfill_schedule", "Can backfill schedules"),
            ("move_schedule", "Can skip and move due times of schedules"),
        )
        indexes = (
            index("django_jobs_schedule_until", "paused_until", paused_until__isnull=False),
            models.Index(fields=("next_due_at",), condition=ARMED, name="django_jobs_schedule_due"),
            index("django_jobs_schedule_stale", "id", stale=True),
        )
        constraints = (
            check(
                "django_jobs_schedule_priority", priority__range=(LOWEST_PRIORITY, HIGHEST_PRIORITY)
            ),
            check(
                "django_jobs_schedule_policies",
                models.Q(overlap__in=[choice.value for choice in Overlap])
                & models.Q(catch_up__in=[choice.value for choice in CatchUp]),
            ),
        )

    def __str__(self) -> str:
        return self.name

    def save(self, *args: Any, **options: Any) -> None:
        """Mark the schedule stale if its rule changed: a worker recomputes it. Clears any error."""
        self._refuse_flag()
        fields = options.get("update_fields")
        if fields is None and self.error:
            self.error = ""
        written = set(self.RULE_FIELDS if fields is None else fields)
        changed = any(
            self._rule_before.get(field) != now for field, now in self._rule(written).items()
        )
        # Also if it got an error while it was edited: then it has no due time to continue from.
        if changed or ("error" in written and self.next_due_at is None):
            self.stale = True
            if fields is not None:
                options["update_fields"] = {*fields, "stale"}
        super().save(*args, **options)
        self._rule_before = {**self._rule_before, **self._rule(written)}

    def delete(self, *args: Any, **options: Any) -> tuple[int, dict[str, int]]:
        """Also delete its ticks. Locks the row first, so that no worker fires it meanwhile: the new
        tick would stay."""
        alias = options.get("using") or router.db_for_write(Schedule, instance=self)
        with transaction.atomic(using=alias):
            list(Schedule.objects.using(alias).filter(pk=self.pk).select_for_update().values("pk"))
            return super().delete(*args, **options)

    def clean_fields(self, exclude: Any = None) -> None:
        self._refuse_flag()
        super().clean_fields(exclude)

    def _refuse_flag(self) -> None:
        """Django takes True as 1.0, which would be due each second."""
        if isinstance(self.__dict__.get("every"), bool):  # it may be deferred
            raise ValidationError({"every": "an interval is a number of seconds, not bool"})

    def clean(self) -> None:
        from ..domain.cron import UnknownTimezone
        from ..domain.schedules import TooManyDates

        try:
            self.rule.check()
        except ValueError as error:
            field = "cron" if self.cron or self.every is None else "every"
            field = "timezone" if isinstance(error, UnknownTimezone) else field
            field = "excluded_dates" if isinstance(error, TooManyDates) else field
            raise ValidationError({field: rule_problem(error)}) from None
        for field in ("jitter_seconds", "catch_up_limit"):
            if not isfinite(getattr(self, field) or 0.0):
                raise ValidationError({field: _("Enter a finite number.")})
        if self.catch_up in LIMITS:
            self._check_catch_up_limit()

    def _check_catch_up_limit(self) -> None:
        (least, most), limit = LIMITS[CatchUp(self.catch_up)], self.catch_up_limit
        if limit is None:
            raise ValidationError({"catch_up_limit": _("This policy requires a limit.")})
        if least <= limit <= most:
            return
        message = _("Enter at least %(least)d seconds.")
        if self.catch_up == CatchUp.AT_MOST:
            message = _("Enter %(least)d to %(most)d jobs.")
        raise ValidationError({"catch_up_limit": message % {"least": least, "most": most}})

    @classmethod
    def from_db(cls, *args: Any, **options: Any) -> Schedule:
        schedule = super().from_db(*args, **options)
        schedule._rule_before = schedule._rule(cls.RULE_FIELDS)
        return schedule

    def refresh_from_db(self, *args: Any, **options: Any) -> None:
        """Django calls this to load a deferred field too."""
        super().refresh_from_db(*args, **options)
        fields = options.get("fields") or (args[1] if len(args) > 1 else None)
        self._rule_before = {**self._rule_before, **self._rule(fields or self.RULE_FIELDS)}

    def _rule(self, fields: Collection[str]) -> dict[str, Any]:
        """The values of those ``fields`` that belong to the rule and are loaded."""
        loaded = self.__dict__
        values: dict[str, Any] = {
            field: in_utc(loaded[field]) if isinstance(loaded[field], datetime) else loaded[field]
            for field in self.RULE_FIELDS
            if field in fields and field in loaded
        }
        if "excluded_dates" in values:  # a list, which may change in place
            values["excluded_dates"] = tuple(values["excluded_dates"])
        return values

    @property
    def rule(self) -> Rule:
        """The rule of its due times, with the exceptions if they were read."""
        from ..domain.schedules import Rule

        return Rule(
            name=self.name,
            cron=self.cron,
            every=self.every,
            timezone=self.timezone,
            dst=self.dst,
            starts_at=self.starts_at,
            ends_at=self.ends_at,
            excluded_dates=frozenset(self.excluded_dates),
            changes=_changes_of(self.changes_json) if self.changes_json else (),
        )

    @property
    def zone(self) -> tzinfo:
        """The zone of its clock; UTC if no zone has that name any more."""
        from ..domain.cron import UnknownTimezone, check_timezone

        try:
            return check_timezone(self.timezone)
        except UnknownTimezone:
            return UTC

    @property
    def jobs_left(self) -> int | None:
        """The number of jobs that its due times may still make; None is any number."""
        return None if self.max_jobs is None else max(self.max_jobs - self.jobs_made, 0)

    @property
    def is_armed(self) -> bool:
        """Whether it can be due: enabled, not paused, and without an error."""
        return self.enabled and self.paused_at is None and not self.error

    def state_at(self, now: datetime) -> ScheduleState:
        """The state at ``now``, the database's time. :meth:`ScheduleQuerySet.in_state` queries by
        state."""
        return state_at(self, now)


def _changes_of(text: str) -> tuple[Change, ...]:
    """Leaves out those with a time that Python cannot represent."""
    from ..domain.policies import Change

    changes = []
    for row in json.loads(text):
        with suppress(ValueError):
            for name in ("due", "moved_to"):
                row[name] = row[name] and in_utc(datetime.fromisoformat(row[name]))
            changes.append(Change(**row))
    return tuple(changes)


def rule_problem(error: Exception) -> str:
    """Why a rule is refused, for a person with the form of its schedule."""
    from ..domain.cron import ZonePrefix

    if isinstance(error, ZonePrefix):
        return error.said("give {} as its time zone")
    return str(error)
