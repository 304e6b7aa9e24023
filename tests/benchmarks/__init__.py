"""Speed, always beside what plain psycopg reaches with the same statements in the same run.

``python -m tests.benchmarks`` runs all sections; see docs/performance.md.
"""
