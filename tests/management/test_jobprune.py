"""``jobprune``: delete finished jobs and their runs."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import CommandError
from pytest_django import Settings

from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.models import Job, Queue, Run
from django_jobs.signals import pre_prune_dead
from tests.app.jobs import add, noop
from tests.commands import printed
from tests.factories import declared, heard, make_dead
from tests.lifecycle.test_dead_letters import dead, receiving, there
from tests.lifecycle.test_pruning import age, finish


def plain() -> None:
    pass


def prune(*arguments: str) -> str:
    return printed("jobprune", *arguments).strip()


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
def test_an_age_overrides_the_retention_but_not_for_dead_letters() -> None:
    finish(2)
    make_dead()
    age(1)
    assert prune("--older-than", "2d") == "Deleted 0 jobs."
    assert prune("--older-than", "12h") == "Deleted 2 jobs."
    assert prune("--older-than", "12h", "--status", "dead").splitlines() == [
        "Deleted 1 dead job of app.noop in queue default, over the limit on age.",
        "Deleted 1 job.",
    ]
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
def test_dead_jobs_beyond_their_limits_go_and_a_dry_run_says_which(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"age": "4.5d", "number": 3}}}
    ids = [*dead(6), *dead(4, add, 1, 2, queue="bulk")]
    finish(1)
    what = [
        "{} 1 dead job of app.add in queue bulk, over the limit on number.",
        "{} 1 dead job of app.noop in queue default, over the limit on age.",
        "{} 2 dead jobs of app.noop in queue default, over the limit on number.",
        "{} 4 jobs.",
    ]
    with heard(pre_prune_dead) as sent:
        assert prune("--dry-run").splitlines() == [line.format("Would delete") for line in what]
        assert (sent, Job.objects.count()) == ([], 11)
        assert prune("--batch", "2").splitlines() == [line.format("Deleted") for line in what]
    assert sorted(id_ for one in sent for id_ in one["job_ids"]) == [*ids[:3], ids[6]]
    assert set(Job.objects.filter(status="dead").values_list("pk", flat=True)) == {
        *ids[3:6],
        *ids[7:],
    }


@pytest.mark.django_db
def test_limits_of_dead_jobs_apply_to_one_queue_or_one_status(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"number": 1}}}
    dead(3)
    dead(3, queue="bulk")
    assert prune("--status", "succeeded", "--status", "cancelled") == "Deleted 0 jobs."
    assert prune("--queue", "bulk", "--status", "dead").endswith("Deleted 2 jobs.")
    assert prune("--queue", "bulk") == "Deleted 0 jobs."
    assert prune().endswith("Deleted 2 jobs.")


@pytest.mark.django_db
def test_an_age_overrides_the_limits_of_job_types_too() -> None:
    with declared(plain, name="app.kept", retention={"dead": None}) as kept:
        dead(3, kept)
        age(1)
        assert prune("--status", "dead") == "Deleted 0 jobs."
        assert prune("--status", "dead", "--older-than", "36h").endswith("Deleted 2 jobs.")


@pytest.mark.django_db(transaction=True)
def test_the_command_fails_after_the_rest_if_a_receiver_raises(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"number": 1}}}
    kept, others = dead(3, queue="bulk"), dead(3)

    def export(queue: str, **keywords: Any) -> None:
        if queue == "bulk":
            raise OSError("disk full")

    problem = "dead jobs of bulk were kept: a receiver of pre_prune_dead raised OSError: disk full"
    with receiving(export), pytest.raises(CommandError, match=problem):
        prune()
    assert there() == [*kept, others[2]]


@pytest.mark.django_db
def test_a_page_that_a_receiver_replays_as_a_whole_does_not_end_the_walk(
    settings: Settings,
) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"dead": {"number": 1}}}
    ids = dead(5)

    def rescue(job_ids: list[int], **keywords: Any) -> None:
        job_operations.replay(set(job_ids) & set(ids[:2]), check=lambda job: None)

    with receiving(rescue):
        assert prune("--batch", "2").splitlines() == [
            "Deleted 2 dead jobs of app.noop in queue default, over the limit on number.",
            "Deleted 2 jobs.",
        ]
    assert there() == [*ids[:2], ids[4]]


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
    known = r"invalid choice: 'ready' \(choose from '?cancelled'?, '?dead'?, '?succeeded'?\)"
    with pytest.raises(CommandError, match=known):
        prune("--status", "ready")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments, problem",
    [
        (("--older-than", "soon"), "--older-than: 'soon' is not a duration; write it as 90s"),
        (("--queue", "bluk"), "no queue is named 'bluk'; known are: bulk, default"),
        (("--batch", "0"), "--batch takes 1 to 100,000"),
    ],
)
def test_bad_input_is_refused_with_valid_input(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        prune(*arguments)
