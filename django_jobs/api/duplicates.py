"""Requests that say for how long their idempotency key is unique, or what a duplicate means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..domain.gates import Gates
from ..domain.payload import KEY_SEPARATOR, LONGEST_KEY
from ..exceptions import DuplicateJob, EnqueueError
from ..lifecycle import enqueueing, unique_keys
from ..lifecycle.enqueueing import KeyRule
from ..lifecycle.job_columns import NewJobs
from ..models import Job

if TYPE_CHECKING:
    from .job_type import JobType


def key_of(chosen: JobType[..., Any], gates: Gates | None) -> str | None:
    """The idempotency key of this request, as :func:`stored_key` has it. Raises
    :class:`EnqueueError` if an option needs one and there is none."""
    if chosen.idempotency_key is not None:
        return stored_key(chosen, chosen.idempotency_key, gates)
    if _needing_a_key(chosen):
        raise _needs_a_key(chosen)
    return None


def stored_key(chosen: JobType[..., Any], key: str, gates: Gates | None) -> str:
    """``key`` as the row of the job has it: with ``key_scope="tenant"``, behind the tenant. Raises
    :class:`EnqueueError` if there is no tenant, or both are too long."""
    if chosen.key_scope == "queue":
        return key
    tenant = None if gates is None else gates.tenant
    if tenant is None:
        raise EnqueueError(
            f"{chosen.name}: key_scope='tenant' needs a tenant, and the job has none: give one to "
            "using(tenant=...) or @job(tenant=...)"
        )
    stored = f"{tenant}{KEY_SEPARATOR}{key}"
    if len(stored) > LONGEST_KEY:
        raise EnqueueError(
            f"{chosen.name}: with key_scope='tenant', the tenant and the key together have at most "
            f"{LONGEST_KEY - 1} characters, not {len(stored) - 1}"
        )
    return stored


def enqueue_one(
    chosen: JobType[..., Any], new: NewJobs, payload: dict[str, Any], text: str, gates: Gates | None
) -> Job:
    """Insert one job, or do with a duplicate what ``on_duplicate`` says.

    Raises :class:`DuplicateJob`, and what :func:`key_of` raises.
    """
    key = key_of(chosen, gates)
    if chosen.on_duplicate == "replace" and key is not None:
        from ..lifecycle.replacing import enqueue_replacing

        return enqueue_replacing(new, payload, text, key, gates)
    if chosen.unique_for is None or key is None:
        enqueued = enqueueing.enqueue_one(new, payload, text, key, gates)
    else:
        enqueued = unique_keys.enqueue_unique(new, payload, text, key, gates)
    if enqueued.deduplicated and chosen.on_duplicate == "raise":
        state = f" ({enqueued.status})" if enqueued.status else ", which was deleted,"
        raise DuplicateJob(
            f"{chosen.name}: job {enqueued.pk}{state} holds the idempotency key "
            f"{chosen.idempotency_key!r} in queue {new.queue!r}",
            enqueued,
        )
    return enqueued


def is_duplicate(chosen: JobType[..., Any], gates: Gates | None) -> bool:
    key = key_of(chosen, gates)
    rule = enqueueing.LIVE_KEYS if chosen.unique_for is None else unique_keys.UNIQUE_KEYS
    return key is not None and any(rule.holders(chosen.queue, [key]))


def rule_of_many(chosen: JobType[..., Any], *, has_keys: bool) -> KeyRule:
    """Who holds the keys of many jobs. Raises :class:`EnqueueError` if an option needs keys and
    there are none, or does not apply to many."""
    if chosen.on_duplicate != "return":
        raise EnqueueError(
            f"{chosen.name}: enqueue_many returns the ids of duplicates; for "
            f"on_duplicate={chosen.on_duplicate!r} enqueue one by one"
        )
    if not has_keys and _needing_a_key(chosen):
        raise _needs_a_key(chosen)
    return enqueueing.LIVE_KEYS if chosen.unique_for is None else unique_keys.UNIQUE_KEYS


def _needs_a_key(chosen: JobType[..., Any]) -> EnqueueError:
    return EnqueueError(f"{chosen.name}: {_needing_a_key(chosen)} needs an idempotency key")


def _needing_a_key(chosen: JobType[..., Any]) -> str:
    """The option that needs one; empty if none does."""
    if chosen.unique_for is not None:
        return "unique_for"
    if chosen.on_duplicate != "return":
        return "on_duplicate"
    return "" if chosen.key_scope == "queue" else "key_scope"
