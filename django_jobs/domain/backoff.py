"""How long to wait before the next attempt."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from .hints import Explained

LONGEST_DELAY = 366 * 24 * 3600.0
"""Seconds. Also keeps ``base * factor ** n`` from overflowing a float."""

Curve = Literal["exponential", "polynomial", "linear", "fixed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff(metaclass=Explained):
    """The rule for the wait after the n-th failure. All times are in seconds.

    ``jitter`` is a share of the wait: 0.5 spreads it evenly over 50 % to 100 %, so that a thousand
    jobs that failed together are not retried together.

    Make one with :meth:`exponential`, :meth:`polynomial`, :meth:`linear` or :meth:`fixed`. Each
    raises ``ValueError`` for a value that is not a number or is out of range.
    """

    INSTEAD: ClassVar = "; write Backoff.exponential(base=5), or Backoff.fixed(5)"
    curve: Curve
    base: float
    factor: float = 1.0
    cap: float = LONGEST_DELAY
    jitter: float = 0.0
    exponent: float = 2.0

    def __post_init__(self) -> None:
        if self.curve not in get_args(Curve):
            *others, last = get_args(Curve)
            known = f"{', '.join(others)} or {last}"
            raise ValueError(f"backoff curve is {known}, not {self.curve!r}")
        for name in ("base", "factor", "cap", "jitter", "exponent"):
            number = getattr(self, name)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise ValueError(f"backoff {name} must be a number, not {number!r}")
            if not 0 <= number <= LONGEST_DELAY:  # false for NaN too
                raise ValueError(f"backoff {name} must be between 0 and one year, not {number!r}")
        if self.jitter > 1:
            raise ValueError(f"backoff jitter is a share from 0 to 1, not {self.jitter!r}")
        if self.curve == "exponential" and self.factor < 1:
            raise ValueError(f"backoff factor must be at least 1, not {self.factor!r}")

    @classmethod
    def exponential(
        cls, base: float = 2, factor: float = 2, cap: float = 3600, jitter: float = 0.5
    ) -> Backoff:
        """Wait ``base``, then ``factor`` times longer after each further failure, up to ``cap``."""
        return cls(curve="exponential", base=base, factor=factor, cap=cap, jitter=jitter)

    @classmethod
    def polynomial(
        cls, base: float, exponent: float = 2, cap: float = 3600, jitter: float = 0.5
    ) -> Backoff:
        """Wait ``base`` times the number of failures to the power of ``exponent``, up to ``cap``.
        In the end this grows more slowly than an exponential rule. It is the curve of the rules of
        Sidekiq (``count ** 4 + 15``) and of Rails (``executions ** 4 + 2``)."""
        return cls(curve="polynomial", base=base, exponent=exponent, cap=cap, jitter=jitter)

    @classmethod
    def linear(cls, step: float, cap: float = 3600, jitter: float = 0.5) -> Backoff:
        """Wait ``step``, then one ``step`` longer after each further failure, up to ``cap``."""
        return cls(curve="linear", base=step, cap=cap, jitter=jitter)

    @classmethod
    def fixed(cls, seconds: float, jitter: float = 0.0) -> Backoff:
        """Wait ``seconds`` after every failure."""
        return cls(curve="fixed", base=seconds, jitter=jitter)

    def longest(self, failures: int) -> float:
        """Seconds to wait after ``failures`` failures (1 for the first), before jitter."""
        count = max(failures, 1)
        match self.curve:
            case "exponential":
                delay = self._times(self.factor, count - 1)
            case "polynomial":
                delay = self._times(count, self.exponent)
            case "linear":
                delay = self.base * count
            case "fixed":
                delay = self.base
        return min(delay, self.cap)

    def _times(self, number: float, exponent: float) -> float:
        try:
            return self.base * math.pow(number, exponent)
        except OverflowError:  # far above the cap, unless the base is 0
            return self.cap if self.base else 0.0

    def delay(self, failures: int, spread: Callable[[], float] = random.random) -> float:
        """Seconds to wait after ``failures`` failures, jitter included."""
        return self.longest(failures) * (1 - self.jitter * spread())

    def as_json(self) -> dict[str, Any]:
        """The rule as stored with the job, so that any process can apply it."""
        stored = {
            "curve": self.curve,
            "base": self.base,
            "factor": self.factor,
            "cap": self.cap,
            "jitter": self.jitter,
        }
        if self.curve == "polynomial":
            stored["exponent"] = self.exponent
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> Backoff:
        """The rule stored with a job; the default if there is none or it is invalid."""
        if not stored:
            return DEFAULT_BACKOFF
        try:
            return cls(**stored)
        except (TypeError, ValueError):
            return DEFAULT_BACKOFF


DEFAULT_BACKOFF = Backoff.exponential()
