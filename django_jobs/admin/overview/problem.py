"""One thing that is wrong, and the texts that its sentence is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..access.visible import Visible
from ..base.formatting import duration
from .numbers import Count

ERROR, CAUTION = "error", "caution"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. ``state`` is that of its icon, ``link`` a text and an address."""

    state: str
    text: str
    link: tuple[str, str]

    @property
    def severity(self) -> str:
        return _("Error") if self.state == ERROR else _("Warning")


Found = Iterator[Problem]


BEFORE_UNIT = re.compile(r"(?<=\d) (?=[a-z])")

FARTHEST = 1e10
"""Seconds: three centuries stand for all that is farther away."""


def seconds_text(seconds: float) -> str:
    """``3 min 20 s``, whose units stay with their numbers. PostgreSQL gives the JSON of infinite
    seconds as text."""
    length = timedelta(seconds=min(max(float(seconds), -FARTHEST), FARTHEST))
    return BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", duration(length))


def waiting_text(count: Count) -> str:
    """``1 job waits``, ``600 jobs wait``, ``≈ 20,118 jobs wait``."""
    text = ngettext("%(count)s job waits", "%(count)s jobs wait", count.number)
    return text % {"count": str(count)}


def job_text(visible: Visible, id_: int, job_type: str, seconds: float) -> str:
    """A job that holds something: ``media.encode #7 for 22 min``."""
    job = visible.job(id_, f"{job_type} #{id_}".strip())
    return format_html("{} {}", job, _("for %(time)s") % {"time": seconds_text(seconds)})


def jobs_text(visible: Visible, jobs: list[list[Any]]) -> str:
    """The jobs that hold something."""
    return format_html_join(", ", "{}", ((job_text(visible, *job),) for job in jobs))
