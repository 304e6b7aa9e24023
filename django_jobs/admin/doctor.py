"""The page of the doctor: what ``jobdoctor`` prints."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.messages import ERROR, SUCCESS
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _

from ..conf import conf
from .base.formatting import badge, duration, moment_in_zone
from .layout.console_page import console_page

if TYPE_CHECKING:
    pass

DOCTOR = "django_jobs_worker_doctor"
TEST = "django_jobs.test_alert"


def doctor_view(page: Any, request: HttpRequest) -> HttpResponse:
    """The findings, errors first. Needs ``run_doctor``: they show sessions of other roles."""
    from ..doctor.examination import diagnose
    from ..doctor.findings import KINDS, Severity
    from ..domain.callbacks import shown_target

    if request.method == "POST":
        return _send_test(page, request)
    error, warning = badge("error", _("error")), badge("caution", _("warning"))
    began = time.monotonic()
    diagnosis = diagnose()
    took = timedelta(seconds=time.monotonic() - began)
    return console_page(
        page,
        request,
        "worker/doctor.html",
        title=_("Doctor"),
        examined_at=moment_in_zone(timezone.now()),
        took=duration(took),
        alerts=[(name, shown_target(rule["to"])) for name, rule in conf().alerts.items()],
        may_test=request.user.has_perm(TEST),
        findings=[
            {"one": one, "severity": error if one.severity is Severity.ERROR else warning}
            for one in diagnosis.findings
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


def _send_test(page: Any, request: HttpRequest) -> HttpResponse:
    """Send a test of the alert that the form names, and show how it ended."""
    from ..doctor.alerts import send_test

    rule = conf().alerts.get(name := request.POST.get("alert", ""))
    if rule is None or not request.user.has_perm(TEST):
        raise PermissionDenied
    if reason := send_test(name, rule["to"]):
        text = _("The test of “{alert}” was not sent: {reason}.")
        page.message_user(request, text.format(alert=name, reason=reason), ERROR)
    else:
        page.message_user(request, _("A test of “{alert}” was sent.").format(alert=name), SUCCESS)
    return HttpResponseRedirect(request.path)
