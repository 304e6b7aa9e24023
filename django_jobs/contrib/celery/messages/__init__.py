"""What a message of Celery has, as columns of a job."""
