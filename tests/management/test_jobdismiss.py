"""``jobdismiss``: cancel dead jobs that nobody will replay, or say why not."""

from __future__ import annotations

import getpass
import socket

import pytest
from django.core.management import CommandError

from django_jobs.models import Job
from tests.app.jobs import add, noop
from tests.commands import printed
from tests.factories import make_dead

pytestmark = pytest.mark.django_db


def dismiss(*arguments: object) -> str:
    return printed("jobdismiss", *arguments).strip()


def test_the_chosen_jobs_are_dismissed_with_the_reason_and_who() -> None:
    one, other = make_dead(add, 1), make_dead()
    assert dismiss("--type", "app.add", "--reason", "no use") == "Dismissed 1 job."
    job = Job.objects.get(pk=one.pk)
    who = f"{getpass.getuser()}@{socket.gethostname()} (jobdismiss)"
    assert job.reason.startswith(f"dismissed by {who}: no use (it was dead: ")
    assert Job.objects.get(pk=other.pk).status == "dead"


def test_a_fingerprint_chooses_jobs_by_their_last_error() -> None:
    dead = make_dead()
    assert dismiss("--error", dead.fingerprint) == "Dismissed 1 job."
    assert Job.objects.get().status == "cancelled"


def test_a_dry_run_changes_nothing() -> None:
    make_dead()
    assert dismiss("--queue", "default", "--dry-run") == "Would dismiss 1 job."
    assert Job.objects.get().status == "dead"


def test_what_is_not_dead_is_refused() -> None:
    ready = noop.enqueue()
    with pytest.raises(CommandError, match="1 of 1 job refused"):
        dismiss(ready.pk)


def test_an_id_that_no_job_can_have_is_refused_with_the_others_dismissed() -> None:
    dead = make_dead()
    with pytest.raises(CommandError, match="1 of 2 jobs refused"):
        dismiss(dead.pk, 10**30)
    assert Job.objects.get().status == "cancelled"


def test_an_empty_error_code_chooses_no_jobs() -> None:
    """As of a variable of a shell that is not set: most dead jobs have no code."""
    make_dead()
    with pytest.raises(CommandError, match=r"^--error-code takes a code such as 503, not ''$"):
        dismiss("--error-code", "")
    assert Job.objects.get().status == "dead"
