"""Ready jobs that wait because no living worker can run them."""

from __future__ import annotations

import pytest

from django_jobs import enqueue_many
from django_jobs.lifecycle import workers
from django_jobs.metrics.snapshot import problem, stuck_jobs, take_snapshot, unserved_queues
from tests.factories import claim_ready, register_worker, run_sql

pytestmark = pytest.mark.django_db


def test_ready_jobs_of_a_type_that_no_living_worker_knows_are_counted() -> None:
    enqueue_many("app.noop", [{}] * 3)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.from_view'")
    enqueue_many("app.noop", [{}] * 2)
    assert take_snapshot().unknown_job_types == ()  # nobody knows anything while nobody lives
    workers.end(register_worker("ended"))
    assert take_snapshot().unknown_job_types == ()
    register_worker("lives")
    (unknown,) = take_snapshot().unknown_job_types
    assert (unknown.job_type, unknown.ready) == ("shop.from_view", 3)


def test_jobs_that_are_blocked_at_their_gates_are_counted_too() -> None:
    """Their slots went to others."""
    register_worker()
    enqueue_many("app.charge_account", [{"account_id": 7}] * 2)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone'")
    enqueue_many("app.charge_account", [{"account_id": 7}] * 2)
    (unknown,) = take_snapshot().unknown_job_types
    assert (unknown.job_type, unknown.ready) == ("shop.gone", 2)


def test_ready_jobs_of_a_version_that_no_living_worker_reads_are_counted() -> None:
    enqueue_many("app.noop", [{}] * 3)
    run_sql("UPDATE django_jobs_job SET payload_version = 3")
    enqueue_many("app.noop", [{}] * 2)
    run_sql("UPDATE django_jobs_job SET payload_version = 2 WHERE payload_version = 1")
    register_worker("old", job_types={"app.noop": 1})
    assert [(one.version, one.ready) for one in take_snapshot().unread_versions] == [(3, 3), (2, 2)]
    register_worker("newer", job_types={"app.noop": 2})
    (unread,) = take_snapshot().unread_versions
    assert (unread.job_type, unread.version, unread.ready) == ("app.noop", 3, 3)
    assert take_snapshot().unknown_job_types == ()
    newest = register_worker("newest", job_types={"app.noop": 3})
    assert take_snapshot().unread_versions == ()
    workers.end(newest)
    assert len(take_snapshot().unread_versions) == 1


def test_a_worker_of_an_older_release_counts_as_reading_all_versions() -> None:
    enqueue_many("app.noop", [{}])
    run_sql("UPDATE django_jobs_job SET payload_version = 2")
    register_worker(job_types={"app.noop": 1})
    run_sql("UPDATE django_jobs_worker SET payload_versions = NULL")
    assert take_snapshot().unread_versions == ()


def test_workers_that_differ_in_one_type_or_version_are_told_apart() -> None:
    names = [f"app.type_{number}" for number in range(80)]
    for number in range(3):
        register_worker(f"alike-{number}", job_types=dict.fromkeys(names, 1))
    enqueue_many("app.noop", [{}] * 2)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.another'")
    assert len(take_snapshot().unknown_job_types) == 1
    register_worker(
        "another", job_types=dict.fromkeys([*names[:40], "app.another", *names[41:]], 1)
    )
    assert take_snapshot().unknown_job_types == ()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.type_9', payload_version = 2")
    assert len(take_snapshot().unread_versions) == 1
    # The other way round: the versions of two types change places.
    register_worker("newer", job_types=dict.fromkeys(names, 1) | {names[25]: 2})
    register_worker("newest", job_types=dict.fromkeys(names, 1) | {names[9]: 2})
    assert take_snapshot().unread_versions == ()


def test_an_unknown_type_is_reported_once_for_all_versions() -> None:
    enqueue_many("app.noop", [{}] * 2)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone', payload_version = id % 2 + 1")
    register_worker()
    (unknown,) = take_snapshot().unknown_job_types
    assert (unknown.job_type, unknown.ready) == ("shop.gone", 2)
    assert take_snapshot().unread_versions == ()


def test_only_the_workers_of_a_jobs_own_queue_count() -> None:
    enqueue_many("app.noop", [{}], queue="bulk")
    run_sql("UPDATE django_jobs_job SET payload_version = 2")
    register_worker("deployed", queues=["default"], job_types={"app.noop": 2})
    assert take_snapshot().unread_versions == ()  # nobody serves it: its age tells
    register_worker("left behind", queues=["bulk"], job_types={"app.noop": 1})
    (unread,) = take_snapshot().unread_versions
    assert (unread.job_type, unread.version) == ("app.noop", 2)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone'")
    register_worker("knows it", queues=["default"], job_types={"shop.gone": 2})
    assert [one.job_type for one in take_snapshot().unknown_job_types] == ["shop.gone"]


def test_a_version_below_1_is_not_reported_as_unread() -> None:
    enqueue_many("app.noop", [{}])
    run_sql("UPDATE django_jobs_job SET payload_version = 0")
    worker = register_worker()
    assert take_snapshot().unread_versions == ()
    (held,) = claim_ready(worker)
    assert held.payload_version == 0


def test_old_names_of_a_type_are_read_in_its_version() -> None:
    enqueue_many("app.noop", [{}] * 2)
    run_sql("UPDATE django_jobs_job SET job_type = 'app.old_name', payload_version = id % 2 + 1")
    register_worker()
    assert [(one.job_type, one.version) for one in take_snapshot().unread_versions] == [
        ("app.old_name", 2)
    ]
    assert take_snapshot().unknown_job_types == ()


def test_versions_are_listed_before_any_number_of_unknown_types() -> None:
    enqueue_many("app.noop", [{}] * 402)
    run_sql("UPDATE django_jobs_job SET job_type = 'shop.gone_' || id % 201")
    enqueue_many("app.noop", [{}])
    run_sql("UPDATE django_jobs_job SET payload_version = 2 WHERE job_type = 'app.noop'")
    register_worker()
    counted = take_snapshot()
    assert [one.ready for one in counted.unread_versions] == [1]
    assert [one.ready for one in counted.unknown_job_types] == [2] * 199


def test_a_worker_whose_lease_is_over_can_run_nothing() -> None:
    enqueue_many("app.noop", [{}] * 2)
    register_worker("lapsed", lease=-1.0)
    register_worker("lives", job_types={"app.add": 1})
    snapshot = take_snapshot()
    assert [one.job_type for one in snapshot.unknown_job_types] == ["app.noop"]
    run_sql("UPDATE django_jobs_worker SET queues = '[\"bulk\"]' WHERE name = 'lives'")
    assert [queue.name for queue in unserved_queues(take_snapshot())] == ["default"]
    run_sql("DELETE FROM django_jobs_worker WHERE name = 'lives'")
    assert stuck_jobs(take_snapshot()) == []  # all are stuck, for that reason
    assert problem(take_snapshot()) == "no worker is alive"
