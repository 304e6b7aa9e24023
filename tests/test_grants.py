"""The rights of docs/connections.md are enough, each role having those alone."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connection, transaction
from pytest_django import Settings

from django_jobs import Stored, Workflow, cancel, chain, queue_pressure, registry
from django_jobs.doctor.examination import diagnose
from django_jobs.domain.admission import FairShares
from django_jobs.domain.outcomes import Lost, Succeeded
from django_jobs.lifecycle import progress, reaping
from django_jobs.lifecycle.gates.admission import admit
from django_jobs.lifecycle.operations import bulk, quarantines, workflows
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.step_insert import NewStep
from django_jobs.lifecycle.workflows.spawning import add_next, new_run_id
from django_jobs.maintenance.bulk_operations import run_chunk
from django_jobs.maintenance.history import Partitions
from django_jobs.maintenance.retention import Retention, StoredFiles
from django_jobs.maintenance.tasks import sample_backlogs
from django_jobs.metrics.exposition import render
from django_jobs.models import (
    Backfill,
    BulkOperation,
    DeadLetter,
    Effect,
    Job,
    Overview,
    Quarantine,
    Queue,
    Resource,
    Run,
    Schedule,
    Tenant,
    Tick,
    Worker,
    WorkflowDefinition,
    WorkflowRun,
)
from tests.admin.walking import Page, change_url, list_url
from tests.app.file_jobs import count_bytes
from tests.app.gate_jobs import refund_payment, transfer_funds
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    due_schedule,
    enqueue_and_claim,
    failure,
    fold_runs,
    look,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.throwaway import Project, fresh_database
from tests.workflows import start_graph

CONNECTIONS = (Path(__file__).resolve().parent.parent / "docs" / "connections.md").read_text()
RIGHTS = CONNECTIONS.split("## Rights in the database")[1].split("\n## ")[0]
GRANTS = "".join(re.findall(r"```sql\n(.*?)```", RIGHTS, re.DOTALL)).split(";")
CONTRIB = (
    *("auth_user", "auth_user_groups", "auth_user_user_permissions", "auth_group"),
    *("auth_group_permissions", "auth_permission", "django_session", "django_admin_log"),
    "django_content_type",
)
CONSOLE = (
    Resource,
    Tenant,
    Overview,
    Job,
    DeadLetter,
    Run,
    Queue,
    Worker,
    Schedule,
    Tick,
    Backfill,
    Quarantine,
    WorkflowDefinition,
    WorkflowRun,
    BulkOperation,
)
STARTING = (
    "SELECT, INSERT ON django_jobs_workflowrun, django_jobs_dependency",
    "SELECT, INSERT, UPDATE ON django_jobs_workflowdefinition",
)


def granting(role: str, name: str) -> str:
    """SQL that makes ``name`` with the rights of the page's ``role``."""
    ours = [grant.removesuffix(f" TO {role}") for grant in GRANTS if grant.endswith(f" TO {role}")]
    assert ours
    return ";".join((f"CREATE ROLE {name}", *(f"{grant} TO {name}" for grant in ours)))


@contextmanager
def acting_as(role: str, more: str = "") -> Iterator[str]:
    """Within this transaction, with the rights of ``role`` alone."""
    name = f"{role}_{uuid.uuid4().hex[:8]}"
    run_sql(granting(role, name))
    if more:
        for rights in more.split(";"):
            run_sql(f"GRANT {rights} TO {name}")
    run_sql(f"SET LOCAL ROLE {name}")
    yield name
    run_sql("RESET ROLE")


MEMORY = "django.core.files.storage.InMemoryStorage"
STORING = "SELECT, INSERT, UPDATE ON django_jobs_storedfile"


@pytest.mark.django_db
def test_files_need_one_more_table(settings: Settings) -> None:
    settings.STORAGES = settings.STORAGES | {"jobs": {"BACKEND": MEMORY}}
    settings.DJANGO_JOBS = settings.DJANGO_JOBS | {"STORAGE": {"alias": "jobs"}}
    assert f"`{STORING}`" in " ".join(RIGHTS.split())
    with acting_as("site", STORING):
        made = count_bytes.enqueue(Stored(b"x"))
        count_bytes.enqueue(**made.payload)
    Job.objects.all().delete()
    with acting_as("worker"):
        assert StoredFiles().run_once() == 2


@pytest.mark.django_db
def test_the_role_of_a_site_may_only_enqueue() -> None:
    Resource.objects.create(name="stripe")
    with acting_as("site"):
        job = noop.enqueue()
        keyed = noop.using(idempotency_key="k")
        assert keyed.enqueue() == keyed.enqueue()
        assert noop.using(delay=5).enqueue().status == "scheduled"
        assert noop.using(resources="stripe", tenant="acme").enqueue().status == "blocked"
        assert len(noop.enqueue_many([{}] * 3)) == 3
        assert len(noop.enqueue_many([{}] * 2, idempotency_keys=["k", "l"])) == 2
        unique = noop.using(unique_for=60)
        assert not unique.using(idempotency_key="u").enqueue().deduplicated
        assert len(unique.enqueue_many([{}] * 3, idempotency_keys=["k", "u", "v"])) == 3
        forbidden: list[Callable[[], Any]] = [
            lambda: cancel(job.pk),
            lambda: run_sql("TABLE django_jobs_run"),
        ]
        for call in forbidden:
            with pytest.raises(ProgrammingError, match="permission denied"), transaction.atomic():
                call()
    with acting_as("site", "UPDATE ON django_jobs_job_live;SELECT ON django_jobs_receipt"):
        assert job.signal("approval")
    with acting_as("site", "UPDATE ON django_jobs_job, django_jobs_job_live"):
        assert cancel(job.pk)
    with acting_as("site", "SELECT ON django_jobs_run;USAGE ON SEQUENCE django_jobs_run_id_seq"):
        assert queue_pressure("default").ready > 0
    start_again = "SELECT, DELETE ON django_jobs_progress, django_jobs_receipt"
    with acting_as("site", f"UPDATE ON django_jobs_job_live;{start_again}"):
        for options in ({}, {"unique_for": 60}):
            last = keyed.using(on_duplicate="replace", **options)
            assert last.enqueue().pk == last.enqueue().pk
    Queue.objects.filter(name="default").update(max_backlog=1, on_full="drop_lowest")
    Queue.objects.forget_recent()
    with acting_as("site", "UPDATE ON django_jobs_job, django_jobs_job_live"):
        for unique in (noop, noop.using(idempotency_key="u", unique_for=60)):
            assert unique.enqueue().status == "cancelled"


@pytest.mark.django_db
def test_the_role_of_a_worker_may_do_everything_workers_do(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"RETENTION": {"runs": "30d"}}
    Resource.objects.create(name="stripe", breaker_failures=1)
    with acting_as("worker"):
        worker = register_worker()
        refund_payment.enqueue_many([{"payment_id": number} for number in range(3)])
        for _ in range(2):
            admit({"default": 1}, FairShares())
            for held in claim_ready(worker):
                settle_one(held, failure())
        assert Resource.objects.get().breaker_state == "open"
        settle_one(enqueue_and_claim(worker=worker), Succeeded(result="1"))
        settle_one(enqueue_and_claim(worker=worker), failure())
        settle_one(enqueue_and_claim(queue="emails", worker=worker), failure(final=True))
        held = enqueue_and_claim(worker=worker)
        reaping.recover_process(worker, {held.fence: Lost(reason="SIGKILL")}, reason="SIGKILL")
        due_schedule()
        look()
        quarantines.quarantine("app.add", reason="why not")
        quarantines.lift("app.add")
        job_operations.pause(["bulk"])
        job_operations.resume(["bulk"])
        noop.enqueue_many([{}] * 3)
        calling, *others = claim_ready(register_worker())
        assert len(others) >= 2
        assert progress.hold(calling, "order-7", 0.0) is None
        progress.free_effect(calling, "order-7")
        assert progress.store_effect(calling, "order-7", 0.0, "1") == "1"
        run_sql(
            "UPDATE django_jobs_job SET finished_at = now() - interval '1 year'"
            " WHERE finished_at IS NOT NULL"
        )
        for command in ("jobstatus", "jobreplay --queue emails", "jobschedule list", "jobprune"):
            call_command(*command.split(), stdout=StringIO())
        Retention(budget=60).run_once()
        assert not Effect.objects.exists()
        Partitions(budget=60).run_once()
        fold_runs()
        assert sample_backlogs()
        bulk.start("cancel", {"queue": "default"})
        assert run_chunk()
        assert BulkOperation.objects.get().status == "completed"
        assert b"django_jobs_jobs" in render()[1]


@pytest.mark.django_db
def test_a_site_that_calls_at_the_end_needs_what_the_page_says() -> None:
    calling = (
        STARTING[0],
        "UPDATE ON django_jobs_job_live",
        "USAGE ON SEQUENCE django_jobs_workflowrun_id_seq",
    )
    for rights in calling:
        assert f"`{rights}`" in " ".join(RIGHTS.split())
    with acting_as("site", ";".join(calling)):
        call = registry.get("django_jobs.callback")
        after = NewStep(name="callback", new=call.request(), payload="{}", others=1)
        add_next(noop.enqueue().pk, "job", after)
    assert WorkflowRun.objects.get().status == "running"


@pytest.mark.django_db
def test_runs_of_workflows_need_no_other_rights() -> None:
    runs = [start_graph({"a": "", "b": "a", "sorry": "-a"}) for _ in range(3)]
    with acting_as("worker"):
        for held in claim_ready(register_worker()):
            settle_one(held, failure(final=True))
    with acting_as("console"):
        assert workflows.cancel([runs[0].pk]).done
        assert workflows.retry([one.pk for one in runs[:2]], check=lambda job: None).done
        assert workflows.skip(runs[2].pk, "a").done
        assert workflows.signal(runs[1].pk, "a", name="any").done
    with acting_as("worker"):
        while ready := claim_ready(register_worker()):
            for held in ready:
                settle_one(held, Succeeded())
        run_sql("UPDATE django_jobs_workflowrun SET finished_at = now() - interval '1 year'")
        Retention(budget=60).run_once()
    assert not Job.objects.exists()


@pytest.fixture
def flow() -> Iterator[Workflow]:
    flow = Workflow("test.flow")
    flow.step(noop)
    yield flow
    registry.forget_workflow("test.flow")


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["site", "worker", "console"])
def test_these_roles_may_start_workflows(flow: Workflow, role: str) -> None:
    assert all(f"`{rights}`" in " ".join(RIGHTS.split()) for rights in STARTING)
    with acting_as(role, ";".join(STARTING) if role == "site" else ""):
        assert flow.start().steps.count() == 1
        assert chain(noop, noop).start().steps.count() == 2


@pytest.mark.django_db
def test_the_role_of_a_worker_may_run_the_doctor() -> None:
    noop.enqueue()
    with acting_as("worker") as role:
        (sessions,) = diagnose().not_examined
    assert sessions.ids == ("django_jobs.D111",)
    assert f"GRANT pg_monitor TO {role};" in sessions.reason


@pytest.mark.django_db
@pytest.mark.parametrize("role", ["site", "console"])
def test_a_role_with_fewer_rights_gets_what_it_may_see_from_the_doctor(role: str) -> None:
    noop.enqueue()
    run_sql("ALTER TABLE django_jobs_job_live SET (autovacuum_enabled = off)")
    with acting_as(role):
        diagnosis = diagnose()
    assert "django_jobs.D103" in [one.id for one in diagnosis.findings]
    for missing in diagnosis.not_examined:
        assert "pg_monitor" in missing.reason or "needs a right" in missing.reason


@pytest.mark.django_db
def test_the_role_of_a_worker_may_spawn() -> None:
    with acting_as("worker"):
        assert new_run_id()


@pytest.mark.django_db
def test_the_console_shows_and_changes_what_it_offers(client: Any, admin_user: Any) -> None:
    dead, waiting = make_dead(), noop.using(delay=60).enqueue()
    schedule = due_schedule()
    look()
    running = enqueue_and_claim(add, 1)
    stripe, acme = Resource.objects.create(name="stripe"), Tenant.objects.create(name="acme")
    Resource.objects.create(name="ledger")
    blocked = transfer_funds.enqueue(1, "acme")
    start_graph({"a": "", "b": "a"})
    quarantines.quarantine("app.add", reason="why not")
    Queue.objects.update(slo_seconds=30)
    client.force_login(admin_user)
    page = Page(client)
    with acting_as("console", f"SELECT, INSERT, UPDATE, DELETE ON {', '.join(CONTRIB)}"):
        for model in CONSOLE:
            page.text(list_url(model))
            for row in model._default_manager.all()[:2] if model is not Overview else ():
                page.text(change_url(model, row.pk))
        page.act(DeadLetter, "replay_jobs", dead.pk, reason="again")
        begun = {"begin": 1, "terms": '{"status": "dead"}', "first": 1, "then": 1, "rate": 1}
        page.client.get("/admin/django_jobs/bulkoperation/plan/?status=dead")
        page.client.post("/admin/django_jobs/bulkoperation/plan/", {**begun, "most_failed": 9})
        page.act(BulkOperation, "stop_operations", BulkOperation.objects.get().pk)
        page.act(Job, "run_jobs_now", waiting.pk)
        page.act(Job, "reprioritize_jobs", waiting.pk, priority="5")
        page.act(Job, "cancel_jobs", dead.pk)
        page.act(Job, "inspect_jobs", running.id)
        page.text(change_url(Job, running.id))
        page.act(Schedule, "run_schedules_now", schedule.pk)
        page.act(Worker, "stop_workers", *Worker.objects.values_list("pk", flat=True))
        page.act(Queue, "pause_queues", Queue.objects.get(name="bulk").pk)
        page.act(Quarantine, "lift_quarantines", Quarantine.objects.get().pk)
        page.act(Resource, "pause_resources", stripe.pk)
        page.act(Resource, "open_breakers", stripe.pk)
        page.act(Tenant, "pause_tenants", acme.pk)
        page.client.post(f"/admin/django_jobs/tenant/{acme.pk}/delete/", {"post": "yes"})
        page.text(change_url(Job, blocked.pk))
    assert not Tenant.objects.exists()
    stripe.refresh_from_db()
    assert (stripe.paused, stripe.breaker_state) == (True, "open")
    statuses = dict(Job.objects.values_list("pk", "status"))
    assert (statuses[dead.pk], statuses[waiting.pk]) == ("cancelled", "ready")


ASK = """shell -c "from shop.jobs import greet
greet.enqueue('Al'); greet.enqueue('Bo', fail=True)" """
LOOK = """shell -c "from django_jobs.models import Job
print(sorted(Job.objects.values_list('status', flat=True)))" """


@pytest.mark.django_db
def test_jobworker_runs_with_the_rights_of_its_role(tmp_path: Path) -> None:
    name = f"worker_{uuid.uuid4().hex[:8]}"
    with fresh_database() as database:
        made = Project(tmp_path, database).manage("migrate -v0", ASK)
        assert made.returncode == 0, made.stderr
        server = {**connection.get_connection_params(), "dbname": database["NAME"]}
        with psycopg.connect(**server, autocommit=True) as owner:
            owner.execute(granting("worker", name))  # type: ignore[arg-type]
            try:
                options = {**database["OPTIONS"], "assume_role": name}
                limited = Project(tmp_path, {**database, "OPTIONS": options})
                ran = limited.manage("jobworker --burst", LOOK)
            finally:
                owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")  # type: ignore[arg-type]
    assert ran.returncode == 0, ran.stderr
    assert "['dead', 'succeeded']" in ran.stdout
    assert "database_error" not in ran.stderr
