"""Requests that say for how long their idempotency key is unique, or what a duplicate means."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from ..domain.durations import LONGEST_AGE, as_seconds
from ..domain.gates import Gates
from ..domain.hints import did_you_mean
from ..exceptions import DuplicateJob, EnqueueError
from ..lifecycle import enqueueing, unique_keys
from ..lifecycle.enqueueing import KeyRule
from ..lifecycle.job_columns import NewJobs
from ..models import Job

if TYPE_CHECKING:
    from .job_type import JobType

OnDuplicate = Literal["return", "replace", "raise"]
CHOICES = ("return", "replace", "raise")


def check_duplicates(chosen: JobType[..., Any], where: str) -> None:
    """Validate ``unique_for`` and ``on_duplicate``. Raises :class:`EnqueueError`."""
    if chosen.unique_for is not None and not _is_a_time(chosen.unique_for):
        raise EnqueueError(
            f"{where}: unique_for is a positive number of seconds, at most {LONGEST_AGE:,.0f} "
            f"({LONGEST_AGE / 86_400:,.0f} days), or a timedelta, not {chosen.unique_for!r}"
        )
    if chosen.on_duplicate not in CHOICES:
        hint = did_you_mean(str(chosen.on_duplicate), CHOICES)
        raise EnqueueError(
            f"{where}: on_duplicate is 'return', 'replace' or 'raise', "
            f"not {chosen.on_duplicate!r}{hint and f'; {hint}'}"
        )


def _is_a_time(value: Any) -> bool:
    seconds = as_seconds(value) if isinstance(value, int | float | Decimal) else None
    return seconds is not None and 0 < seconds <= LONGEST_AGE


def demand_key(chosen: JobType[..., Any]) -> None:
    """Raise :class:`EnqueueError` if an option needs an idempotency key and there is none."""
    needs_one = chosen.unique_for is not None or chosen.on_duplicate != "return"
    if needs_one and chosen.idempotency_key is None:
        raise _needs_a_key(chosen)


def enqueue_one(
    chosen: JobType[..., Any],
    new: NewJobs,
    payload: dict[str, Any],
    text: str,
    gates: Gates | None,
) -> Job:
    """Insert one job, or do with a duplicate what ``on_duplicate`` says.

    Raises :class:`DuplicateJob`, and :class:`EnqueueError` if there is no idempotency key.
    """
    key = chosen.idempotency_key
    if key is None:
        raise _needs_a_key(chosen)
    if chosen.on_duplicate == "replace":
        from ..lifecycle.replacing import enqueue_replacing

        return enqueue_replacing(new, payload, text, key, gates)
    if chosen.unique_for is None:
        enqueued = enqueueing.enqueue_one(new, payload, text, key, gates)
    else:
        enqueued = unique_keys.enqueue_unique(new, payload, text, key, gates)
    if enqueued.deduplicated and chosen.on_duplicate == "raise":
        state = f" ({enqueued.status})" if enqueued.status else ", which was deleted,"
        raise DuplicateJob(
            f"{chosen.name}: job {enqueued.pk}{state} holds the idempotency key {key!r} "
            f"in queue {new.queue!r}",
            enqueued,
        )
    return enqueued


def is_duplicate(chosen: JobType[..., Any]) -> bool:
    """Whether a job holds the idempotency key of this request."""
    if chosen.idempotency_key is None:
        return False
    rule = enqueueing.LIVE_KEYS if chosen.unique_for is None else unique_keys.UNIQUE_KEYS
    return any(rule.holders(chosen.queue, [chosen.idempotency_key]))


def rule_of_many(chosen: JobType[..., Any], *, has_keys: bool) -> KeyRule:
    """Who holds the keys of many jobs. Raises :class:`EnqueueError` if an option needs keys and
    there are none, or does not apply to many."""
    if chosen.on_duplicate != "return":
        raise EnqueueError(
            f"{chosen.name}: enqueue_many returns the ids of duplicates; for "
            f"on_duplicate={chosen.on_duplicate!r} enqueue one by one"
        )
    if chosen.unique_for is None:
        return enqueueing.LIVE_KEYS
    if not has_keys:
        raise _needs_a_key(chosen)
    return unique_keys.UNIQUE_KEYS


def _needs_a_key(chosen: JobType[..., Any]) -> EnqueueError:
    option = "on_duplicate" if chosen.unique_for is None else "unique_for"
    return EnqueueError(f"{chosen.name}: {option} needs an idempotency key")
