"""Faults of every kind at once, and accounts that must balance afterwards.

``python -m tests.chaos --seconds 60 --jobs 1500 --workers 4 --seed 1``; see ``faults`` for what is
done and ``accounts`` for what must hold. Needs an embedded PostgreSQL: it stops the server.
"""
