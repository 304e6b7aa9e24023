"""Payloads of older versions, and names of before."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs import PayloadError, enqueue, enqueue_many, job
from django_jobs.api import payload_problem, replay_problem
from django_jobs.models import Job
from tests.app.version_jobs import break_upgrade, greet
from tests.factories import declared, make_dead, run_sql


def explode(payload: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("name")


def test_a_payload_is_upgraded_step_by_step_and_stays_as_it_is() -> None:
    stored = {"name": "Ada Lovelace"}
    upgraded = greet.upgraded(stored, 1)
    assert upgraded == {"first": "Ada", "last": "Lovelace", "greeting": "Dear"}
    assert greet.upgraded({"first": "Ada", "last": "L"}, 2)["greeting"] == "Dear"
    assert stored == {"name": "Ada Lovelace"}


def test_a_payload_of_the_current_version_is_returned_unchanged() -> None:
    payload = {"first": "Ada", "last": "Lovelace"}
    assert greet.upgraded(payload, 3) is payload


@pytest.mark.parametrize(
    "payload, version, problem",
    [
        ({}, 4, "version 4 is newer than the handler's, 3"),
        ({"no": "name"}, 1, "the upgrade from version 1 raised KeyError: 'name'"),
        ([1], 3, "it is not a dict of arguments"),
        (None, 1, "it is not a dict of arguments"),
    ],
)
def test_a_payload_that_cannot_be_upgraded_is_refused_with_the_reason(
    payload: Any, version: int, problem: str
) -> None:
    with pytest.raises(PayloadError) as refusal:
        greet.upgraded(payload, version)
    assert problem in str(refusal.value)


def test_a_missing_or_invalid_upgrade_is_reported() -> None:
    with pytest.raises(PayloadError, match="there is no upgrade from version 2"):
        break_upgrade.upgraded({}, 2)
    with pytest.raises(
        PayloadError, match="the upgrade from version 3 gave a NoneType, not a dict"
    ):
        break_upgrade.upgraded({}, 3)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"version": 0}, "version is a whole number"),
        ({"version": 2.0}, "version is a whole number"),
        ({"version": 3, "upgrades": {1: explode}}, "the upgrade from version 2 to 3"),
        ({"version": 1, "upgrades": {1: explode}}, r"upgrades\[1\] makes version 2, but version=1"),
        ({"version": 2, "upgrades": {1: "explode"}}, r"upgrades\[1\] is a function"),
        ({"aliases": [7]}, "an alias is text, not 7"),
        ({"aliases": [""]}, "an alias is text of 1 to 200 characters"),
        ({"aliases": ["app.odd"]}, "the alias 'app.odd' is the present name"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(options: dict[str, Any], problem: str) -> None:
    def handler() -> None: ...

    with pytest.raises((TypeError, ValueError), match=problem):
        job(name="app.odd", **options)(handler)


@pytest.mark.parametrize(
    "job_type, version, payload, problem",
    [
        ("app.greet", 3, {"first": "Ada", "last": "L"}, None),
        ("app.greet", 1, {"name": "Ada L"}, None),
        ("app.old_name", 1, {"note": "x"}, None),
        ("app.gone", 1, {}, "no handler is registered for 'app.gone'"),
        ("app.greet", 9, {}, "its payload cannot be read: version 9 is newer"),
        ("app.greet", 1, {"who": "Ada"}, "its payload cannot be read: the upgrade from version 1"),
        ("app.greet", 3, {"name": "Ada"}, "missing a required argument"),
        ("app.greet", 3, ["Ada"], "its payload is not a dict of arguments"),
    ],
)
def test_payload_problem_names_the_problem_of_a_stored_payload(
    job_type: str, version: int, payload: Any, problem: str | None
) -> None:
    problem = payload_problem(job_type, version, payload)
    if problem is None:
        assert problem is None
    else:
        assert problem is not None
        assert problem in problem


def test_an_upgrade_may_return_invalid_arguments() -> None:
    def handler(**given: Any) -> None: ...

    with declared(handler, name="app.any", version=2, upgrades={1: lambda payload: {1: 2}}):
        assert payload_problem("app.any", 1, {}) is not None


@pytest.mark.django_db
def test_a_dead_job_of_an_older_version_is_replayed_if_upgradable() -> None:
    dead = make_dead()
    run_sql("UPDATE django_jobs_job SET job_type = 'app.greet', payload = '{\"name\": \"Ada L\"}'")
    assert replay_problem(Job.objects.get(pk=dead.pk)) is None
    run_sql("UPDATE django_jobs_job SET payload_version = 4")
    problem = replay_problem(Job.objects.get(pk=dead.pk))
    assert problem == "its payload cannot be read: version 4 is newer than the handler's, 3"


@pytest.mark.django_db
def test_a_job_enqueued_by_an_old_name_has_the_new_one() -> None:
    assert enqueue("app.old_name", {"note": "x"}).job_type == "app.present_name"
    enqueue_many("app.older_name", [{"note": "y"}])
    assert set(Job.objects.values_list("job_type", flat=True)) == {"app.present_name"}
