"""Who may not see payloads or errors reveals those of one job, and leaves an entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs.models import DeadLetter, Job, Run
from tests.admin.access.test_errors import SECRET, fail
from tests.admin.walking import Page, change_url
from tests.app.jobs import add, noop

pytestmark = pytest.mark.django_db

BUTTON = "Reveal hidden data"


def reveal_url(pk: int) -> str:
    return reverse("admin:django_jobs_job_reveal", args=[pk])


def reveal(page: Page, pk: int) -> Any:
    return page.client.post(reveal_url(pk))


def entries(pk: int) -> list[tuple[str, str]]:
    rows = LogEntry.objects.filter(object_id=str(pk)).order_by("pk")
    return [(str(entry.user), entry.change_message) for entry in rows]


def test_a_user_reveals_errors_and_payload_of_a_job_and_the_history_has_it(
    page_of: Callable[..., Page],
) -> None:
    job = fail(final=True)
    Job.objects.filter(pk=job.pk).update(payload={"iban": "DE12", "password": "hunter2"})
    page = page_of("view_job", "reveal_job", name="olga")
    before = page.read(change_url(Job, job.pk))
    assert (SECRET in before, "DE12" in before, BUTTON in before) == (False, False, True)
    assert f'action="{reveal_url(job.pk)}"' in before
    text = reveal(page, job.pk).content.decode()
    assert "Traceback" in text
    assert SECRET in text
    assert "DE12" in text
    assert "hunter2" not in text, "what is masked is revealed to nobody"
    assert entries(job.pk) == [("olga", "revealed: payload, result, headers, errors")]
    assert "revealed: payload" in page.read(reverse("admin:django_jobs_job_history", args=[job.pk]))
    assert SECRET not in page.read(change_url(Job, job.pk)), "it is revealed once"
    reveal(page, job.pk)
    assert len(entries(job.pk)) == 2


@pytest.mark.parametrize(
    ("sees", "revealed"),
    [("view_job_error", "payload, result, headers"), ("view_job_payload", "errors")],
)
def test_the_history_names_what_was_hidden_from_the_user(
    page_of: Callable[..., Page], sees: str, revealed: str
) -> None:
    job = fail(final=True)
    assert reveal(page_of("view_job", "reveal_job", sees), job.pk).status_code == 200
    assert [message for _, message in entries(job.pk)] == [f"revealed: {revealed}"]


def test_a_user_from_whom_nothing_is_hidden_has_no_button_and_leaves_no_entry(
    page_of: Callable[..., Page], page: Page
) -> None:
    job = fail(final=True)
    everything = page_of("view_job", "reveal_job", "view_job_error", "view_job_payload")
    for reader in everything, page:
        assert BUTTON not in reader.read(change_url(Job, job.pk))
        assert reveal(reader, job.pk).url == change_url(Job, job.pk)
    assert entries(job.pk) == []


def test_a_job_that_never_ran_has_no_errors_to_reveal(page_of: Callable[..., Page]) -> None:
    job = noop.enqueue()
    page = page_of("view_job", "reveal_job", "view_job_payload")
    assert BUTTON not in page.read(change_url(Job, job.pk))


@pytest.mark.parametrize("permissions", [("view_job",), ("reveal_job",)])
def test_a_user_without_the_permissions_reveals_nothing(
    page_of: Callable[..., Page], permissions: tuple[str, ...]
) -> None:
    job = fail(final=True)
    page = page_of(*permissions)
    assert reveal(page, job.pk).status_code == 403
    if "view_job" in permissions:
        assert BUTTON not in page.read(change_url(Job, job.pk))
    assert entries(job.pk) == []


def test_a_link_reveals_nothing(page_of: Callable[..., Page]) -> None:
    job = fail(final=True)
    answer = page_of("view_job", "reveal_job").client.get(reveal_url(job.pk))
    assert answer.url == change_url(Job, job.pk)  # type: ignore[attr-defined]
    assert entries(job.pk) == []


def test_a_dead_letter_leads_to_it(page_of: Callable[..., Page]) -> None:
    job = fail(final=True)
    text = page_of("view_job", "reveal_job").read(change_url(DeadLetter, job.pk))
    assert f'action="{reveal_url(job.pk)}"' in text


def test_secrets_in_errors_stay_masked(page_of: Callable[..., Page]) -> None:
    job = fail(final=True)
    leak = "OSError: no route with password=hunter2"
    Run.objects.filter(job=job).update(error_message=leak, traceback=leak)
    death = {"at": "2026-01-01T00:00:00Z", "by": "", "after_attempt": 0, "died_of": leak}
    Job.objects.filter(pk=job.pk).update(
        last_error=leak, reason=f"not retried: {leak}", headers={"replays": [death]}
    )
    text = reveal(page_of("view_job", "reveal_job"), job.pk).content.decode()
    assert text.count("no route") >= 3
    assert "hunter2" not in text


@pytest.mark.parametrize("number", [999, 2**63])
def test_a_job_that_is_not_there_cannot_be_revealed(
    page_of: Callable[..., Page], number: int
) -> None:
    assert reveal(page_of("view_job", "reveal_job"), number).status_code == 404


def test_a_user_with_a_scope_reveals_the_jobs_of_the_scope_only(
    page_of: Callable[..., Page], settings: Any
) -> None:
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "ADMIN_SCOPE": "tests.admin.jobs.test_reveal.only_add",
    }
    own, other = add.enqueue(1, 2), noop.enqueue()
    page = page_of("view_job", "reveal_job")
    assert reveal(page, own.pk).status_code == 200
    assert reveal(page, other.pk).status_code == 404
    assert entries(other.pk) == []


def only_add(user: Any) -> Any:
    return None if user.is_superuser else {"job_types": ["app.add"]}
