"""The pages of failures, grouped by job type and fingerprint."""

GROUPS, GROUP = "django_jobs_failures", "django_jobs_failure_group"
"""The names of the pages."""
