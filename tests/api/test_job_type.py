"""What is prepared once for many jobs of a type changes nothing for any of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from django_jobs import Backoff, PayloadError
from django_jobs.models import Job, Queue
from tests.app.jobs import noop
from tests.factories import declared


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
