"""Groups of failures: what dead jobs and retried ones have in common."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from django_jobs.metrics import failures
from django_jobs.metrics.failures import BUCKETS, take_failure, take_failures
from django_jobs.models import Job
from tests.app.jobs import add, noop
from tests.factories import (
    analyze,
    enqueue_and_claim,
    explain,
    failure,
    make_dead,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

FILL = """
INSERT INTO django_jobs_job (queue, job_type, payload, payload_version, status, priority, rank,
    available_at, attempt, failures, max_attempts, max_crashes, finished_at, last_error,
    fingerprint, headers, created_at)
SELECT 'default', 'app.noop', '{}', 1, %(status)s, 0, 0, now(), 1, 1, 5, 3,
    now() - make_interval(secs => n), 'KeyError',
    CASE WHEN n %% 100 = 0 THEN n::text ELSE 'same' END, '{}', now()
FROM generate_series(1, %(count)s) AS n
"""


def dead(kind: str = "ValueError", *, hours: float = 0.0, **options: Any) -> Job:
    """A dead job that died so many hours ago."""
    held = enqueue_and_claim(noop, **options)
    settle_one(held, failure(kind=kind, final=True))
    run_sql(
        "UPDATE django_jobs_job SET finished_at = finished_at - make_interval(secs => %s)"
        " WHERE id = %s",
        [hours * 3_600, held.id],
    )
    return Job.objects.get(pk=held.id)


def counts(**options: Any) -> dict[tuple[str, str], tuple[int, int]]:
    return {
        (group.job_type, group.error.partition(":")[0]): (group.dead, group.retried)
        for group in take_failures(**options).groups
    }


def retry(kind: str = "ValueError") -> None:
    settle_one(enqueue_and_claim(noop), failure(kind=kind))


def test_dead_jobs_are_grouped_by_job_type_and_fingerprint() -> None:
    for _ in range(3):
        dead("KeyError")
    dead("ValueError")
    make_dead(add, 1)
    assert counts() == {
        ("app.noop", "KeyError"): (3, 0),
        ("app.add", "ValueError"): (1, 0),
        ("app.noop", "ValueError"): (1, 0),
    }
    assert [group.dead for group in take_failures().groups] == [3, 1, 1]


def test_a_group_of_two_queues_is_one_and_can_be_had_for_one_queue() -> None:
    first = dead(hours=5)
    last = dead(queue="bulk")
    (group,) = take_failures().groups
    assert (group.dead, group.queues) == (2, ("bulk", "default"))
    assert (group.first, group.last) == (first.finished_at, last.finished_at)
    assert sum(group.trend) == 2
    (group,) = take_failures(queue="bulk").groups
    assert (group.dead, group.queues) == (1, ("bulk",))
    (group,) = take_failures(queue="default").groups
    assert (group.dead, group.queues) == (1, ("default",))
    assert take_failures(queue="emails").groups == ()


def test_a_span_counts_what_died_in_it_and_keeps_the_first_time() -> None:
    first = dead(hours=30)
    dead(hours=2)
    dead("KeyError", hours=30)
    (group,) = take_failures(span=timedelta(hours=24)).groups
    assert (group.dead, group.first) == (1, first.finished_at)
    assert group.trend[BUCKETS * 22 // 24] == 1
    assert take_failures(span=timedelta(hours=1)).groups == ()


def test_the_curve_covers_seven_days_by_default() -> None:
    for hours in (0.0, 0.0, 24.0 * 6.9, 24.0 * 8):
        dead(hours=hours)
    (group,) = take_failures().groups
    assert group.dead == 4
    assert (group.trend[0], group.trend[-1], sum(group.trend)) == (1, 2, 3)


def test_jobs_that_wait_for_another_attempt_are_counted_if_asked_for() -> None:
    dead("KeyError")
    retry("KeyError")
    retry("OSError")
    noop.using(delay=60).enqueue()
    assert counts() == {("app.noop", "KeyError"): (1, 0)}
    assert counts(retried=True) == {
        ("app.noop", "KeyError"): (1, 1),
        ("app.noop", "OSError"): (0, 1),
    }
    assert counts(retried=True, queue="bulk") == {}


def test_a_dead_job_without_an_error_is_in_the_group_of_its_reason() -> None:
    job = make_dead()
    run_sql("UPDATE django_jobs_job SET last_error = '', fingerprint = '' WHERE id = %s", [job.pk])
    (group,) = take_failures().groups
    assert (group.fingerprint, group.error) == ("", job.reason)


def test_a_count_stops_and_the_parts_of_its_curve_too() -> None:
    run_sql(FILL, {"status": "dead", "count": 20_000})
    found = {group.fingerprint: group for group in take_failures().groups}
    same, most = found["same"], failures.ALL_COUNTED // 201
    assert (same.dead, same.dead_capped) == (most, True)
    assert same.trend[-1] == most * 2 // BUCKETS
    assert sum(same.trend[:-1]) == 0
    assert (found["100"].dead, found["100"].dead_capped) == (1, False)


def test_one_group_is_had_whatever_its_queues() -> None:
    dead(queue="bulk")
    retry()
    run_sql("DELETE FROM django_jobs_queue WHERE name = 'bulk'")
    dead("KeyError")
    fingerprint = Job.objects.filter(queue="bulk").get().fingerprint
    (group,) = take_failure("app.noop", fingerprint).groups
    assert (group.dead, group.retried, group.queues) == (1, 1, ("bulk", "default"))
    assert take_failure("app.noop", "gone").groups == ()


def test_groups_that_were_not_looked_at_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST_GROUPS", 2)
    dead("KeyError")
    dead("ValueError")
    assert not take_failures().more
    dead("OSError")
    found = take_failures()
    assert (len(found.groups), found.more) == (2, True)


@pytest.mark.usefixtures("fresh_tables")
def test_groups_are_found_and_counted_in_one_index_up_to_their_bounds() -> None:
    for status in ("dead", "scheduled"):
        run_sql(FILL, {"status": status, "count": 40_000})
    analyze("django_jobs_job")
    most = failures.ALL_COUNTED // 401 + 1
    for (sql, index), queue in itertools.product(
        (
            (failures.DEAD_GROUPS, "django_jobs_dead_failure"),
            (failures.RETRIED_GROUPS, "django_jobs_retried"),
        ),
        (None, "default"),
    ):
        parameters = {"queue": queue, "most": 500, "since": "-infinity", "begin": "now"}
        plan = explain(sql, {**parameters, "span": 60.0})
        read = [node for node in plan if "Relation Name" in node]
        assert {node.get("Index Name") for node in read} == {index}, queue
        assert max(node["Actual Rows"] for node in read) <= most, (index, queue)
        assert sum(node.get("Rows Removed by Filter", 0) for node in read) == 0, (index, queue)
