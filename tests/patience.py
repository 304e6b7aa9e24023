"""How long tests wait."""

import math

PATIENCE = 60.0
"""Seconds to wait for what is to happen soon, and the only bound on time in tests. A machine that
others use may stand still for ten of them, and be slow for the rest."""

UNBOUNDED = math.inf
"""For what waits for TCP, or is the work of a minute: pytest's own time limit is the bound."""
