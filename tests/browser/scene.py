"""A shop on a busy afternoon: what an operator would find, in rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from django_jobs import registry
from django_jobs.domain.errors import ErrorReport
from django_jobs.domain.outcomes import Failed, Succeeded
from django_jobs.domain.replay_plan import ReplayPlan
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.claiming import claim
from django_jobs.lifecycle.operations import bulk, quarantines
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.settling import Ending, settle
from django_jobs.models import BulkOperation, Job, Progress, Queue, Resource, Schedule, Tenant, Tick
from tests.factories import fold_runs, look, run_sql

from .history import KINDS, write_history

QUEUES: dict[str, dict[str, Any]] = {
    "critical": {"strict": True},
    "default": {},
    "emails": {"max_concurrency": 20},
    "media": {"max_concurrency": 3},
    "payments": {"max_concurrency": 10},
    "webhooks": {"max_backlog": 5000},
}
CODE = "4f2a91c"

TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/crm/jobs.py", line 41, in push_contact
    client.put(f"/contacts/{{customer_id}}", json=contact)
  File "/srv/shop/crm/client.py", line 88, in put
    return self._send("PUT", path, **options)
{error}
"""

FAILURES: tuple[tuple[str, int, str, str, str, bool], ...] = (
    ("crm.push_contact", 18, "TimeoutError", "crm.example did not answer in 30 s", "", True),
    ("crm.push_contact", 7, "KeyError", "'email'", "", True),
    ("webhooks.deliver", 9, "requests.HTTPError", "503 for hooks.partner.example", "503", False),
    ("webhooks.deliver", 4, "requests.HTTPError", "410 for old.partner.example", "410", True),
    ("billing.charge_card", 5, "stripe.CardError", "Your card was declined.", "402", True),
)
"""Job type, how many, the error, its code, and whether the job dies of it."""

SAMPLES = """
INSERT INTO django_jobs_backlogsample (queue, taken_at, ready, running, runs, drain_seconds)
SELECT queue.name, now() - make_interval(mins => ago),
    (queue.number * 12 + 30 * abs(sin(ago / 9.0 + queue.number)))::int, queue.number, 0, NULL
FROM unnest(%s::text[]) WITH ORDINALITY AS queue (name, number), generate_series(1, 60) AS ago
ON CONFLICT DO NOTHING
"""


def make_scene(history: int = 2000) -> dict[str, int]:
    """Fill the empty tables with an afternoon of a shop, of which ``history`` jobs have ended in
    the last hour. Returns the ids of some jobs by what they show."""
    _queues_and_limits()
    fleet = _fleet()
    write_history(history, 3600, list(fleet.values()))
    _failures(fleet["web-1"])
    found = {**_held(), **_backlog(fleet)}
    _limits_in_use(fleet["web-1"])
    _schedules()
    _workflows()
    _operations()
    run_sql(SAMPLES, [list(QUEUES)])
    fold_runs()
    return found


def _operations() -> None:
    """A replay plan in its last wave, which left some."""
    plan = ReplayPlan()
    failed = Job.objects.dead().filter(job_type="crm.push_contact").latest("pk")
    terms = {"job_type": failed.job_type, "error": failed.fingerprint}
    asked = bulk.start("replay", terms, plan=plan, by="ada", reason="up")
    dead = Job.objects.dead().order_by("pk").values_list("pk", flat=True)
    BulkOperation.objects.filter(pk=asked.pk).update(
        status="running",
        matched=1204,
        done=411,
        left=3,
        succeeded=402,
        failed=5,
        reasons={"job … (ready) holds its idempotency key …": {"count": 3, "jobs": list(dead[:3])}},
        progress=asked.progress
        | {"sent": 411, "awaited": [[pk, 1] for pk in dead[3:7]], "outcomes": "..x"},
        started_at=Now() - timedelta(seconds=58),
    )


def _queues_and_limits() -> None:
    Queue.objects.all().delete()
    Queue.objects.seed(QUEUES, "default")
    Queue.objects.forget_recent()
    Queue.objects.filter(name="critical").update(slo_seconds=5)
    opened = {"breaker_state": "open", "breaker_reason": "20 failures in 60 s"}
    opened |= {"breaker_changed_at": Now() - timedelta(seconds=14)}  # type: ignore[dict-item]
    Resource.objects.create(name="maps.example", rate=5, rate_seconds=1, **opened)
    Resource.objects.create(
        name="stripe", max_concurrency=10, rate=50, breaker_failures=20, retry_budget=0.2
    )
    Resource.objects.forget_recent()
    Tenant.objects.create(name="acme", weight=3)
    Tenant.objects.create(name="globex", max_concurrency=5)


def _fleet() -> dict[str, int]:
    """Three live workers, of which one drains, and one whose lease has run out."""
    known = registry.versions()
    fleet = {}
    for name, host, threads, lease, version in (
        ("web-1", "app-01.shop.example", 12, 900.0, CODE),
        ("web-2", "app-02.shop.example", 12, 900.0, CODE),
        ("batch-1", "batch-01.shop.example", 4, 900.0, "91c03be"),
        ("web-0", "app-00.shop.example", 12, -40.0, "91c03be"),
    ):
        fleet[name] = workers.register(
            workers.WorkerInfo(
                name=name,
                host=host,
                pid=4000 + len(fleet),
                queues=list(QUEUES),
                threads=threads,
                job_types=known,
                lease=lease,
                code_version=version,
            )
        )
    job_operations.stop_workers([fleet["batch-1"]])
    return fleet


def _failures(worker: int) -> None:
    for job_type, count, kind, message, code, dies in FAILURES:
        handler = registry.get(job_type)
        handler.using(headers={"trace": "shop-7"}).enqueue_many(
            [_payload(job_type, 40 + n) for n in range(count)]
        )
        text = TRACEBACK.format(error=f"{kind}: {message}")
        group = ErrorReport.plain(f"{job_type} {kind} {code}", "").fingerprint
        report = replace(ErrorReport.plain(kind, message, text), code=code, fingerprint=group)
        held = _claimed(worker, handler.queue, job_type, count)
        settle([Ending(job, Failed(error=report, final=dies)) for job in held])
    run_sql(
        "UPDATE django_jobs_job AS job SET finished_at = finished_at - place * interval '9 min', "
        "created_at = created_at - interval '1 day' FROM (SELECT id, row_number() OVER "
        "(ORDER BY id DESC) AS place FROM django_jobs_job WHERE status = 'dead') AS dead "
        "WHERE job.id = dead.id AND status = 'dead'"
    )
    run_sql(
        "UPDATE django_jobs_run AS run SET finished_at = job.finished_at, "
        "started_at = job.finished_at - interval '2 s', claimed_at = job.finished_at - "
        "interval '2.1 s', available_at = job.finished_at - interval '3 s' "
        "FROM django_jobs_job AS job WHERE job.id = run.job_id AND job.status = 'dead'"
    )


def _payload(job_type: str, number: int) -> dict[str, Any]:
    return {
        "mail.send_receipt": {"customer_id": number, "order_id": 100_000 + number},
        "mail.send_digest": {"customer_id": number},
        "crm.push_contact": {"customer_id": number, "tags": ["newsletter"]},
        "search.index_page": {"page": number},
        "webhooks.deliver": {
            "customer_id": number,
            "event": "order.paid",
            "url": "https://hooks.partner.example/in",
        },
        "media.transcode": {"video": f"tour-{number}.mov"},
        "billing.charge_card": {"customer_id": number, "order_id": number, "cents": 4200},
        "reports.export": {"month": f"2026-{1 + number % 12:02}"},
    }[job_type]


def _claimed(worker: int, queue: str, job_type: str, limit: int) -> list[Any]:
    types = {job_type: registry.versions()[job_type]}
    if registry.get(job_type).resources:
        run_sql("UPDATE django_jobs_job SET status = 'ready' WHERE status = 'blocked'")
    limited = QUEUES[queue].get("max_concurrency") is not None
    return claim(queue, worker=worker, job_types=types, limit=limit, limited=limited)


def _held() -> dict[str, int]:
    """A queue that a person paused, and a job type in quarantine."""
    registry.get("webhooks.deliver").enqueue_many(
        [_payload("webhooks.deliver", 300 + n) for n in range(35)]
    )
    paused = Job.objects.filter(queue="webhooks", status="ready").order_by("-pk")[0].pk
    job_operations.pause(["webhooks"], reason="partner asked for an hour of peace")
    run_sql("UPDATE django_jobs_queue SET paused_at = paused_at - interval '26 min 40 s'")
    run_sql(
        "UPDATE django_jobs_job SET available_at = available_at - interval '26 min 40 s'"
        " WHERE queue = 'webhooks' AND status = 'ready'"
    )
    quarantines.quarantine("reports.export", reason="fills the disk")
    export = registry.get("reports.export").enqueue(month="2026-10").pk
    quarantines.block("default")
    return {"paused": paused, "quarantined": export}


def _backlog(fleet: dict[str, int]) -> dict[str, int]:
    """Running jobs, ready ones behind a full limit, scheduled ones, and one of an unknown type."""
    many = {"mail.send_receipt": 90, "search.index_page": 140, "media.transcode": 25}
    for job_type, count in many.items():
        registry.get(job_type).enqueue_many([_payload(job_type, n) for n in range(count)])
    running = []
    for worker, queue, job_type, count in (
        ("web-1", "media", "media.transcode", 2),
        ("web-2", "media", "media.transcode", 1),
        ("web-1", "emails", "mail.send_receipt", 4),
        ("web-2", "default", "search.index_page", 5),
    ):
        running += _claimed(fleet[worker], queue, job_type, count)
    now = timezone.now()
    for number, held in enumerate(running):
        began = now - timedelta(seconds=[1340, 700, 415, 2][min(number, 3)])
        Job.objects.filter(pk=held.id).update(started_at=began, claimed_at=began)
    Progress.objects.create(
        job_id=running[0].id, attempt=1, fraction=0.62, note="frame 8,120", reported_at=now
    )
    receipt = registry.get("mail.send_receipt")
    done = receipt.using(priority=100).enqueue(customer_id=42, order_id=100_042).pk
    (held,) = _claimed(fleet["web-1"], "emails", receipt.name, 1)
    assert held.id == done
    settle([Ending(held, Succeeded(result='{"message": "250 OK"}'))])
    waiting = Job.objects.filter(queue="media", status="ready").latest("pk").pk
    customer = registry.get("crm.push_contact").using(delay=5400, idempotency_key="contact-42")
    scheduled = customer.enqueue(customer_id=42).pk
    registry.get("mail.send_digest").using(delay=86_400).enqueue_many(
        [_payload("mail.send_digest", n) for n in range(60)]
    )
    retrying = Job.objects.filter(status="scheduled", failures__gt=0).latest("pk").pk
    unknown = registry.get("crm.push_contact").enqueue(customer_id=7).pk
    Job.objects.filter(pk=unknown).update(job_type="crm.push_deal")
    return {
        "running": running[0].id,
        "limited": waiting,
        "scheduled": scheduled,
        "retrying": retrying,
        "unknown": unknown,
        "succeeded": done,
        "dead": Job.objects.dead().latest("pk").pk,
    }


def _limits_in_use(worker: int) -> None:
    """Jobs of two tenants that hold a resource, and others that wait for it."""
    charge = registry.get("billing.charge_card")
    for tenant, waiting, taken in (("acme", 14, 7), ("globex", 41, 3)):
        ids = charge.using(tenant=tenant, priority=-5).enqueue_many(
            [_payload(charge.name, 700 + n) for n in range(waiting + taken)]
        )
        Job.objects.filter(pk__in=ids[:taken]).update(status="ready")
    known = registry.versions()
    for held in claim("payments", worker=worker, job_types=known, limit=7, limited=True):
        began = timezone.now() - timedelta(seconds=3 + held.id % 5)
        Job.objects.filter(pk=held.id).update(started_at=began, claimed_at=began)
    run_sql(
        "UPDATE django_jobs_resource SET recent_starts = 240, recent_retries = 26, tokens = 12,"
        " counted_at = now(), refilled_at = now() WHERE name = 'stripe'"
    )
    run_sql(
        "INSERT INTO django_jobs_resourceoutcome (resource, failed, happened_at) SELECT 'stripe',"
        " true, now() - n * n * interval '1 s' FROM generate_series(1, 7) AS n"
    )


def _schedules() -> None:
    hour_ago = timezone.now() - timedelta(hours=1)
    plans: tuple[dict[str, Any], ...] = (
        {"name": "nightly export", "job_type": "reports.export", "cron": "15 2 * * *",
         "timezone": "Europe/Berlin", "payload": {"month": "2026-10"}},
        {"name": "digest on weekdays", "job_type": "mail.send_digest", "cron": "0 8 * * 1-5",
         "timezone": "America/New_York", "payload": {"customer_id": 1}},
        {"name": "reindex", "job_type": "search.index_page", "every": 900.0,
         "payload": {"page": 1}},
        {"name": "contacts", "job_type": "crm.push_contact", "cron": "*/5 * * * *",
         "payload": {"customer_id": 2}},
        {"name": "old import", "job_type": "crm.push_contact", "cron": "0 0 1 * *",
         "enabled": False, "payload": {"customer_id": 3}},
    )  # fmt: skip
    for plan in plans:
        schedule = Schedule.objects.create(starts_at=hour_ago, **plan)
        Tick.objects.create(
            schedule=schedule,
            due_at=hour_ago,
            outcome="fired",
            late_seconds=0.2,
            created_at=hour_ago,
            job_id=Job.objects.earliest("pk").pk,
        )
    look()


def _workflows() -> None:
    fulfil = registry.workflow("orders.fulfil")
    assert fulfil is not None
    for order in range(3):
        fulfil.start(order_id=100_000 + order)


__all__ = ["KINDS", "make_scene"]
