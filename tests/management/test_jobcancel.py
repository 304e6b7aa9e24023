"""``jobcancel``: cancel jobs, ask running ones to stop, or stop them by force."""

from __future__ import annotations

import getpass
import socket

import pytest
from django.core.management import CommandError

from django_jobs.models import Job
from tests.app.jobs import noop
from tests.commands import printed
from tests.factories import enqueue_and_claim, make_dead

pytestmark = pytest.mark.django_db
WHO = f"{getpass.getuser()}@{socket.gethostname()} (jobcancel)"


def jobcancel(*arguments: object) -> str:
    return printed("jobcancel", *arguments).strip()


def test_what_has_not_begun_is_cancelled_with_the_reason_and_who() -> None:
    jobs = [noop.enqueue(), noop.using(delay=9).enqueue()]
    assert jobcancel(*(job.pk for job in jobs), "--reason", "no use") == "Cancelled 2 jobs."
    assert {job.reason for job in Job.objects.all()} == {f"cancelled by {WHO}: no use"}


def test_what_runs_is_asked_and_then_stopped_by_force() -> None:
    held, ready = enqueue_and_claim(), noop.enqueue()
    assert jobcancel(held.id) == "Asked 1 running job to stop."
    job = Job.objects.get(pk=held.id)
    assert (job.reason, job.force_requested_at) == (f"cancelled by {WHO}", None)
    said = jobcancel(held.id, ready.pk, "--force", "--reason", "it loops")
    assert said == "Stopping 1 running job by force.\nCancelled 1 job."
    job.refresh_from_db()
    assert job.reason == f"stopped by force by {WHO}: it loops"
    assert job.force_requested_at is not None


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_what_has_ended_is_refused_and_the_others_are_cancelled(options: list[str]) -> None:
    dead, ready = make_dead(), noop.enqueue()
    with pytest.raises(CommandError, match="2 of 3 jobs refused"):
        jobcancel(dead.pk, ready.pk, 10**12, *options)
    assert Job.objects.get(pk=ready.pk).status == "cancelled"
