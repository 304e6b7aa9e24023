"""The handler as a job."""

from __future__ import annotations

from django_jobs import job

from .handler import note

note_job = job(name="note")(note)
