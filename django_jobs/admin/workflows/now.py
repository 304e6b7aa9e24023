"""What a run does now: the steps that failed, those that run, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ...models import JobStatus
from ...separators import number_text
from ..access.visible import Visible
from ..base.formatting import ago
from .steps import Step, Steps

NAMED = 5

Fact = tuple[str, str]


def now_of(steps: Steps, visible: Visible, read_at: datetime) -> list[Fact]:
    """Problems first. Nothing, if no step failed, runs or waits."""

    def fact(label: str, chosen: Sequence[Step], show: Callable[[Step], str]) -> list[Fact]:
        return [(label, _listed(chosen, show, steps.cut))] if chosen else []

    def named(step: Step, more: str = "") -> str:
        link = visible.job(step.pk, step.step)
        return format_html("{} ({})", link, more) if more else link

    def in_state(*states: str) -> list[Step]:
        return [step for step in steps.by_id.values() if step.state in states]

    waiting = [step for step in in_state(JobStatus.WAITING) if step.awaits]
    due = sorted(in_state(JobStatus.SCHEDULED), key=lambda step: step.available_at)
    return [
        *fact(_("Failed"), in_state(JobStatus.DEAD), named),
        *fact(
            _("Running now"),
            in_state(JobStatus.RUNNING),
            lambda step: named(step, step.took(read_at)),
        ),
        *fact(
            _("Waits for a signal"),
            waiting,
            lambda step: named(step, step.awaits or ""),
        ),
        *fact(
            _("Due later"),
            due,
            lambda step: named(step, ago(step.available_at, read_at)),
        ),
    ]


def _listed(steps: Sequence[Step], show: Callable[[Step], str], cut: bool) -> str:
    """The first of the steps, and how many others there are; ``cut``: at least."""
    shown: Iterable[str] = (show(step) for step in steps[:NAMED])
    text = format_html_join(", ", "{}", ((one,) for one in shown))
    more = len(steps) - NAMED
    if more <= 0:
        return text
    count = number_text(more, more=cut)
    also = ngettext("and %(count)s more", "and %(count)s more", more) % {"count": count}
    return format_html("{} {}", text, also)
