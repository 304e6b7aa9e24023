"""Who goes through the gates: shares out free slots, tokens and room among the waiting lines. Of a
resource with a retry budget, retries start no more than their share."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import floor, inf

from .errors import UNSTORABLE
from .gates import Gates, parse

MOST_TIMES = 20_000
"""Tenants to remember. Beyond that, those in the past are forgotten, which changes nothing."""

Share = tuple[str, str]
"""A queue and a tenant of it."""

MOST_AT_ONCE = 500
"""Jobs of one line that one admission makes ready."""


@dataclass(frozen=True, slots=True)
class Line:
    """Jobs that wait for the same gates. ``rank`` and ``queue`` are those of the best one. Raises
    ``ValueError`` if the text is not one of gates, or has the escape in JSON of what no text in
    PostgreSQL contains."""

    text: str
    rank: float
    queue: str
    gates: Gates = field(init=False, compare=False)

    def __post_init__(self) -> None:
        gates = parse(self.text)
        if UNSTORABLE.search("".join((gates.tenant or "", gates.key or "", *gates.resources))):
            raise ValueError(f"{self.text!r} has names that no row has")
        object.__setattr__(self, "gates", gates)


@dataclass(slots=True)
class Supply:
    """What the gates have left.

    ``keys`` has the slots taken of each concurrency key. ``resources`` has how many jobs each may
    still admit: 0 for a paused one; one that has no row limits nothing. ``tenants`` and ``queues``
    have the same for those with a limit. ``room`` is, by queue, how many jobs the workers can start
    soon. It bounds tenants, and the resources in ``metered``: what they admit has to start at once.
    ``most`` is how many jobs one line is granted: how many it has is not known. ``reserved`` are
    keys whose next slot is for a line that waits for it already.
    """

    keys: dict[str, int] = field(default_factory=dict)
    resources: dict[str, float] = field(default_factory=dict)
    tenants: dict[str, float] = field(default_factory=dict)
    queues: dict[str, float] = field(default_factory=dict)
    room: dict[str, float] = field(default_factory=dict)
    metered: frozenset[str] = frozenset()
    most: int = MOST_AT_ONCE
    reserved: set[str] = field(default_factory=set)

    def copy(self) -> Supply:
        return Supply(
            dict(self.keys),
            dict(self.resources),
            dict(self.tenants),
            dict(self.queues),
            dict(self.room),
            self.metered,
            self.most,
        )

    def is_metered(self, gates: Gates) -> bool:
        """Whether the jobs of a line are admitted only as workers can start them."""
        return gates.tenant is not None or not self.metered.isdisjoint(gates.resources)

    def left(self, line: Line) -> int:
        """How many jobs of a line may be admitted, not counting the room."""
        least, key = self._left_besides_key(line), line.gates.key
        if key is not None:
            free = line.gates.limit - self.keys.get(key, 0)
            least = min(least, 0 if key in self.reserved else free)
        return max(int(least), 0)

    def _left_besides_key(self, line: Line) -> float:
        gates = line.gates
        least = min(self.most, self.queues.get(line.queue, inf))
        if gates.tenant is not None:
            least = min(least, self.tenants.get(gates.tenant, inf))
        for name in gates.resources:
            least = min(least, self.resources.get(name, inf))
        return least

    def reserve(self, line: Line) -> None:
        """Note that a line gets nothing. If it waits for its key alone, those behind it get no slot
        of that either: with a higher limit they could keep it waiting for ever."""
        key = line.gates.key
        if key is not None and self._left_besides_key(line) >= 1:
            self.reserved.add(key)

    def take(self, line: Line, count: int) -> None:
        gates = line.gates
        if gates.key is not None:
            self.keys[gates.key] = self.keys.get(gates.key, 0) + count
        if gates.tenant in self.tenants:
            self.tenants[gates.tenant] -= count
        if line.queue in self.queues:
            self.queues[line.queue] -= count
        for name in gates.resources:
            if name in self.resources:
                self.resources[name] -= count
        if self.is_metered(gates):
            self.room[line.queue] = self.room.get(line.queue, 0) - count


class FairShares:
    """Start-time fair queueing between the tenants of a queue (Goyal, Vin and Cheng, 1996).

    Each tenant has a virtual time, which a job advances by 1 / weight; the one that is furthest
    behind is next. A tenant that was idle begins at the present, so it saves up nothing.

    If there are more lines than one look reads, those who wait elsewhere are remembered until all
    lines were looked at. Tenants that have the lines of a whole look to themselves then get no
    further than the others.
    """

    def __init__(self) -> None:
        self._times: dict[Share, float] = {}
        self._now: dict[str, float] = defaultdict(float)
        self._latest: dict[str, float] = defaultdict(float)
        self._waiting: dict[Share, float] = {}
        self._seen: set[Share] = set()

    def copy(self) -> FairShares:
        """The same shares, to be charged for what may be rolled back."""
        copied = FairShares()
        copied._times, copied._waiting = self._times.copy(), self._waiting.copy()
        copied._now, copied._latest = self._now.copy(), self._latest.copy()
        copied._seen = self._seen.copy()
        return copied

    def take_over(self, charged: FairShares) -> None:
        """Become what a copy is: its charges are committed."""
        self.__dict__.update(charged.__dict__)

    def time_of(self, queue: str, tenant: str) -> float:
        waited = self._waiting.get((queue, tenant))
        if waited is not None:
            return waited
        return max(self._times.get((queue, tenant), 0.0), self._now[queue])

    def charge(self, queue: str, tenant: str, weight: float, count: int) -> None:
        time = self.time_of(queue, tenant) + count / weight
        self._times[queue, tenant] = time
        if (queue, tenant) in self._waiting:
            self._waiting[queue, tenant] = time
        self._latest[queue] = max(self._latest[queue], time - 1 / weight)

    def time_elsewhere(self, queue: str, here: Collection[str]) -> float:
        """The virtual time of the tenant that is furthest behind of those that wait, but not
        ``here``: until then, these may start jobs."""
        waiting = self._waiting.items()
        others = (at for (of, name), at in waiting if of == queue and name not in here)
        return min(others, default=inf)

    def looked_at(self, tenants: Iterable[Share], waiting: Collection[Share]) -> None:
        """Note a look at some of all lines: whose they were, and who is ``waiting`` for room."""
        for share in tenants:
            self._seen.add(share)
            if share not in waiting:
                self._waiting.pop(share, None)
            elif share not in self._waiting:
                self._waiting[share] = self.time_of(*share)

    def looked_at_all(self) -> None:
        """Note that all lines were looked at. Those that were not seen wait no longer."""
        self._waiting = {one: at for one, at in self._waiting.items() if one in self._seen}
        self._seen = set()

    def advance(self) -> None:
        """End a round: the present is the time at which the last job of it began."""
        self._now.update(self._latest)
        if len(self._times) > MOST_TIMES:
            self._times = {one: at for one, at in self._times.items() if at > self._now[one[0]]}


def share_out(
    lines: Iterable[Line], supply: Supply, shares: FairShares, weights: Mapping[str, float]
) -> dict[str, int]:
    """How many jobs of each line to admit, by the text of its gates. Lines that get none are left
    out.

    Of lines that need the same slots the one with the best rank goes first; of those of one key, no
    other gets a slot while that one waits for it. The room of a queue is shared between its tenants
    by ``weights``; a tenant without one has 1. Lines without a tenant count as one tenant. If one
    of these lines goes first, so does all that its queue has room for.
    """
    left = supply.copy()
    granted: dict[str, int] = {}
    plain: list[Line] = []
    metered: dict[str, dict[str, list[Line]]] = defaultdict(lambda: defaultdict(list))
    best: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for line in sorted(lines, key=lambda line: line.rank):
        if not left.is_metered(line.gates):
            plain.append(line)
            continue
        metered[line.queue][line.gates.tenant or ""].append(line)
        for name in _names(line):
            best[line.queue].setdefault(name, line.rank)
    for line in plain:
        names = _names(line)
        for queue, ranks in best.items():
            if queue in metered and any(ranks.get(name, inf) < line.rank for name in names):
                _share_room(queue, metered.pop(queue), left, shares, weights, granted)
        if (count := left.left(line)) > 0:
            granted[line.text] = count
            left.take(line, count)
        else:
            left.reserve(line)
    for queue, tenants in metered.items():
        _share_room(queue, tenants, left, shares, weights, granted)
    return granted


def _names(line: Line) -> list[tuple[str, str]]:
    """What other lines may want too: its key and its resources."""
    names = [("resource", name) for name in line.gates.resources]
    return names if line.gates.key is None else [*names, ("key", line.gates.key)]


def _share_room(
    queue: str,
    tenants: Mapping[str, list[Line]],
    left: Supply,
    shares: FairShares,
    weights: Mapping[str, float],
    granted: dict[str, int],
) -> None:
    behind = [(shares.time_of(queue, tenant), tenant) for tenant in tenants]
    heapq.heapify(behind)
    until = shares.time_elsewhere(queue, tenants)
    while behind and left.room.get(queue, 0) >= 1 and behind[0][0] <= until:
        time, tenant = behind[0]
        lines = tenants[tenant]
        while lines and left.left(lines[0]) < 1:
            left.reserve(lines.pop(0))
        if not lines:
            heapq.heappop(behind)
            continue
        line = lines[0]
        granted[line.text] = granted.get(line.text, 0) + 1
        left.take(line, 1)
        if len(lines) > 1:  # by turns: how many jobs the line has is not known
            lines.append(lines.pop(0))
        heapq.heapreplace(behind, (time + 1 / weights.get(tenant, 1.0), tenant))


ALWAYS = 10
"""Retries that any budget allows while starts count, so that a quiet resource can retry at all."""


def retries_allowed(budget: float, starts: float, retries: float) -> int:
    """How many retries may start now, after ``starts`` of which ``retries`` were retries.

    With n more of each, ``retries + n`` must not exceed ``budget * (starts + n)``. The budget is
    below 1.
    """
    within = (budget * starts - retries) / (1 - budget)
    return floor(max(within, ALWAYS - retries, 0.0))
