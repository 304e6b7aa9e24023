"""Validates the payloads and keys of many jobs, one by one as they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..domain.payload import a_kind
from ..exceptions import EnqueueError, PayloadError
from ..lifecycle.bulk_insert import Item
from .validation import check_key

if TYPE_CHECKING:
    from .job_type import JobType


def items_of(
    job_type: JobType[..., Any],
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None,
) -> Iterator[Item]:
    """What the jobs of these payloads do not have in common."""
    if keys is None:
        if job_type.idempotency_key is not None:
            raise EnqueueError(
                f"{job_type.name}: enqueue_many takes a key for each payload: idempotency_keys="
            )
        for index, payload in enumerate(payloads):
            yield _item(job_type, payload, index, None)
        return
    try:
        for index, (payload, key) in enumerate(zip(payloads, keys, strict=True)):
            if key is not None:
                check_key(key, job_type.name)
            yield _item(job_type, payload, index, key)
    except ValueError as error:
        if isinstance(error, EnqueueError):
            raise
        raise EnqueueError(
            f"{job_type.name}: idempotency_keys must be as many as the payloads"
        ) from None


def _item(
    job_type: JobType[..., Any], payload: Mapping[str, Any], index: int, key: str | None
) -> Item:
    if not isinstance(payload, Mapping):
        problem = f"payload[{index}] is {a_kind(payload)}, not a dict of arguments"
        raise PayloadError(f"{job_type.name}: {problem}")
    try:
        job_type.check_payload(payload)
    except (TypeError, PayloadError) as error:
        raise PayloadError(f"payload[{index}]: {error}") from None
    arguments = dict(payload)
    text = job_type.encoded_payload(arguments, ("payload", "[{}]", index))
    try:
        return text, key, job_type.gates_of(arguments)
    except EnqueueError as error:
        raise type(error)(f"payload[{index}]: {error}") from error.__cause__
