"""ready -> blocked and back: blocked, not failed."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import transaction

from django_jobs.domain.outcomes import Lost, Succeeded
from django_jobs.lifecycle.claiming import START
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import quarantines
from django_jobs.models import Job, Quarantine
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    enqueue_and_claim,
    listening,
    make_dead,
    make_user,
    open_elsewhere,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db


def status_of(id_: int) -> tuple[str, str]:
    return Job.objects.values_list("status", "reason").get(pk=id_)


def crash(job_type: Any = noop) -> None:
    """A run that killed a process of its own."""
    settle_one(enqueue_and_claim(job_type), Lost(reason="SIGSEGV", alone=True))


def test_a_quarantine_stores_operator_and_reason() -> None:
    assert quarantines.quarantine("app.noop", actor=None, reason="leaks", by="deploy@web-1") == [
        "app.noop"
    ]
    row = Quarantine.objects.get()
    assert (row.job_type, row.reason, row.by) == ("app.noop", "leaks", "deploy@web-1")
    assert row.in_force
    assert str(row) == "app.noop"
    assert quarantines.in_force() == ["app.noop"]


def test_quarantine_and_lift_change_nothing_the_second_time() -> None:
    assert quarantines.lift("app.noop") == []
    assert quarantines.quarantine("app.noop", reason="first") == ["app.noop"]
    since = Quarantine.objects.get().since
    assert quarantines.quarantine("app.noop", reason="second") == []
    row = Quarantine.objects.get()
    assert (row.reason, row.since) == ("first", since)
    assert quarantines.lift("app.noop") == ["app.noop"]
    released = Quarantine.objects.get().lifted_at
    assert quarantines.lift("app.noop") == []
    assert Quarantine.objects.get().lifted_at == released


def test_a_lifted_type_is_quarantined_again_in_its_row() -> None:
    quarantines.quarantine("app.noop", reason="first", by="ada")
    quarantines.lift("app.noop")
    assert quarantines.quarantine("app.noop", reason="second") == ["app.noop"]
    row = Quarantine.objects.get()
    assert (row.reason, row.by, row.in_force) == ("second", "", True)


def test_an_actor_needs_the_permission() -> None:
    olga, ada = make_user("view_job"), make_user("quarantine_job_type", name="ada")
    for verb in (quarantines.quarantine, quarantines.lift):
        with pytest.raises(PermissionDenied, match="quarantine_job_type"):
            verb("app.noop", actor=olga)  # type: ignore[operator]
    assert not Quarantine.objects.exists()
    assert quarantines.quarantine("app.noop", actor=ada) == ["app.noop"]
    assert Quarantine.objects.get().by == "ada"


def test_a_job_type_is_quarantined_and_lifted_under_all_its_names() -> None:
    family = ["app.old_name", "app.older_name", "app.present_name"]
    assert quarantines.quarantine("app.old_name") == family
    assert quarantines.lift("app.present_name") == family
    assert quarantines.in_force() == []


def test_an_alias_added_during_a_quarantine_is_quarantined_too() -> None:
    run_sql(
        "INSERT INTO django_jobs_quarantine (job_type, since, reason, by) "
        "VALUES ('app.old_name', now(), 'leaks', 'olga')"
    )
    assert quarantines.spread(quarantines.in_force()) == ["app.older_name", "app.present_name"]
    assert quarantines.spread(quarantines.in_force()) == []
    assert set(Quarantine.objects.values_list("reason", "by")) == {("leaks", "olga")}
    run_sql(
        "UPDATE django_jobs_quarantine SET lifted_at = now() WHERE job_type = 'app.present_name'"
    )
    assert quarantines.spread(quarantines.in_force()) == []  # a lifted one stays


def test_an_unknown_name_can_be_quarantined_too() -> None:
    assert quarantines.quarantine("other.service") == ["other.service"]


def test_ready_jobs_are_blocked_and_return_to_their_place() -> None:
    first, other, second = noop.enqueue().pk, add.enqueue(1).pk, noop.enqueue().pk
    ranks = dict(Job.objects.values_list("pk", "rank"))
    quarantines.quarantine("app.noop", seconds=0)
    step = quarantines.block("default")
    assert (step.blocked, step.is_full) == (2, False)
    assert status_of(first) == status_of(second) == ("blocked", "quarantined")
    assert status_of(other) == ("ready", "")
    quarantines.lift("app.noop")
    assert status_of(first) == status_of(second) == ("ready", "")
    assert dict(Job.objects.values_list("pk", "rank")) == ranks
    assert [one.id for one in claim_ready(register_worker())] == [first, other, second]


def test_a_quarantine_blocks_the_jobs_of_all_pages_and_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quarantines, "PAGE", 4)
    noop.enqueue_many({} for _ in range(25))
    bulk = noop.using(queue="bulk").enqueue()
    other = add.enqueue(1)
    quarantines.quarantine("app.noop", seconds=60)  # a busy machine may stand still
    assert status_of(bulk.pk) == ("blocked", "quarantined")
    assert list(Job.objects.filter(status="ready")) == [other]


def test_nothing_else_of_the_job_changes() -> None:
    job = noop.using(idempotency_key="k", priority=3).enqueue()
    before = Job.objects.values().get(pk=job.pk)
    quarantines.quarantine("app.noop", seconds=0)
    quarantines.block("default")
    quarantines.lift("app.noop")
    after = Job.objects.values().get(pk=job.pk)
    assert after["ready_at"] is not None
    assert {**after, "ready_at": None} == before


def test_a_page_continues_where_the_last_one_ended() -> None:
    ids = noop.enqueue_many({} for _ in range(5))
    quarantines.quarantine("app.noop", seconds=0)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.add' WHERE id = %s", [ids[0]])
    first = quarantines.block("default", START, page=2)
    assert (first.blocked, first.is_full, first.last[1]) == (1, True, ids[1])
    rest = quarantines.block("default", first.last, page=4)
    assert (rest.blocked, rest.is_full) == (3, False)
    assert quarantines.block("default", rest.last, page=4).blocked == 0


def test_running_jobs_are_not_stopped() -> None:
    held = enqueue_and_claim()
    quarantines.quarantine("app.noop")
    quarantines.block("default")
    settle_one(held, Succeeded())
    assert status_of(held.id) == ("succeeded", "")


@pytest.mark.parametrize("verb", ["cancel", "reprioritize"])
def test_operators_may_change_a_blocked_job_like_a_ready_one(verb: str) -> None:
    job = noop.using(idempotency_key="k").enqueue()
    quarantines.quarantine("app.noop")
    quarantines.block("default")
    if verb == "cancel":
        assert job_operations.cancel([job.pk]).done == [job.pk]
        assert status_of(job.pk) == ("cancelled", "cancelled")
        quarantines.lift("app.noop")
        assert status_of(job.pk)[0] == "cancelled"
    else:
        assert job_operations.reprioritize([job.pk], 50).done == [job.pk]
        assert status_of(job.pk) == ("blocked", "quarantined")
        assert Job.objects.get(pk=job.pk).priority == 50
        assert noop.using(idempotency_key="k").enqueue().deduplicated


def test_jobs_that_become_ready_meanwhile_are_blocked_too() -> None:
    quarantines.quarantine("app.noop")
    dead = make_dead(add, 1)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.noop', payload = '{}'")
    later = noop.using(delay=900).enqueue()
    assert job_operations.run_now([later.pk]).done == [later.pk]
    assert job_operations.replay([dead.pk], check=lambda job: None).done == [dead.pk]
    assert quarantines.block("default").blocked == 2


def test_lifting_a_quarantine_notifies_the_queues_of_its_jobs(transactional_db: None) -> None:
    noop.using(queue="bulk").enqueue()
    quarantines.quarantine("app.noop")
    quarantines.block("bulk")
    with listening() as heard:
        quarantines.lift("app.noop")
        assert "bulk" in heard()


def test_a_lift_out_of_time_leaves_the_rest_to_the_maintenance_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quarantines, "PAGE", 2)
    noop.enqueue_many({} for _ in range(5))
    quarantines.quarantine("app.noop")
    quarantines.block("default", page=10)
    monkeypatch.setattr(quarantines.unblock, "__defaults__", (2,))
    quarantines.lift("app.noop", seconds=0)
    assert Job.objects.filter(status="ready").count() == 2
    assert quarantines.types_to_unblock() == ["app.noop"]
    assert quarantines.unblock("app.noop", 2) == 2
    assert quarantines.unblock("app.noop", 2) == 1
    assert quarantines.types_to_unblock() == []


def test_jobs_are_unblocked_even_if_the_quarantine_was_deleted() -> None:
    add.enqueue(1)
    noop.enqueue()
    for name in ("app.add", "app.noop"):
        quarantines.quarantine(name)
    quarantines.block("default")
    assert quarantines.types_to_unblock() == []
    Quarantine.objects.filter(job_type="app.noop").delete()
    assert quarantines.types_to_unblock() == ["app.noop"]


def test_locked_rows_are_skipped(transactional_db: None) -> None:
    locked, free = noop.enqueue().pk, noop.enqueue().pk
    quarantines.quarantine("app.noop", seconds=0)
    with (
        open_elsewhere("SELECT 1 FROM django_jobs_job WHERE id = %s FOR UPDATE", [locked]),
        transaction.atomic(),
    ):
        assert quarantines.block("default").blocked == 1
    assert status_of(locked)[0] == "ready"
    assert status_of(free)[0] == "blocked"
    assert quarantines.block("default").blocked == 1


# Crashes


def test_crashes_are_counted_by_type_and_other_ends_are_not() -> None:
    crash()
    crash()
    settle_one(enqueue_and_claim(add, 1), Lost(reason="the machine died"))
    (found,) = quarantines.crashes(600).items()
    assert found[0] == "app.noop"
    assert found[1].count == 2


def test_crashes_under_an_old_name_count_for_the_present_one() -> None:
    crash()
    crash()
    run_sql(
        "UPDATE django_jobs_job SET job_type = CASE WHEN id = (SELECT min(id) FROM"
        " django_jobs_job) THEN 'app.old_name' ELSE 'app.present_name' END"
    )
    assert quarantines.crashes(600)["app.present_name"].count == 2


def test_old_crashes_and_those_before_a_lift_do_not_count() -> None:
    crash()
    run_sql("UPDATE django_jobs_run SET finished_at = now() - interval '11 minutes'")
    assert quarantines.crashes(600) == {}
    crash()
    quarantines.quarantine("app.noop")
    assert quarantines.crashes(600) == {}
    quarantines.lift("app.noop")
    assert quarantines.crashes(600) == {}
    crash()
    assert quarantines.crashes(600)["app.noop"].count == 1


def test_a_worker_that_counted_before_a_lift_does_not_undo_it() -> None:
    crash()
    counted = quarantines.crashes(600)["app.noop"]
    quarantines.quarantine("app.noop")
    quarantines.lift("app.noop")
    assert quarantines.quarantine("app.noop", crashed_at=counted.first) == []
    assert quarantines.in_force() == []
    crash()
    again = quarantines.crashes(600)["app.noop"]
    assert quarantines.quarantine("app.noop", crashed_at=again.first) == ["app.noop"]
