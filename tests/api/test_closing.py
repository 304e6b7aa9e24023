"""One verb pauses a queue, a schedule, a resource, a tenant or a job type, and one resumes it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from django_jobs import (
    OperationRefused,
    UnknownJobType,
    UnknownQueue,
    UnknownResource,
    pause,
    resume,
)
from django_jobs.maintenance.tasks import end_pauses
from django_jobs.models import Quarantine, Queue, Resource, Schedule, Tenant
from django_jobs.signals import worker_event
from tests.app.jobs import noop
from tests.factories import due_schedule, heard, make_user, register_worker, run_sql

pytestmark = pytest.mark.django_db

PERMISSIONS = {
    "queue": "pause_queue",
    "schedule": "pause_schedule",
    "resource": "pause_resource",
    "tenant": "pause_tenant",
    "job_type": "quarantine_job_type",
}


@pytest.fixture(params=PERMISSIONS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def name(kind: str) -> str:
    if kind == "schedule":
        return due_schedule().name
    if kind == "resource":
        return Resource.objects.create(name="stripe").name
    return {"queue": "default", "tenant": "acme", "job_type": noop.name}[kind]


def state(kind: str, name: str) -> tuple[bool, str, str]:
    """Whether it is paused, by whom and why."""
    if kind == "job_type":
        row: Any = Quarantine.objects.filter(job_type=name, lifted_at=None).first()
        return (False, "", "") if row is None else (True, row.by, row.reason)
    models: dict[str, Any] = {
        "queue": Queue, "schedule": Schedule, "resource": Resource, "tenant": Tenant
    }  # fmt: skip
    row = models[kind].objects.filter(name=name).first()
    if row is None:
        return False, "", ""
    by = getattr(row, "paused_by", "ada@web-1")
    return row.paused_at is not None, by if row.paused_at else "", row.paused_reason


def test_it_is_paused_once_and_resumed_once(kind: str, name: str) -> None:
    assert pause(kind, name, reason="until they answer", by="ada@web-1") is True
    assert state(kind, name) == (True, "ada@web-1", "until they answer")
    assert pause(kind, name, reason="another", by="bob") is False
    assert state(kind, name) == (True, "ada@web-1", "until they answer")
    assert resume(kind, name) is True
    assert state(kind, name) == (False, "", "")
    assert resume(kind, name) is False


def test_each_kind_has_a_permission(kind: str, name: str) -> None:
    nobody, user = make_user(name="nobody"), make_user(PERMISSIONS[kind])
    with pytest.raises(PermissionDenied):
        pause(kind, name, actor=nobody)
    assert pause(kind, name, actor=user, by="another") is True
    assert state(kind, name)[1] in ("olga", "ada@web-1")
    with pytest.raises(PermissionDenied):
        resume(kind, name, actor=nobody)
    assert resume(kind, name, actor=user) is True


def test_it_is_resumed_once_its_time_is_over(kind: str, name: str) -> None:
    assert pause(kind, name, until=timedelta(hours=1), by="ada@web-1") is True
    assert end_pauses() == 0
    assert state(kind, name)[0] is True
    end_now(kind)
    with heard(worker_event) as events:
        assert end_pauses() == 1
    assert state(kind, name) == (False, "", "")
    assert [(one["sender"], one["fields"]) for one in events] == [
        ("pause_ended", {"kind": kind, "name": name})
    ]
    assert end_pauses() == 0


def test_a_pause_without_an_end_does_not_get_that_of_the_one_before(kind: str, name: str) -> None:
    pause(kind, name, until=timedelta(hours=1))
    resume(kind, name)
    pause(kind, name)
    end_now(kind)
    assert end_pauses() == 0
    assert state(kind, name)[0] is True


def test_an_end_that_was_replaced_meanwhile_resumes_nothing(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another worker, or an operator, may change it between the look and the end."""
    pause(kind, name, until=timedelta(hours=1))
    monkeypatch.setattr("django_jobs.api.closing.ended_pauses", lambda: [(kind, name)])
    assert end_pauses() == 0
    assert state(kind, name)[0] is True


def test_a_schedule_that_is_deleted_meanwhile_stops_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause("queue", "default", until=timedelta(hours=1))
    end_now("queue")
    gone = [("schedule", "deleted"), ("queue", "default")]
    monkeypatch.setattr("django_jobs.api.closing.ended_pauses", lambda: gone)
    assert end_pauses() == 1


@pytest.mark.parametrize("until", [timedelta(0), timedelta(-1), timezone.now(), datetime.max])
def test_an_end_that_cannot_be_is_refused(until: Any) -> None:
    with pytest.raises(ValueError, match=r"has passed|has no time zone"):
        pause("queue", "default", until=until)
    with pytest.raises(ValueError, match="too far"):
        pause("queue", "default", until=timedelta.max)
    with pytest.raises(TypeError, match="an aware datetime or a timedelta"):
        pause("queue", "default", until="2h")  # type: ignore[arg-type]
    assert state("queue", "default") == (False, "", "")


def end_now(kind: str) -> None:
    """Let the pauses of a kind that have an end be over."""
    column = "until" if kind == "job_type" else "paused_until"
    table = "quarantine" if kind == "job_type" else kind
    run_sql(f"UPDATE django_jobs_{table} SET {column} = {column} - interval '2 hours'")


UNKNOWN = {
    "queue": (UnknownQueue, "no queue is named 'defautl'; did you mean 'default'?"),
    "schedule": (OperationRefused, "no schedule is named 'defautl'"),
    "resource": (UnknownResource, "no resource is named 'defautl'"),
    "job_type": (UnknownJobType, "no job type is named 'defautl'"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("verb", [pause, resume])
def test_a_name_that_nothing_has_is_refused(verb: Any, kind: str) -> None:
    error, text = UNKNOWN[kind]
    with pytest.raises(error) as caught:
        verb(kind, "defautl")
    assert str(caught.value).startswith(text)
    with pytest.raises(error):
        verb(kind, "a\0b")


@pytest.mark.parametrize("verb", [pause, resume])
def test_what_is_no_kind_and_no_name_is_an_error(verb: Any) -> None:
    with pytest.raises(ValueError, match="'queues' is no kind; did you mean 'queue'"):
        verb("queues", "default")
    with pytest.raises(TypeError, match="a queue is given by its name, not 7"):
        verb("queue", 7)


@pytest.mark.parametrize("wrong", ["", "a\0b", "x" * 201])
def test_what_can_be_no_tenant_is_refused(wrong: str) -> None:
    with pytest.raises(OperationRefused):
        pause("tenant", wrong)
    assert not Tenant.objects.exists()


def test_a_job_type_that_a_worker_alone_knows_is_paused() -> None:
    register_worker(job_types={"elsewhere.send": 1})
    assert pause("job_type", "elsewhere.send") is True
