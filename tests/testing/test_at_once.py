"""Jobs that run at once, in the process that enqueues them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.db.models.signals import post_delete
from django.test import TestCase
from pytest_django import Settings

from django_jobs import Workflow, registry
from django_jobs.lifecycle import notifying
from django_jobs.models import Job
from django_jobs.testing import JobFailed, immediate, run_jobs, travel
from tests.app import flow_jobs, jobs, kit_jobs
from tests.app.models import Effect

pytestmark = pytest.mark.django_db


def notes() -> list[str]:
    return list(Effect.objects.order_by("id").values_list("note", flat=True))


def status(job: Job) -> Any:
    job.refresh_from_db()
    return job.status


def test_a_job_runs_when_it_is_enqueued() -> None:
    with immediate():
        job = jobs.add.enqueue(2, 3)
        assert (status(job), job.result) == ("succeeded", 5)
    assert status(jobs.add.enqueue(2)) == "ready"


def test_many_jobs_and_what_they_enqueue_run_in_order() -> None:
    with immediate():
        jobs.write_effect.enqueue_many([{"note": "first"}, {"note": "second"}])
        kit_jobs.enqueue_elsewhere.enqueue("third")
        assert notes() == ["first", "second", "third"]


def test_a_workflow_runs_and_a_signal_continues_it() -> None:
    workflow = Workflow("kit.immediate")
    try:
        reserve = workflow.step(flow_jobs.reserve_stock)
        workflow.step(flow_jobs.apologise, after=workflow.wait("approval", after=reserve))
        with immediate():
            run = workflow.start(order_id=7)
            assert run.progress().ended == 1
            run.signal("approval", {"ok": True})
        run.refresh_from_db()
        assert run.status == "succeeded"
    finally:
        registry.forget_workflow("kit.immediate")


def test_a_job_with_gates_runs() -> None:
    with immediate():
        assert status(kit_jobs.one_at_a_time.enqueue("a")) == "succeeded"


def test_a_failure_raises_only_if_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kit_jobs.calls, "call", lambda: 1 / 0)
    with immediate():
        job = kit_jobs.effect_and_call.enqueue("one", "call")
        assert status(job) == "scheduled"
    with immediate(check=True), pytest.raises(JobFailed, match="division by zero"):
        kit_jobs.effect_and_call.enqueue("two", "call")
    travel(60)
    assert len(run_jobs()) == 2


def test_jobs_run_at_once_beside_those_of_run_jobs() -> None:
    job = kit_jobs.enqueue_elsewhere.enqueue("other")
    with immediate():
        run_jobs()
    assert (status(job), notes()) == ("succeeded", ["other"])


def test_an_async_caller_enqueues() -> None:
    async def enqueue() -> Job:
        return await kit_jobs.async_effect.aenqueue("async")

    with immediate(check=True):
        assert status(async_to_sync(enqueue)()) == "succeeded"


class ImmediateTests(TestCase):
    def test_a_job_runs_at_the_end_of_the_block_that_is_not_of_the_test(self) -> None:
        with immediate(), transaction.atomic():
            with transaction.atomic():
                job = jobs.write_effect.enqueue("job")
            Effect.objects.create(note="block")
            assert status(job) == "ready"
        assert (status(job), notes()) == ("succeeded", ["block", "job"])

    def test_a_block_without_a_savepoint_runs_it_at_once(self) -> None:
        with immediate(), transaction.atomic(savepoint=False), transaction.atomic():
            job = jobs.write_effect.enqueue("job")
            assert (status(job), notes()) == ("succeeded", ["job"])
        later = jobs.write_effect.enqueue("later")
        with transaction.atomic():
            pass
        assert status(later) == "ready"

    def test_a_job_of_a_deletion_runs(self) -> None:
        def enqueue(**kwargs: Any) -> None:
            jobs.write_effect.enqueue("job")

        Effect.objects.create(note="gone")
        post_delete.connect(enqueue, sender=Effect)
        try:
            with immediate():
                Effect.objects.all().delete()
        finally:
            post_delete.disconnect(enqueue, sender=Effect)
        assert notes() == ["job"]

    def test_a_block_that_is_rolled_back_runs_nothing(self) -> None:
        with immediate():
            with transaction.atomic():
                jobs.write_effect.enqueue("in vain")
                transaction.set_rollback(True)
            jobs.write_effect.enqueue("job")
        assert notes() == ["job"]

    def test_a_block_that_is_rolled_back_leaves_what_was_ready_before(self) -> None:
        earlier = jobs.write_effect.enqueue("earlier")
        with immediate():
            with transaction.atomic():
                jobs.write_effect.enqueue("in vain")
                transaction.set_rollback(True)
            with transaction.atomic():
                assert status(earlier) == "ready"
            assert status(earlier) == "ready"
            with transaction.atomic():
                jobs.write_effect.enqueue("job")
        assert notes() == ["earlier", "job"]


@pytest.mark.django_db(transaction=True)
def test_a_job_runs_after_the_commit_of_a_transaction() -> None:
    with immediate():
        with transaction.atomic():
            job = jobs.write_effect.enqueue("job")
            Effect.objects.create(note="block")
        assert (status(job), notes()) == ("succeeded", ["block", "job"])
        assert status(jobs.noop.enqueue()) == "succeeded"


def test_the_setting_does_the_same(settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "IMMEDIATE": True}
    assert status(jobs.noop.enqueue()) == "succeeded"
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "IMMEDIATE": False}
    assert status(jobs.noop.enqueue()) == "ready"
    assert notifying.run_at_once is None


def test_a_change_of_the_settings_does_not_end_a_block(settings: Settings) -> None:
    with immediate():
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "POLL_SECONDS": 2}
        assert status(jobs.add.enqueue(2)) == "succeeded"


def test_nothing_of_the_kit_is_imported_without_the_setting() -> None:
    code = """
import django, sys
django.setup()
from django_jobs.management.commands import jobworker
kit = sorted(name for name in sys.modules if name.startswith("django_jobs.testing."))
assert kit in ([], ["django_jobs.testing.failpoints"]), kit
"""
    environment = {"DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **environment})
