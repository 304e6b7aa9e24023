"""Hides error messages and tracebacks from users without the permission to see them, and masks the
values of secret names in them for all others.

A row is changed when it is read for a page, before anything shows it; no page saves one. The class
of an error, its code and its fingerprint stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.db.models import F, Func, TextField
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...conf import conf
from ..base.json_display import object_of
from ..base.search import ERROR_CLASS, SEE_ERRORS


def may_see_errors(user: Any) -> bool:
    return bool(user.has_perm(SEE_ERRORS))


def hidden_error() -> str:
    """The note in place of an error."""
    return _("Hidden: requires the permission to see error messages and tracebacks.")


def without_secrets(text: str) -> str:
    """The text with the values masked that stand after secret names, such as ``password=...``."""
    from ...domain.run_log import without_assigned

    return without_assigned(text, conf().redact_keys)


ERROR_TEXTS = {"last_error", "reason", "error_message", "traceback", "shown_traceback"}


def mask(row: Any) -> None:
    """Mask secrets in the errors of a job or a run. What is deferred is not read for that."""
    for name in row.__dict__.keys() & ERROR_TEXTS:
        setattr(row, name, without_secrets(row.__dict__[name] or ""))


def class_alone(summary: str) -> str:
    """The class in the summary of an error."""
    return summary.partition(": ")[0]


REASON_ALONE = Func(
    F("reason"), F("last_error"), ERROR_CLASS, function="replace", output_field=TextField()
)
"""The reason of a job, which may quote its last error, with the class of that in its place."""


def hide_in_job(job: Any) -> None:
    """Leave the class of the last error, also where the reason quotes it."""
    error = job.last_error
    job.errors_hidden = True
    if error:
        job.reason = job.reason.replace(error, class_alone(error))
        job.last_error = f"{class_alone(error)}: {_('hidden')}" if ": " in error else error


def hide_in_run(run: Any) -> None:
    """Leave class, code and fingerprint of the error."""
    run.errors_hidden = bool(run.error_type)
    run.error_message = run.traceback = ""


def deaths(headers: str | None, shown: Callable[[str], str] | None = None) -> str | None:
    """Headers as JSON text. What the job had died of before it was replayed is left out, or as
    ``shown`` returns it."""
    replays = object_of(headers).get("replays")
    if not isinstance(replays, list):
        return headers
    kept = [
        {
            key: shown(str(value)) if shown and key == "died_of" else value
            for key, value in one.items()
            if shown or key != "died_of"
        }
        for one in replays
        if isinstance(one, dict)
    ]
    return json.dumps({**object_of(headers), "replays": kept})


class HidesErrors:
    """A page whose rows have errors: its list and the page of a row hide them from some users."""

    hide: Callable[[Any], None]

    def complete(self, request: HttpRequest, rows: list[Any]) -> None:
        super().complete(request, rows)  # type: ignore[misc]
        for row in rows:
            row.errors_hidden = False
            self.limit_errors(row, request.user)

    def limit_errors(self, row: Any, user: Any) -> None:
        """Hide from ``user`` what the errors in ``row`` say, or the secrets in them."""
        if not may_see_errors(user):
            type(self).hide(row)
        mask(row)
