"""The page of the doctor: what ``jobdoctor`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .base.formatting import badge
from .layout.console_page import console_page, console_path

if TYPE_CHECKING:
    from ..doctor.findings import Severity

DOCTOR = "django_jobs_worker_doctor"


def doctor_path(page: Any) -> Any:
    """The route of the page, below that of the list of workers."""
    return console_path(page, "doctor/", _view, DOCTOR, page.has_doctor_permission)


def _view(page: Any, request: HttpRequest) -> HttpResponse:
    """The findings, errors first. Needs ``run_doctor``: they show sessions of other roles."""
    from ..doctor.examination import diagnose
    from ..doctor.findings import KINDS

    diagnosis = diagnose()
    return console_page(
        page,
        request,
        "worker/doctor.html",
        title=_("Doctor"),
        findings=[
            {"one": finding, "severity": _severity(finding.severity)}
            for finding in diagnosis.findings
        ],
        examined=len(KINDS) - sum(len(missing.ids) for missing in diagnosis.not_examined),
        not_examined=[
            {
                "titles": [KINDS[id_].title for id_ in missing.ids],
                "ids": ", ".join(missing.ids),
                "reason": missing.reason,
            }
            for missing in diagnosis.not_examined
        ],
    )


def _severity(severity: Severity) -> SafeString:
    from ..doctor.findings import Severity

    if severity is Severity.ERROR:
        return badge("error", _("error"))
    return badge("caution", _("warning"))
