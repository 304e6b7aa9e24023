"""The database has done it, and its answer is lost (D4, D5, D6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from django_jobs.models import Job, Run
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.factories import run_sql
from tests.patience import PATIENCE
from tests.worker.processes import Start, until, until_status

from .proxy import Proxy
from .stage import queries_on

pytestmark = pytest.mark.processes
POLL = ("--poll-seconds", "0.2")


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    with Proxy(connection.settings_dict) as own:
        yield own


def enqueue_and_lose_the_answer(proxy: Proxy, key: str | None, *, in_a_transaction: bool) -> None:
    keyed = jobs.noop.using(idempotency_key=key) if key else jobs.noop
    with queries_on(proxy.url):
        if in_a_transaction:
            proxy.cut_after("COMMIT")
            with pytest.raises(OperationalError), transaction.atomic():
                keyed.enqueue()
        else:
            proxy.cut_after("INSERT INTO django_jobs_job")
            with pytest.raises(OperationalError):
                keyed.enqueue()
    assert proxy.was_cut.is_set()


@pytest.mark.parametrize("in_a_transaction", [False, True], ids=["alone", "in a transaction"])
def test_an_enqueue_whose_answer_was_lost_is_repeated_with_its_key(
    proxy: Proxy, in_a_transaction: bool
) -> None:
    enqueue_and_lose_the_answer(proxy, "k", in_a_transaction=in_a_transaction)
    again = jobs.noop.using(idempotency_key="k").enqueue()
    assert again.deduplicated
    assert [job.pk for job in Job.objects.all()] == [again.pk]


def test_without_a_key_an_enqueue_whose_answer_was_lost_may_exist(proxy: Proxy) -> None:
    """Nobody can tell, as docs/delivery.md says: who asks again has two jobs."""
    enqueue_and_lose_the_answer(proxy, None, in_a_transaction=True)
    assert Job.objects.count() == 1
    jobs.noop.enqueue()
    assert Job.objects.count() == 2


def test_jobs_of_a_claim_whose_answer_was_lost_run_once(proxy: Proxy, start_worker: Start) -> None:
    worker = start_worker(*POLL, DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    held: list[Job] = []
    for _ in range(10):  # the claim that is cut may be one that finds nothing yet
        proxy.was_cut.clear()
        proxy.cut_after("SET status = 'running'")
        held += [jobs.write_effect.enqueue(f"{number}") for number in range(20)]
        assert proxy.was_cut.wait(PATIENCE)
        for job in held:
            assert until_status(job, "succeeded").attempt == 1
        if "event=stranded_jobs" in worker.text():
            break
    assert Effect.objects.count() == len(held)
    assert set(Run.objects.values_list("attempt", "outcome")) == {(1, "succeeded")}
    assert "event=stranded_jobs" in worker.text()


def test_a_settle_whose_answer_was_lost_is_read_back_as_written(
    proxy: Proxy, start_worker: Start
) -> None:
    worker = start_worker(*POLL, DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    Run.objects.all().delete()
    proxy.cut_after("INSERT INTO django_jobs_run")
    done = [jobs.write_effect.enqueue(f"{number}") for number in range(20)]
    assert proxy.was_cut.wait(PATIENCE)
    for job in done:
        assert until_status(job, "succeeded").attempt == 1
    until(lambda: "event=database_error" in worker.text())
    after = jobs.noop.enqueue()  # settled after the other, so what that one had to say is said
    until_status(after, "succeeded")
    assert Effect.objects.count() == 20
    assert Run.objects.count() == 21
    assert "lease_lost" not in worker.text()


def test_an_exactly_once_effect_with_an_unknown_commit_exists_once(
    proxy: Proxy, start_worker: Start
) -> None:
    start_worker(*POLL, DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    proxy.cut_after("COMMIT", on_one_that_said='INSERT INTO "app_effect"')
    job = database_jobs.write_once.enqueue()
    assert proxy.was_cut.wait(PATIENCE)
    until_status(job, "succeeded")
    until_status(jobs.noop.enqueue(), "succeeded")
    assert Effect.objects.count() == 1
    assert list(Run.objects.filter(job=job).values_list("outcome", flat=True)) == ["succeeded"]


def test_an_effect_cut_off_before_its_commit_is_written_by_the_next_attempt(
    proxy: Proxy, start_worker: Start
) -> None:
    start_worker(*POLL, DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    proxy.cut_after("INSERT INTO django_jobs_run", on_one_that_said='INSERT INTO "app_effect"')
    job = database_jobs.write_once.enqueue()
    assert proxy.was_cut.wait(PATIENCE)
    until_status(job, "succeeded")
    assert Effect.objects.count() == 1
    assert list(Run.objects.filter(job=job).values_list("outcome", flat=True)) == [
        "failed",
        "succeeded",
    ]


def test_a_bulk_enqueue_refused_by_the_database_raises_djangos_error(
    transactional_db: None,
) -> None:
    run_sql("ALTER TABLE django_jobs_job ADD CONSTRAINT full_up CHECK (false) NOT VALID")
    try:
        with pytest.raises(DatabaseError):
            jobs.noop.enqueue_many({} for _ in range(10))
    finally:
        run_sql("ALTER TABLE django_jobs_job DROP CONSTRAINT full_up")
