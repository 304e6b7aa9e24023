"""What is prepared once for many jobs of a type changes nothing for any of them."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_jobs import (
    Backoff,
    DuplicateJob,
    EnqueueError,
    PayloadError,
    QueueFull,
    enqueue,
    enqueue_many,
)
from django_jobs.models import Job, Queue
from tests.app.gate_jobs import bill_tenant
from tests.app.jobs import add, noop, summarise
from tests.factories import declared, enqueue_and_claim, run_sql


def plain(first: int, second: int = 0) -> None: ...


def by_name(first: int, *, third: int = 3) -> None: ...


def with_any(first: int, **others: int) -> None: ...


@pytest.mark.parametrize("handler", [plain, by_name, with_any])
@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {}),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((), {}),
        ((), {"first": 1}),
        ((1,), {"first": 2}),
        ((1,), {"second": 2}),
        ((1,), {"third": 2}),
        ((), {"second": 2, "first": 1}),
        ((), {"first": 1, "others": 2}),
    ],
)
def test_arguments_are_bound_as_inspect_binds_them(
    handler: Callable[..., Any], args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    with declared(handler, name="test.bound") as job_type:
        try:
            expected = inspect.signature(handler).bind(*args, **kwargs).arguments
        except TypeError as error:
            with pytest.raises(PayloadError, match=re.escape(f": {error}; got ")):
                job_type.bind(*args, **kwargs)
        else:
            others = expected.pop("others", {})
            assert job_type.bind(*args, **kwargs) == expected | others


@pytest.mark.parametrize(
    ("option", "end"),
    [
        ("delay", "got number, delay; 'delay' is an option of using(), before enqueue()"),
        ("eta", "got number, eta; 'run_at' is an option of using(), before enqueue()"),
        ("colour", "got number, colour"),
    ],
)
def test_an_option_among_the_arguments_is_named(option: str, end: str) -> None:
    def double(number: int) -> int:
        return 2 * number

    with declared(double, name="test.bound") as job_type:
        with pytest.raises(PayloadError) as refused:
            job_type.bind(**{"number": 1, option: 5})
        assert str(refused.value).endswith(f"; {end}")


@pytest.mark.django_db
def test_a_request_follows_a_queue_that_has_changed() -> None:
    assert noop.enqueue().max_attempts == 5
    queue = Queue.objects.get(name="default")
    queue.max_attempts = 7
    queue.save()
    assert noop.enqueue().max_attempts == 7
    assert Job.objects.latest("pk").max_attempts == 7


@pytest.mark.django_db
def test_headers_changed_between_two_jobs_apply_to_the_second() -> None:
    headers = {"trace": "a"}
    chosen = noop.using(headers=headers)
    assert chosen.enqueue().headers == {"trace": "a"}
    headers["trace"] = "b"
    assert chosen.enqueue().headers == {"trace": "b"}


@pytest.mark.django_db
def test_no_two_jobs_share_a_value_that_can_be_changed() -> None:
    with declared(plain, name="test.shared", backoff=Backoff.fixed(5)) as job_type:
        chosen = job_type.using(headers={"trace": {"id": 1}})
        one, other = chosen.enqueue(1), chosen.enqueue(1)
    for name in ("payload", "backoff", "headers"):
        assert getattr(one, name) == getattr(other, name)
        assert getattr(one, name) is not getattr(other, name)
    assert one.headers["trace"] is not other.headers["trace"]


@pytest.mark.django_db
@pytest.mark.parametrize("options", [{}, {"unique_for": 60}])
def test_a_duplicate_is_refused_if_that_is_asked_for(options: dict[str, Any]) -> None:
    strict = noop.using(idempotency_key="k", on_duplicate="raise", **options)
    held = enqueue_and_claim(idempotency_key="k", on_duplicate="raise", **options)
    with pytest.raises(DuplicateJob) as refused:
        strict.enqueue()
    assert str(refused.value) == (
        f"app.noop: job {held.id} (running) holds the idempotency key 'k' in queue 'default'"
    )
    assert (refused.value.job.pk, refused.value.job.deduplicated) == (held.id, True)
    assert isinstance(refused.value, EnqueueError)
    assert Job.objects.count() == 1
    assert noop.using(idempotency_key="other", on_duplicate="raise").enqueue().pk != held.id


@pytest.mark.django_db
def test_the_same_key_of_two_tenants_is_two_jobs_if_that_is_asked_for() -> None:
    keyed = bill_tenant.using(idempotency_key="k", key_scope="tenant")
    acme, globex = keyed.enqueue("acme"), keyed.enqueue("globex")
    plain = bill_tenant.using(idempotency_key="k").enqueue("acme")
    assert len({acme.pk, globex.pk, plain.pk}) == 3
    assert keyed.using(unique_for=60).enqueue("acme").pk == acme.pk
    assert keyed.using(on_duplicate="replace").enqueue("globex").pk == globex.pk
    held = r"holds the idempotency key 'k' in queue"
    with pytest.raises(DuplicateJob, match=held) as refused:
        keyed.using(on_duplicate="raise").enqueue("globex")
    assert refused.value.job.pk == globex.pk

    of_sql = run_sql(
        "SELECT django_jobs_enqueue('app.noop', tenant => 'acme',"
        " idempotency_key => 'acme' || chr(31) || 'k')"
    )
    assert of_sql == [(acme.pk,)]

    both = [{"tenant_id": "acme"}, {"tenant_id": "initech"}]
    many = bill_tenant.using(key_scope="tenant")
    first, second = many.enqueue_many(both, idempotency_keys=["k", "k"])
    assert first == acme.pk
    assert second not in {acme.pk, globex.pk, plain.pk}
    with pytest.raises(EnqueueError, match="key_scope needs an idempotency key"):
        many.enqueue_many(both)
    with pytest.raises(EnqueueError, match=r"payload\[0\]: app.noop: key_scope='tenant' needs"):
        noop.using(key_scope="tenant").enqueue_many([{}], idempotency_keys=["k"])


@pytest.mark.django_db
def test_a_full_queue_returns_the_job_with_the_key_of_the_tenant() -> None:
    keyed = bill_tenant.using(idempotency_key="k", key_scope="tenant")
    Queue.objects.filter(name="default").update(max_backlog=1)
    acme = keyed.enqueue("acme")
    assert keyed.enqueue("acme").pk == acme.pk
    with pytest.raises(QueueFull):
        keyed.enqueue("globex")


@pytest.mark.django_db
def test_a_duplicate_is_refused_by_each_way_to_enqueue_one() -> None:
    strict = noop.using(idempotency_key="k", on_duplicate="raise")
    first = strict.enqueue()
    for call in (
        async_to_sync(strict.aenqueue),
        lambda: enqueue("app.noop", idempotency_key="k", on_duplicate="raise"),
    ):
        with pytest.raises(DuplicateJob, match=f"job {first.pk} ") as refused:
            call()
    assert pickle.loads(pickle.dumps(refused.value)).job == first


@pytest.mark.django_db
def test_what_to_do_with_a_duplicate_needs_a_key_and_a_single_request() -> None:
    with pytest.raises(EnqueueError, match=r"app.noop: on_duplicate needs an idempotency key"):
        noop.using(on_duplicate="raise").enqueue()
    with pytest.raises(EnqueueError, match=r"app.noop: enqueue_many returns the ids of duplicates"):
        enqueue_many("app.noop", [{}], idempotency_keys=["k"], on_duplicate="raise")
    assert not Job.objects.exists()


def test_its_signature_says_what_to_write_in_place_of_a_signature_of_celery() -> None:
    assert [*add.signature.parameters] == ["first", "second"]
    with pytest.raises(TypeError, match=r"write enqueue\(...\), or .* Workflow"):
        add.signature(1)  # type: ignore[operator]


def test_a_large_payload_is_warned_of_while_debug_is_on(settings: Any) -> None:
    summarise.encoded_payload({"day": "x" * 900_000})
    settings.DEBUG = True
    with pytest.warns(RuntimeWarning, match="900,010 bytes; pass the id of a row, or Stored"):
        summarise.encoded_payload({"day": "x" * 900_000})
