"""Why a job is not running, as a section of its page. It names only rows that the user may view,
and to a user with a scope no other job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.contrib.admin.sites import AdminSite
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...lifecycle.scope import scope_of
from ...models import Job, JobStatus
from ...why.evaluation import explain
from ...why.explanation import Gate, GateState, Ref, Text
from ..access.visible import Visible

ICONS = {GateState.PASSED: "✓", GateState.HOLDS: "✕", GateState.UNKNOWN: "?"}
LABELS = {
    GateState.PASSED: gettext_lazy("passed"),
    GateState.HOLDS: gettext_lazy("holds it"),
    GateState.UNKNOWN: gettext_lazy("not known"),
}
UNNAMED = {"job": gettext_lazy("a job"), "job_type": gettext_lazy("jobs")}
"""What names a job, or its type, to those who may not view all jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRow:
    state: str
    icon: str
    label: str
    title: str
    text: str
    details: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhySection:
    """What the template ``job/why.html`` shows: the gates of a job that has not ended. The page
    begins with the ``sentence``. ``trouble`` says what is wrong with a running job."""

    title: str
    sentence: str
    basis: str
    gates: list[GateRow]
    trouble: str


def why_section(job: Job, site: AdminSite, request: HttpRequest) -> WhySection:
    """The section for the user of ``request``. At most two statements; none for an ended job."""
    if job.is_final:
        return WhySection(title="", sentence="", basis="", gates=[], trouble="")
    linked = Linked(site, request)
    explanation = explain(job, names_jobs=linked.names_jobs)
    is_running = job.status == JobStatus.RUNNING
    expected = explanation.expected
    holding = (gate.sentence for gate in explanation.gates if is_running and gate.holds)
    trouble = next(holding, ())
    return WhySection(
        title=_("Now") if is_running else _("Why is it not running?"),
        sentence=linked.text(explanation.sentence),
        basis=expected.basis if expected is not None and expected.seconds else "",
        gates=[_row(gate, linked) for gate in explanation.gates],
        trouble=linked.text(trouble),
    )


def _row(gate: Gate, linked: Linked) -> GateRow:
    return GateRow(
        state=gate.state.value,
        icon=ICONS[gate.state],
        label=str(LABELS[gate.state]),
        title=gate.title,
        text=linked.text(gate.text),
        details=[linked.text(line) for line in gate.details],
    )


class Linked:
    """Makes links of the rows that a text names."""

    def __init__(self, site: AdminSite, request: HttpRequest) -> None:
        self._visible = Visible(site, request)
        # The permission to view jobs does not say of which queue or job type each of them is.
        self.names_jobs = scope_of(request.user) is None

    def text(self, text: Text) -> str:
        parts = (self._part(part) for part in text)
        return format_html_join("", "{}", ((part,) for part in parts))

    def _part(self, part: str | Ref) -> str:
        if isinstance(part, str):
            return part
        named_by = "job" if part.kind in UNNAMED else part.kind
        model: Any = apps.get_model("django_jobs", named_by)
        if not self._visible.sees(model) or (named_by == "job" and not self.names_jobs):
            return str(UNNAMED.get(part.kind, part.label))
        if part.kind == "job_type":
            return part.label
        return self._visible.link(apps.get_model("django_jobs", part.kind), part.id, part.label)
