"""Shows once what the page of a job hides from a user, and notes it in the history of the job."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.utils.translation import gettext_lazy as _

from ...models import Job
from ..access.errors import deaths, mask, may_see_errors, without_secrets
from ..base.actions import log_change
from ..base.formatting import Visible, change_url
from ..base.json_display import coding_of, document, texts
from ..base.search import SEE_PAYLOADS
from ..layout.console_page import console_page, list_crumb


def hidden_parts(request: HttpRequest, job: Any) -> list[str]:
    """What the page of ``job`` hides from the user, in the words of the history."""
    payload = [] if request.user.has_perm(SEE_PAYLOADS) else ["payload", "result", "headers"]
    has_errors = job.last_error or job.attempt
    return payload + (["errors"] if has_errors and not may_see_errors(request.user) else [])


def reveal_view(page: Any, request: HttpRequest, job_id: int) -> HttpResponse:
    """The hidden parts of a job. Only a POST shows them, so that no link and no refresh does."""
    from ..job_sections.timeline import timeline
    from ..job_sections.why import fails

    job = get_object_or_404(page.get_queryset(request), pk=job_id)
    back = change_url(page.admin_site, Job, job_id)
    parts = hidden_parts(request, job)
    if request.method != "POST" or not parts:
        return HttpResponseRedirect(back)
    log_change(request, job, f"revealed: {', '.join(parts)}")
    job.errors_hidden = False
    mask(job)
    columns = texts(job, page.titles)
    text, length = columns["headers"]
    shown = timeline(job, Visible(page.admin_site, request), text)
    columns["headers"] = deaths(text, without_secrets), length
    coding = coding_of(job.job_type)
    return console_page(
        page,
        request,
        "job/reveal.html",
        title=_("Hidden data"),
        parents=[list_crumb(page), (f"{job.job_type} #{job_id}", back)],
        subtitle=f"{job.job_type} #{job_id}",
        original=job,
        shows_error=fails(job),
        failed=shown["last"] if fails(job) else None,
        timeline=shown,
        documents=[
            document(str(title), *columns[name], coding) for name, title in page.titles.items()
        ],
    )
