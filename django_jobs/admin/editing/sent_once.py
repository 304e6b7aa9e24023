"""What a form makes is made once, also if its button is clicked twice."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from django import forms

NUMBER = "form_number"
KEPT_SECONDS = 3600.0
"""How long a second click makes no second job, also if the first job has ended."""


def number_field() -> forms.CharField:
    """A hidden field with a number that no other form has."""
    return forms.CharField(
        required=False,
        max_length=32,
        widget=forms.HiddenInput,
        initial=lambda: secrets.token_hex(16),
    )


def key_of_form(given: Mapping[str, Any]) -> str | None:
    """An idempotency key for what a valid form was given. Another one if it is sent again with
    other values; none without a number."""
    if not given[NUMBER]:
        return None
    text = json.dumps(given, sort_keys=True, default=str)
    return f"form-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
