"""Queues: seeded from the settings, then owned by the admin."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, transaction
from pytest_django import DjangoAssertNumQueries, Settings

from django_jobs import Backoff
from django_jobs.models import Queue


@pytest.mark.django_db
def test_migrate_creates_only_missing_queues(
    settings: Settings,
) -> None:
    Queue.objects.filter(name="default").update(max_concurrency=7)
    settings.DJANGO_JOBS = {"QUEUES": {"default": {"max_concurrency": 1}, "new": {"timeout": 5}}}
    call_command("migrate", verbosity=0)
    assert Queue.objects.get(name="default").max_concurrency == 7
    assert Queue.objects.get(name="new").timeout == 5


def test_the_options_of_the_settings_become_the_row() -> None:
    queue = Queue.configured(
        "q", {"strict": True, "backoff": Backoff.fixed(1), "retention": {"dead": "1d"}}
    )
    assert Queue.configured("q", {"slo_since": "ready"}).slo_since == "ready" != queue.slo_since
    assert queue.priority_weight == 1e8
    assert queue.backoff == Backoff.fixed(1).as_json()
    assert queue.retention == {"dead": "1d"}
    plain = Queue.configured("q", {"priority_weight": 5})
    assert (plain.priority_weight, plain.backoff, plain.max_concurrency) == (5, None, None)


@pytest.mark.django_db
def test_a_queue_is_cached_for_a_while(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with django_assert_num_queries(1):
        first = Queue.objects.recent("default", "default")
        assert Queue.objects.recent("default", "default") is first
    assert Queue.objects.recent("nowhere", "default") is None


@pytest.mark.django_db(transaction=True)
def test_an_uncommitted_queue_is_not_cached() -> None:
    with transaction.atomic():
        with transaction.atomic():
            Queue.objects.bulk_create([Queue(name="never")])
            Queue.objects.filter(name="default").update(max_attempts=9)
        assert Queue.objects.recent("never", "default") is not None
        assert Queue.objects.recent("default", "default").max_attempts == 9  # type: ignore[union-attr]
        transaction.set_rollback(True)
    assert Queue.objects.recent("never", "default") is None
    assert Queue.objects.recent("default", "default").max_attempts is None  # type: ignore[union-attr]


@pytest.mark.django_db(transaction=True)
def test_a_committed_queue_is_cached_inside_a_writing_transaction(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    with transaction.atomic():
        Queue.objects.filter(name="emails").update(max_concurrency=2)
        Queue.objects.recent("default", "default")
        with django_assert_num_queries(0):
            assert Queue.objects.recent("default", "default") is not None


@pytest.mark.parametrize("seconds", [0.0, 366 * 86_400.0 + 1, 1e12])
def test_a_time_out_beyond_its_bounds_is_refused(seconds: float) -> None:
    with pytest.raises(ValidationError, match="timeout"):
        Queue(name="q", timeout=seconds).clean_fields()
    Queue(name="q", timeout=366 * 86_400.0).clean_fields()


@pytest.mark.django_db
def test_saving_a_queue_clears_its_cache() -> None:
    queue = Queue.objects.recent("default", "default")
    assert queue is not None
    changed = Queue.objects.get(name="default")
    changed.max_attempts = 3
    changed.save()
    again = Queue.objects.recent("default", "default")
    assert again is not None
    assert again.max_attempts == 3


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a/b", "a\n", "é", "<script>"])
def test_a_name_that_a_command_line_cannot_take_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        Queue(name=name).clean_fields()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "values", [{"slo_target": 1.0}, {"slo_seconds": 1e300}, {"slo_seconds": float("nan")}]
)
def test_an_objective_that_breaks_its_numbers_is_refused_by_the_database_too(
    values: dict[str, float],
) -> None:
    (name,) = values
    with pytest.raises(IntegrityError, match=f"django_jobs_queue_{name}"), transaction.atomic():
        Queue.objects.update(**values)


@pytest.mark.django_db
def test_a_limit_of_nothing_is_refused_by_the_database_too() -> None:
    with pytest.raises(IntegrityError, match="django_jobs_queue_concurrency"), transaction.atomic():
        Queue.objects.create(name="stuck", max_concurrency=0)
