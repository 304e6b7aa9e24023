"""The page of the doctor: what ``jobdoctor`` prints."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..doctor.examination import diagnose
from ..doctor.findings import KINDS, Severity
from ..models import Worker
from .base.formatting import badge, list_url


def doctor_view(page: Any, request: HttpRequest) -> HttpResponse:
    """The findings, errors first. Needs ``run_doctor``: they show sessions of other roles."""
    if not page.has_doctor_permission(request):
        raise PermissionDenied
    diagnosis = diagnose()
    context = {
        **page.admin_site.each_context(request),
        "title": _("Doctor"),
        "opts": page.opts,
        "media": page.media,
        "findings": [
            {"one": finding, "severity": _severity(finding.severity)}
            for finding in diagnosis.findings
        ],
        "not_examined": [
            {
                "titles": [KINDS[id_].title for id_ in missing.ids],
                "ids": ", ".join(missing.ids),
                "reason": missing.reason,
            }
            for missing in diagnosis.not_examined
        ],
        "back": list_url(page.admin_site, Worker),
    }
    request.current_app = page.admin_site.name
    return TemplateResponse(request, "admin/django_jobs/worker/doctor.html", context)


def _severity(severity: Severity) -> SafeString:
    if severity is Severity.ERROR:
        return badge("error", _("error"))
    return badge("caution", _("warning"))
