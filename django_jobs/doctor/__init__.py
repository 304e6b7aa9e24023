"""Examines database, settings and jobs, and says what is wrong and what to do."""
