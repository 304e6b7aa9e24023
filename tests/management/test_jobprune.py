"""``jobprune``: delete finished jobs and their runs."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_jobs.models import Job, Queue, Run
from tests.app.jobs import noop
from tests.factories import make_dead
from tests.lifecycle.test_pruning import age, finish


def prune(*arguments: str) -> str:
    out = StringIO()
    call_command("jobprune", *arguments, stdout=out)
    return out.getvalue().strip()


@pytest.mark.django_db
def test_without_options_the_configured_retention_holds() -> None:
    old, _ = finish(2)
    age(8, [old])
    make_dead()
    assert prune() == "Deleted 1 job."
    assert not Job.objects.filter(pk=old).exists()
    assert Job.objects.count() == 2


@pytest.mark.django_db
def test_a_dry_run_counts_and_deletes_nothing() -> None:
    finish(3)
    age(8)
    assert prune("--dry-run") == "Would delete 3 jobs."
    assert Job.objects.count() == 3


@pytest.mark.django_db
def test_an_age_overrides_the_retention_and_spares_dead_letters_that_are_not_named() -> None:
    finish(2)
    make_dead()
    age(1)
    assert prune("--older-than", "2d") == "Deleted 0 jobs."
    assert prune("--older-than", "12h") == "Deleted 2 jobs."
    assert prune("--older-than", "12h", "--status", "dead") == "Deleted 1 job."
    assert not Run.objects.exists()


@pytest.mark.django_db
def test_a_status_without_an_age_uses_its_retention() -> None:
    finish(1)
    make_dead()
    age(1000)
    assert prune("--status", "dead") == "Deleted 0 jobs."
    assert prune("--status", "succeeded", "--status", "cancelled") == "Deleted 1 job."


@pytest.mark.django_db
def test_one_queue_alone_can_be_pruned_by_its_own_retention() -> None:
    Queue.objects.filter(name="bulk").update(retention={"succeeded": "1h"})
    finish(1)
    finish(2, "bulk")
    age(1)
    assert prune("--queue", "bulk") == "Deleted 2 jobs."
    assert prune("--queue", "default", "--older-than", "1h") == "Deleted 1 job."


@pytest.mark.django_db
def test_all_pages_are_walked() -> None:
    finish(25)
    age(8)
    assert prune("--batch", "4") == "Deleted 25 jobs."


@pytest.mark.django_db
def test_live_jobs_are_never_deleted() -> None:
    noop.enqueue()
    age(1000)
    assert prune("--older-than", "0s") == "Deleted 0 jobs."
    with pytest.raises(CommandError, match="invalid choice: 'ready'"):
        prune("--status", "ready")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--older-than", "soon"), "--older-than: 'soon' is no duration; write it as 90s"),
        (("--queue", "bluk"), "no queue is named 'bluk'; known are: bulk, default"),
        (("--batch", "0"), "--batch takes 1 to 100,000"),
    ],
)
def test_bad_input_is_refused_with_valid_input(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        prune(*arguments)
