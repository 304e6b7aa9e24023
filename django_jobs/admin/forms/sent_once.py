"""What a form makes is made once, also if its button is clicked twice."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from ..base.actions import ModelAdmin
from ..base.formatting import change_url

NUMBER = "form_number"
KEPT_SECONDS = 3600.0
"""How long a second click makes no second job or run, also if the first has ended."""


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


def made_by_hand(
    page: ModelAdmin, request: HttpRequest, row: Any, how: str, made: str, held: str
) -> HttpResponse:
    """Go to the page of a new row with the message ``made``, or with ``held`` to that of the one
    that has its key."""
    if row.deduplicated:
        page.message_user(request, held, messages.WARNING)
    else:
        user = request.user.pk
        assert user is not None
        LogEntry.objects.log_actions(user, [row], ADDITION, f"{how} by hand", single_object=True)
        page.message_user(request, made, messages.SUCCESS)
    return HttpResponseRedirect(change_url(page.admin_site, type(row), row.pk))
