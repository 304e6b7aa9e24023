"""Examples for type checkers. ``python -m tests.typing`` runs them; so does ``tox -e static``."""
