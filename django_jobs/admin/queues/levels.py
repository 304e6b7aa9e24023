"""The level of a backlog as a badge."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from ..base.formatting import badge

LEVELS = {
    "ok": ("succeeded", _("ok")),
    "high": ("overdue", _("high")),
    "full": ("error", _("full")),
}
"""The levels, each with the state whose badge it has."""


def level_badge(level: str) -> str:
    return badge(*LEVELS[level])
