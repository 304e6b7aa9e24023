"""Draining: a process, all of a command, all of a host."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from django.core.exceptions import PermissionDenied

from django_jobs.lifecycle.operations.jobs import stop_commands, stop_hosts
from django_jobs.models import Worker
from tests.factories import make_user, register_worker

pytestmark = pytest.mark.django_db


@dataclass
class Fleet:
    """Two commands on the host a, of which the first has two processes, and one on b with the
    process id of the first."""

    first: int
    sibling: int
    neighbour: int
    elsewhere: int
    ended: int


@pytest.fixture
def fleet() -> Fleet:
    places = [("a", 10), ("a", 10), ("a", 20), ("b", 10), ("a", 10)]
    ids = []
    for host, supervisor in places:
        ids.append(register_worker())
        Worker.objects.filter(pk=ids[-1]).update(host=host, supervisor_pid=supervisor)
    Worker.objects.filter(pk=ids[-1]).update(status="stopped")
    return Fleet(*ids)


def asked() -> set[int]:
    return set(Worker.objects.exclude(drain_requested_at=None).values_list("pk", flat=True))


def test_a_command_drains_with_all_its_processes_and_no_others(fleet: Fleet) -> None:
    result = stop_commands([fleet.first], actor=make_user("stop_worker"))
    assert asked() == {fleet.first, fleet.sibling}
    assert result.done == sorted(asked())


def test_a_host_drains_with_all_its_commands(fleet: Fleet) -> None:
    assert stop_hosts([fleet.first]).done == sorted(asked())
    assert asked() == {fleet.first, fleet.sibling, fleet.neighbour}


def test_what_drains_already_is_left_alone(fleet: Fleet) -> None:
    stop_commands([fleet.sibling])
    result = stop_hosts([fleet.neighbour])
    assert (result.done, result.refused) == ([fleet.neighbour], {})


def test_a_worker_of_an_older_release_drains_alone(fleet: Fleet) -> None:
    Worker.objects.update(supervisor_pid=None)
    assert stop_commands([fleet.first]).done == [fleet.first]
    assert asked() == {fleet.first}


def test_an_ended_worker_drains_nothing(fleet: Fleet) -> None:
    assert stop_hosts([fleet.ended]).refused == {fleet.ended: "it is stopped"}
    assert asked() == set()


@pytest.mark.parametrize("operation", [stop_commands, stop_hosts])
def test_a_drain_needs_its_permission(fleet: Fleet, operation: object) -> None:
    with pytest.raises(PermissionDenied):
        operation([fleet.first], actor=make_user("view_worker"))  # type: ignore[operator]
    assert asked() == set()
