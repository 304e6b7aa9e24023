"""Every fault that the product promises to survive, by its id, and the tests that show it.

W: worker death and stalls. S: signals and shutdown. D: database. B: bad input and code changes.
N: network. A: attacks on the console.
"""

from __future__ import annotations

from .catalogue_admin import ATTACKS
from .catalogue_database import DATABASE, INPUT, NETWORK
from .catalogue_workers import SIGNALS, WORKERS
from .entries import Fault

PARTS: tuple[dict[str, Fault], ...] = (WORKERS, SIGNALS, DATABASE, INPUT, NETWORK, ATTACKS)

CATALOGUE: dict[str, Fault] = {name: fault for part in PARTS for name, fault in part.items()}
