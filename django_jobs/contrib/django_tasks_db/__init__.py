"""The waiting tasks of django-tasks-db, for ``jobimport``."""
