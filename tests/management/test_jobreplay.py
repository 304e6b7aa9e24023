"""``jobreplay``: send dead jobs back, or say why not."""

from __future__ import annotations

import getpass
import socket
from dataclasses import replace

import pytest
from django.core.management import CommandError

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.models import BulkOperation, Job, Run
from tests.app.jobs import add, noop
from tests.commands import printed
from tests.factories import enqueue_and_claim, failure, make_dead, run_again, run_sql, settle_one
from tests.lifecycle.test_opening import finish, reread
from tests.workflows import start_graph, states


def replay(*arguments: object) -> str:
    return printed("jobreplay", *arguments).strip()


def replayed() -> set[int]:
    return set(Job.objects.filter(replays=1).values_list("pk", flat=True))


@pytest.mark.django_db
def test_jobs_named_by_id_are_replayed_with_the_reason() -> None:
    one, other, third = make_dead(), make_dead(), make_dead()
    assert replay(one.pk, other.pk, one.pk, "--reason", "fixed") == "Replayed 2 jobs."
    assert replayed() == {one.pk, other.pk}
    (noted,) = Job.objects.get(pk=one.pk).headers["replays"]
    assert noted["why"] == "fixed"
    assert noted["by"] == f"{getpass.getuser()}@{socket.gethostname()} (jobreplay)"
    assert Job.objects.get(pk=third.pk).status == "dead"


@pytest.mark.django_db
def test_a_dead_step_is_replayed_and_what_was_skipped_comes_back() -> None:
    run = start_graph({"a": "", "b": "a", "c": "b", "sorry": "-a", "end": "*c *sorry"})
    finish({"a": failure(final=True)})
    assert reread(run).status == "failed"
    assert replay("--type", "app.noop", "--reason", "fixed") == "Replayed 1 job."
    assert states(run) == {
        "a": "ready",
        "b": "waiting",
        "c": "waiting",
        "sorry": "succeeded",
        "end": "succeeded",
    }
    assert reread(run).status == "running"
    assert finish() == ["a", "b", "c"]
    assert (reread(run).status, reread(run).reason) == ("succeeded", "")
    assert Run.objects.filter(job__step="a").count() == 2


@pytest.mark.django_db
def test_a_queue_or_a_job_type_chooses() -> None:
    bulk, adding, both = make_dead(queue="bulk"), make_dead(add, 1), make_dead(add, 1, queue="bulk")
    assert replay("--queue", "bulk", "--type", "app.add") == "Replayed 1 job."
    assert replayed() == {both.pk}
    assert replay("--type", "app.add") == "Replayed 1 job."
    assert replay("--queue", "bulk") == "Replayed 1 job."
    assert replayed() == {bulk.pk, adding.pk, both.pk}


@pytest.mark.django_db
def test_a_fingerprint_chooses_jobs_by_their_last_run() -> None:
    make_dead()
    held = enqueue_and_claim()
    settle_one(held, failure(kind="KeyError", final=True))
    fingerprint = Run.objects.get(job_id=held.id).fingerprint
    assert replay("--error", fingerprint) == "Replayed 1 job."
    assert replayed() == {held.id}


@pytest.mark.django_db
def test_the_code_of_an_error_chooses_jobs_by_their_last_run() -> None:
    unavailable = failure(code="503")
    refused = enqueue_and_claim()
    settle_one(refused, unavailable)
    run_again(refused.id, refused.worker, failure(code="400", final=True))
    down, other = (enqueue_and_claim(queue=name) for name in ("default", "bulk"))
    for held in (down, other):
        settle_one(held, replace(unavailable, final=True))
    make_dead()
    assert replay("--error-code", "503", "--queue", "bulk") == "Replayed 1 job."
    assert replay("--error-code", "503") == "Replayed 1 job."
    assert replayed() == {down.id, other.id}
    assert replay("--error-code", "504") == "Replayed 0 jobs."


@pytest.mark.django_db
def test_since_takes_an_age_or_a_date() -> None:
    old, new = make_dead(), make_dead()
    run_sql(
        "UPDATE django_jobs_job SET finished_at = '2020-05-05 12:00+00' WHERE id = %s", [old.pk]
    )
    assert replay("--since", "1h", "--dry-run") == "Would replay 1 job."
    assert replay("--since", "2020-05-06", "--dry-run") == "Would replay 1 job."
    assert replay("--since", "2020-05-05T11:59:00Z", "--dry-run") == "Would replay 2 jobs."
    assert replay("--since", "1h") == "Replayed 1 job."
    assert replayed() == {new.pk}


@pytest.mark.django_db
def test_a_limit_takes_the_oldest() -> None:
    first, _ = make_dead(), make_dead()
    assert replay("--queue", "default", "--limit", 1) == "Replayed 1 job."
    assert replayed() == {first.pk}


@pytest.mark.django_db
def test_each_refusal_is_printed_and_makes_the_command_fail(
    capsys: pytest.CaptureFixture[str],
) -> None:
    good, keyed = make_dead(), make_dead(idempotency_key="k")
    holder = noop.using(idempotency_key="k").enqueue()
    with pytest.raises(CommandError, match="2 of 3 jobs refused"):
        replay(keyed.pk, good.pk, 10**12)
    lines = capsys.readouterr().err
    assert f"job {keyed.pk} was refused: job {holder.pk} (ready) holds" in lines
    assert f"job {10**12} was refused: there is no such job" in lines
    assert replayed() == {good.pk}


@pytest.mark.django_db
def test_a_dry_run_refuses_the_same_and_changes_nothing() -> None:
    good, gone = make_dead(), make_dead()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.gone' WHERE id = %s", [gone.pk])
    with pytest.raises(CommandError, match="1 of 2 jobs refused"):
        replay(good.pk, gone.pk, "--dry-run")
    assert Job.objects.dead().count() == 2
    assert replayed() == set()


@pytest.mark.django_db
def test_a_job_that_is_not_dead_is_refused_with_its_status(
    capsys: pytest.CaptureFixture[str],
) -> None:
    held = enqueue_and_claim()
    settle_one(held, Succeeded())
    with pytest.raises(CommandError, match="1 of 1 job refused"):
        replay(held.id)
    assert f"job {held.id} was refused: it is succeeded" in capsys.readouterr().err


@pytest.mark.django_db
def test_a_dry_run_lists_the_jobs_on_request() -> None:
    one, other = make_dead(), make_dead(add, 1)
    lines = replay(one.pk, other.pk, "--dry-run", "-v", "2").splitlines()
    assert lines == [f"job {one.pk} app.noop", f"job {other.pk} app.add", "Would replay 2 jobs."]


@pytest.mark.django_db
def test_nothing_to_replay_is_not_a_failure() -> None:
    settle_one(enqueue_and_claim(), Succeeded())
    assert replay("--queue", "default") == "Replayed 0 jobs."


@pytest.mark.django_db
def test_only_a_job_type_without_jobs_and_handler_is_refused() -> None:
    gone = make_dead()
    assert replay("--type", "app.add") == "Replayed 0 jobs."
    with pytest.raises(CommandError, match=r"^no job type is named 'old\.gone'$"):
        replay("--type", "old.gone")
    run_sql("UPDATE django_jobs_job SET job_type = 'old.gone' WHERE id = %s", [gone.pk])
    with pytest.raises(CommandError, match=r"^1 of 1 job refused$"):  # and told why
        replay("--type", "old.gone")
    settle_one(enqueue_and_claim(), Succeeded())
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.done' WHERE status = 'succeeded'")
    assert replay("--type", "shop.done") == "Replayed 0 jobs."


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments, problem",
    [
        ((), "give ids, or at least one of --queue"),
        (("1", "--queue", "default"), "give ids or a filter, not both"),
        (("--queue", "default", "--limit", "0"), "--limit takes 1 or more"),
        (("--since", "yesterday"), "--since takes an age such as 2h"),
        (("--since", "2026-13-45"), "--since takes an age such as 2h"),
        (("one",), "invalid int value"),
        (("--queue", "default", "--limit", str(2**63)), f"is not between -{2**63 - 1} and"),
        (("--queue", "default", "--limit", "9" * 5_000), "is not between"),
        (("--type", "app.nop"), r"^no job type is named 'app\.nop'; did you mean .*app\.noop"),
        (("--queue", "nope"), "no queue is named 'nope'; known are: bulk, default"),
    ],
)
def test_bad_input_is_refused_with_valid_input(arguments: tuple[str, ...], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        replay(*arguments)


@pytest.mark.django_db
def test_a_fingerprint_that_no_run_has_is_refused() -> None:
    make_dead()
    with pytest.raises(CommandError, match=r"^no run has the fingerprint 'zzz'; .* page of a run"):
        replay("--error", "zzz")


@pytest.mark.django_db
def test_a_plan_is_an_operation_of_the_workers() -> None:
    dead = make_dead()
    text = replay("--type", "app.noop", "--since", "2h", "--plan", "--reason", "again")
    operation = BulkOperation.objects.get()
    assert text == f"Operation {operation.pk}: the workers will replay them."
    again = replay("--type", "app.noop", "--since", "2h", "--plan")
    assert again == f"Operation {operation.pk}: it is under way already."
    assert operation.plan == {"first": 1, "then": 20, "rate": 10, "most_failed": 20}
    assert operation.terms.keys() == {"job_type", "finished_since"}
    assert operation.actor_name.endswith("(jobreplay)")
    dead.refresh_from_db()
    assert dead.status == "dead"
    replay(dead.pk, "--plan", "2,3,4,5")
    assert (
        BulkOperation.objects.latest("id").plan
        == ReplayPlan.from_json({"first": 2, "then": 3, "rate": 4, "most_failed": 5}).as_json()
    )
    run_chunk()
    dead.refresh_from_db()
    assert dead.status == "ready"


@pytest.mark.django_db
@pytest.mark.parametrize(
    "options", [("--plan", "1,2"), ("--plan", "0,1,1,1"), ("--plan", "--limit", "3"), ("--plan",)]
)
def test_a_plan_that_cannot_be_is_refused(options: tuple[str, ...]) -> None:
    chosen = () if options == ("--plan",) else ("--queue", "default")
    with pytest.raises(CommandError):
        replay(*chosen, *options)
    assert not BulkOperation.objects.exists()
