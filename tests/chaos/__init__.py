"""Faults of every kind at once, and accounts that must balance afterwards.

``python -m tests.chaos --seconds 60 --jobs 1500 --workers 4 --seed 1``; see ``plan`` for what is
done, ``accounts`` for what must hold, and docs/chaos.md. Needs an embedded PostgreSQL: it stops the
server.
"""
