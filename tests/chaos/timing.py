"""The seconds of the chaos test. No import: whoever reads them needs no Django."""

LEASE = 3.0
"""Short, so that many run out in a minute."""

SWEEP = 0.5
POLL = 0.3

HOLD = LEASE * 1.3
"""How long a handler holds the GIL, at least."""

REWIND = 1.5
"""For so long a claim may go on behind the place where it was, past a job that came in before it:
``RESTART_SECONDS`` of the claimer, and the claim itself."""

DRAIN = 2.0
"""What ``--drain-timeout`` is given."""

GRACE = 2.5
"""After it has reached the database, a sweep waits for two beats, at least 2 s, so that living
workers renew first; and a connection is tried again after at most half a second there."""

ALERT_AGAIN = 8.0
"""Seconds after which an alert is sent again that was not noted as sent: two minutes, shortened. Of
a message it takes less."""

STALL = 3.0
"""Head-room for the machine and not for the product: the accounts run on two noisy cores, where
twenty processes share what a fleet has for itself, and a Python that starts needs seconds. A
process that nobody let run cannot be on time. It stands in the bound of every single recovery;
the promise itself is held by the median, which a stall does not move."""
