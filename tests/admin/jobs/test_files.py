"""The links to the files of a job, and their download."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse

from django_jobs import Stored, enqueue
from django_jobs.domain.payload import STORED
from django_jobs.models import Job
from django_jobs.testing import run_jobs
from tests.admin.walking import Page, change_url
from tests.app.file_jobs import count_bytes, shout
from tests.factories import declared

pytestmark = pytest.mark.django_db


def answer() -> dict[str, str]:
    return {"text": "x" * 2_000}


@pytest.fixture(autouse=True)
def _storage(settings: Any) -> None:
    memory = {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    settings.STORAGES = {**settings.STORAGES, "jobs": memory}
    storage = {"alias": "jobs", "above_bytes": 1000}
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "STORAGE": storage}


def links(page: Page, job: Job) -> list[tuple[str, str]]:
    found = re.findall(
        r'<a href="([^"]*/file/[^"]*)">([^<]*)</a>', page.read(change_url(Job, job.pk))
    )
    return [(html.unescape(url), html.unescape(text).replace("\xa0", " ")) for url, text in found]


def test_files_are_sent_as_attachments(page: Page) -> None:
    job = shout.enqueue(Stored(b"<script>", "evil.html"))
    run_jobs()
    ((url, text), (loud, _)) = links(page, job)
    assert text == "evil.html (8 bytes)"
    answer: Any = page.client.get(url)
    assert b"".join(answer.streaming_content) == b"<script>"
    assert answer["Content-Disposition"] == 'attachment; filename="evil.html"'
    assert answer["X-Content-Type-Options"] == "nosniff"
    other: Any = page.client.get(loud)
    assert b"".join(other.streaming_content) == b"<SCRIPT>"


def test_what_is_masked_has_no_link_and_no_download(page: Page) -> None:
    job = count_bytes.enqueue({"token": Stored(b"secret"), "large": [{"password": "p" * 2000}]})
    secret = job.payload["report"]["token"][STORED]
    assert links(page, job) == []
    url = reverse("admin:django_jobs_job_file", args=[job.pk])
    assert page.client.get(url, {"name": secret}).status_code == 404
    large = count_bytes.enqueue({"password": "p" * 2000, "shown": 7})
    ((url, text),) = links(page, large)
    assert text.startswith("report.json (2.0 KB)")
    answer = page.client.get(url).content.decode()
    assert '"shown": 7' in answer
    assert "ppp" not in answer


def test_only_files_of_the_job_are_sent_to_those_who_may_see_payloads(
    page: Page, page_of: Callable[..., Page]
) -> None:
    job, other = (count_bytes.enqueue(Stored(b"x", "x.csv")) for _ in range(2))
    ((url, _),) = links(page, job)
    name = other.payload["report"][STORED]
    own = reverse("admin:django_jobs_job_file", args=[job.pk])
    assert page.client.get(own, {"name": name}).status_code == 404
    assert page.client.get(own).status_code == 404
    without = page_of("view_job")
    assert links(without, job) == []
    assert without.client.get(url).status_code == 403
    assert page_of("view_job_payload", name="otto").client.get(url).status_code == 403
    assert page_of("view_job", "view_job_payload", name="ines").client.get(url).status_code == 200


def test_a_reference_that_leads_elsewhere_is_not_followed(page: Page) -> None:
    job = count_bytes.enqueue(None)
    hostile = {STORED: "../settings.py", "name": "x", "size": "<b>"}
    Job.objects.filter(pk=job.pk).update(payload={"report": hostile})
    ((url, _),) = links(page, job)
    assert page.client.get(url).status_code == 404


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError, RuntimeError])
def test_a_file_that_the_storage_does_not_give_is_a_message(
    page: Page, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise error("bucket-4711")

    for job in (count_bytes.enqueue(Stored(b"x", "x.csv")), count_bytes.enqueue("y" * 2000)):
        ((url, _),) = links(page, job)
        with monkeypatch.context() as broken:
            broken.setattr("django.core.files.storage.InMemoryStorage._open", fail)
            text = page.client.get(url, follow=True).content.decode()
        assert f"The storage does not give the file: {error.__name__}." in text
        assert "4711" not in text


def test_a_result_that_is_too_large_for_its_row_is_named_a_result(page: Page) -> None:
    with declared(answer, name="app.answers"):
        job = enqueue("app.answers")
        run_jobs(check=True)
    ((url, text),) = links(page, job)
    assert text.startswith("result.json (")
    assert page.client.get(url)["Content-Disposition"] == 'attachment; filename="result.json"'
