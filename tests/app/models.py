"""Tables that the handlers of the tests write to."""

from __future__ import annotations

from django.db import models


class Effect(models.Model):
    """One effect of a handler, so that a test can count them."""

    job_id = models.BigIntegerField(null=True)
    note = models.CharField(max_length=200, default="")
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.note
