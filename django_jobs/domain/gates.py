"""The gates of a job: what has to have room before it may be ready."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache


class LoneGate(StrEnum):
    """The kind of a gate that is the only one of its job."""

    KEY = "key"
    RESOURCE = "resource"
    TENANT = "tenant"


class OnConflict(StrEnum):
    """What becomes of a job whose concurrency key has no free slot."""

    WAIT = "wait"
    DISCARD = "discard"
    CANCEL_RUNNING = "cancel_running"
    REPLACE_WAITING = "replace_waiting"


# Made once: json.dumps() with these options makes one for each job of a bulk enqueue.
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The gates of one job. Jobs with equal gates wait in one line, the best rank first.

    At most ``limit`` jobs with the concurrency ``key`` are ready or running. ``queue`` is that of
    the job: lines of several queues share keys and resources, but a queue may be paused, full or
    without a worker, and tenants share each queue separately. ``max_waiting`` is how many jobs may
    wait for the key at an enqueue; the jobs of a line may differ in it.
    """

    queue: str
    tenant: str | None = None
    key: str | None = None
    limit: int = 1
    on_conflict: OnConflict = OnConflict.WAIT
    resources: tuple[str, ...] = ()
    max_waiting: int | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The value of the column ``gates``. Its order makes the lines of one queue, of one set of
        resources in it, and of one tenant of these, neighbours in the index of the lines."""
        fields = [
            self.queue, list(self.resources), self.tenant, self.key, self.limit, self.on_conflict
        ]  # fmt: skip
        return ENCODER.encode(fields)

    @property
    def alone(self) -> LoneGate | None:
        """The kind of its only gate: a key, one resource, or the tenant. None if it has several."""
        if self.on_conflict is not OnConflict.WAIT:
            return None
        match self.tenant, self.key, self.resources:
            case None, str(), ():
                return LoneGate.KEY
            case None, None, (_,):
                return LoneGate.RESOURCE
            case str(), None, ():
                return LoneGate.TENANT
        return None

    def in_queue(self, queue: str) -> Gates:
        return replace(self, queue=queue)


ALONE = {
    LoneGate.KEY: r'^\["[^"]*",\[\],null,".*",([0-9]{1,9}),"wait"\]$',
    LoneGate.RESOURCE: r'^\["[^"]*",\["[^"]*"\],null,null,[0-9]+,"wait"\]$',
    LoneGate.TENANT: r'^\["[^"]*",\[\],".*",null,[0-9]+,"wait"\]$',
}
"""Regular expressions, for Python and for PostgreSQL, of the texts of gates that are one gate
alone. That of a key captures the limit, of up to nine digits. Names of queues and of resources have
no quotation marks."""

JUST_WAITS = ',"wait"]'
"""The end of the text of gates whose jobs do nothing but wait for their key."""
QUEUE_AND_RESOURCES = r'^\["[^"]*",(\[[^]]*\]),'
"""How the text of gates begins, for Python and PostgreSQL. It captures the resources."""
NO_TENANT = re.compile(QUEUE_AND_RESOURCES + "null,")
"""How the texts of gates begin that have no tenant."""


def within(*fields: str | None) -> tuple[str, str]:
    """Of the texts of gates that have the same beginning, and after it these fields: what all of
    them are at or above, and below, byte by byte, as two ends of such a text. Without any field:
    all that have the beginning."""
    if not fields:
        return "", "o"  # what follows is a quotation mark or null
    text = ",".join(map(ENCODER.encode, fields))
    return f"{text},", f"{text}-"


@lru_cache(maxsize=10_000)
def parse(text: str) -> Gates:
    """The gates of a value of the column. Raises ``ValueError`` if it is not one."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{text!r} does not name gates") from error
    match fields:
        case [
            str() as queue,
            [*resources],
            str() | None as tenant,
            str() | None as key,
            int() as limit,
            str() as on_conflict,
        ] if on_conflict in list(OnConflict) and all(isinstance(one, str) for one in resources):
            return Gates(
                tenant=tenant,
                queue=queue,
                key=key,
                limit=limit,
                on_conflict=OnConflict(on_conflict),
                resources=tuple(resources),
            )
        case _:
            raise ValueError(f"{text!r} does not name gates")
