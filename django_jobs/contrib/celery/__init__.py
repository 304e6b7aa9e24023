"""For projects that come from Celery: the import of django-celery-beat's tables."""
