"""Which queue to claim from first."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .options import QueueShare


class Turns:
    """Weighted turns over queues: a queue of weight 5 is first five times as often as one of 1,
    evenly mixed (nginx's smooth weighted round robin). In strict order the first listed is always
    first."""

    def __init__(self, shares: Sequence[QueueShare], strict: bool = False) -> None:
        self._shares = list(shares)
        self._strict = strict
        self._credit = {share.name: 0 for share in shares}

    def serve(self, names: Collection[str]) -> None:
        """From now on the queues are these, with equal weights."""
        self._shares = [QueueShare(name=name) for name in names]
        self._credit = {name: self._credit.get(name, 0) for name in names}

    def order(self, among: Collection[str]) -> list[str]:
        """The queues of ``among``, the one whose turn it is first."""
        shares = [share for share in self._shares if share.name in among]
        if self._strict or len(shares) < 2:
            return [share.name for share in shares]
        for share in shares:
            self._credit[share.name] += share.weight
        shares.sort(key=lambda share: self._credit[share.name], reverse=True)
        self._credit[shares[0].name] -= sum(share.weight for share in shares)
        return [share.name for share in shares]
