"""Validates the payloads and keys of many jobs, one by one as they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ..conf import conf
from ..domain.payload import Path, a_kind
from ..exceptions import EnqueueError, PayloadError
from ..lifecycle.bulk_insert import Item, ReadAhead
from . import gating
from .duplicates import stored_key
from .validation import check_key

if TYPE_CHECKING:
    from .job_type import JobType

TEXT = itemgetter(0)
"""Of an item, without a call of Python for each of thousands."""

Request = tuple[int, Mapping[str, Any], str | None]
"""One of many jobs: its index, its payload and its idempotency key."""


def items_of(
    job_type: JobType[..., Any],
    payloads: Iterable[Mapping[str, Any]],
    keys: Iterable[str | None] | None = None,
    *,
    stores: bool = False,
) -> ReadAhead[Request, Item]:
    """What jobs of these payloads do not have in common. ``stores`` saves their files."""
    if keys is None and job_type.idempotency_key is not None:
        raise EnqueueError(
            f"{job_type.name}: enqueue_many takes a key for each payload: idempotency_keys="
        )
    plain = ((index, payload, None) for index, payload in enumerate(payloads))
    requests = plain if keys is None else _keyed(job_type, payloads, keys)
    # A generator may use the connection, or change a payload that it has given.
    early = isinstance(payloads, list | tuple) and not gating.calls_project(job_type)
    if stores and job_type.takes_files and conf().storage is not None:
        from ..lifecycle.stored_files import encoded_with_files

        encode = partial(encoded_with_files, job_type.name, job_type.encoded_payload)
        return ReadAhead(requests, partial(_item, job_type, encode), early=False, size=_size)
    make = partial(_item, job_type, job_type.encoded_payload)
    return ReadAhead(requests, make, early=early, size=_size)


def _size(items: list[Item]) -> int:
    return sum(map(len, map(TEXT, items)))


def _keyed(
    job_type: JobType[..., Any], payloads: Iterable[Mapping[str, Any]], keys: Iterable[str | None]
) -> Iterator[Request]:
    # Each character of a text would be a key, and those of a set are in any order.
    if isinstance(keys, str | bytes | set | frozenset) or not isinstance(keys, Iterable):
        raise EnqueueError(
            f"{job_type.name}: idempotency_keys is a list with a key or None for each payload, not "
            f"{a_kind(keys)}"
        )
    wrong = f"{job_type.name}: idempotency_keys must be as many as the payloads"
    left = iter(keys)
    for index, payload in enumerate(payloads):
        try:
            key = next(left)
        except StopIteration:
            raise EnqueueError(wrong) from None
        yield index, payload, key
    for _ in left:
        raise EnqueueError(wrong)


def _item(
    job_type: JobType[..., Any], encode: Callable[[dict[str, Any], Path], str], request: Request
) -> Item:
    index, payload, key = request
    if key is not None:
        check_key(key, job_type.name)
    if not isinstance(payload, Mapping):
        problem = f"payload[{index}] is {a_kind(payload)}, not a dict of arguments"
        raise PayloadError(f"{job_type.name}: {problem}")
    try:
        job_type.check_payload(payload)
    except (TypeError, PayloadError) as error:
        raise PayloadError(f"payload[{index}]: {error}") from None
    arguments = dict(payload)
    text = encode(arguments, ("payload", "[{}]", index))
    try:
        gates = job_type.gates_of(arguments)
        return text, None if key is None else stored_key(job_type, key, gates), gates
    except EnqueueError as error:
        raise type(error)(f"payload[{index}]: {error}") from error.__cause__
