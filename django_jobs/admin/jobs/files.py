"""The files of ``DJANGO_JOBS["STORAGE"]`` that the page of a job shows, and their download."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from django.template.defaultfilters import filesizeformat
from django.utils.http import content_disposition_header
from django.utils.translation import gettext

from ...conf import conf
from ...domain.payload import STORED, is_reference, references
from ...exceptions import PayloadError
from ...lifecycle.stored_files import Stored
from ...models import Progress
from ..base.actions import ModelAdmin
from ..base.formatting import change_url, page_url
from ..base.json_display import LARGEST, masked, texts

HEADERS = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox"}
"""Another user may have written the file."""


def files_of(job: Any) -> dict[str, dict[str, Any]]:
    """The references in the payload, the result and the checkpoint of a job, by the names of their
    files, without those that are masked."""
    columns = texts(job, ("payload", "result"))
    progress = Progress(pk=job.pk)
    progress._state.db = job._state.db
    columns |= texts(progress, ("checkpoint",))
    found: dict[str, dict[str, Any]] = {}
    for text, _ in columns.values():
        if text is not None and STORED in text:
            with suppress(ValueError, RecursionError):  # what the page cannot show has none
                for reference in filter(is_reference, references(masked(json.loads(text)))):
                    found[str(reference[STORED])] = reference
    return found


def file_links(page: ModelAdmin, job: Any) -> list[tuple[str, str]]:
    url = page_url(page.admin_site, "django_jobs_job_file", job.pk)
    return [
        (
            f"{_shown_name(path, reference)} ({filesizeformat(reference['size'])})",
            f"{url}?{urlencode({'name': path})}",
        )
        for path, reference in files_of(job).items()
    ]


def _shown_name(path: str, reference: dict[str, Any]) -> str:
    """That of the file, or of one of JSON what follows the unique part of its name."""
    return str(reference.get("name") or path.rpartition("/")[2].partition("-")[2])


def file_view(page: Any, request: HttpRequest, job_id: int) -> HttpResponseBase:
    """Send a file as an attachment. JSON that is there because of its size is masked."""
    job = get_object_or_404(page.get_queryset(request), pk=job_id)
    path = request.GET.get("name", "")
    reference = files_of(job).get(path)
    if reference is None or conf().storage is None:
        raise Http404
    name = _shown_name(path, reference)
    try:
        file = Stored.load({**reference, "name": name}).open()
        if "name" in reference:
            return FileResponse(file, as_attachment=True, filename=name, headers=HEADERS)
        with file:
            content = file.read(LARGEST + 1)
    except PayloadError as error:
        raise Http404 from error
    except Exception as error:  # of any storage; its text may name what is secret
        kind = FileNotFoundError if isinstance(error, FileNotFoundError) else type(error)
        text = gettext("The storage does not give the file: %(error)s.") % {"error": kind.__name__}
        page.message_user(request, text, messages.ERROR)
        return HttpResponseRedirect(change_url(page.admin_site, type(job), job.pk))
    value = masked(json.loads(content)) if len(content) <= LARGEST else "too large to be masked"
    text = json.dumps(value, indent=2, ensure_ascii=False)
    attachment = {"Content-Disposition": content_disposition_header(True, name) or "attachment"}
    return HttpResponse(text, content_type="application/json", headers=HEADERS | attachment)
