"""What enqueueing says where the tables of the jobs do not exist."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from asgiref.sync import async_to_sync
from django.db import ProgrammingError, transaction

from django_jobs import EnqueueError, JobsError, NotMigrated, cancel, enqueue, enqueue_many
from django_jobs.models import Queue
from tests.app.jobs import noop
from tests.factories import run_sql

CALLS: dict[str, Callable[[], object]] = {
    "enqueue": noop.enqueue,
    "by name": lambda: enqueue("app.noop"),
    "with a key": noop.using(idempotency_key="k").enqueue,
    "many": lambda: enqueue_many("app.noop", [{}]),
    "many with keys": lambda: noop.enqueue_many([{}], idempotency_keys=["k"]),
    "cancel": lambda: cancel(1),
}


@pytest.fixture
def _transaction(db: None) -> Iterator[None]:
    """What is dropped in it is there again afterwards."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.usefixtures("_transaction")
@pytest.mark.parametrize("queue_is_known", [False, True], ids=["", "known"])
@pytest.mark.parametrize("call", CALLS)
def test_before_migrate_the_error_says_what_to_run(call: str, queue_is_known: bool) -> None:
    if queue_is_known:  # looked up less than two seconds ago
        Queue.objects.recent("default", "default")
    run_sql("DROP TABLE django_jobs_run, django_jobs_job, django_jobs_queue CASCADE")
    wanted = (
        "^django_jobs has no tables in 'default': run manage.py migrate; a migration that enqueues "
        r'needs the dependency \("django_jobs", "0001_initial"\)$'
    )
    with pytest.raises(NotMigrated, match=wanted) as caught:
        CALLS[call]()
    assert isinstance(caught.value, JobsError)
    assert not isinstance(caught.value, EnqueueError)  # the caller's transaction is broken
    assert isinstance(caught.value.__cause__, ProgrammingError)


@pytest.mark.usefixtures("_transaction")
def test_another_missing_table_is_not_reported_as_ours() -> None:
    run_sql(
        "CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO audit_log VALUES (1); RETURN NEW; END$$"
    )
    run_sql(
        "CREATE TRIGGER audit BEFORE INSERT ON django_jobs_job"
        " FOR EACH ROW EXECUTE FUNCTION audit()"
    )
    with pytest.raises(ProgrammingError, match="audit_log"):
        noop.enqueue()


@pytest.mark.usefixtures("_transaction")
def test_async_code_gets_the_same_error() -> None:
    run_sql("DROP TABLE django_jobs_queue")
    with pytest.raises(NotMigrated, match=r"run manage\.py migrate"):
        async_to_sync(noop.aenqueue)()
