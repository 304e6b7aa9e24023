"""Hours of ordinary work, and the question what grew meanwhile.

``python -m tests.soak --minutes 60 --rate 500``; see docs/soak.md. Needs an embedded PostgreSQL.
"""
