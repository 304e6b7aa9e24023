"""Some seventy scenes, and what each reader says of them today.

A scene is a method that makes its rows. There is one worker, ``web-1``, with two threads, which
serves all queues. The docstring has a line for each thing that a reader says: ``why`` of the job
that is returned, with the gates that hold it, or ``-``; ``doctor`` with the number of the finding;
``overview``, the first page of the admin, with the state of the problem; ``status`` for
``jobstatus --check``; ``metrics``, those samples of a scrape that alert rules read and that differ
from a scrape without jobs; and ``alerts``, which fire if it stays so. A reader without a line says
that all is well. ``# disagree:`` is where readers contradict each other, or one is silent.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from django_jobs import schedule
from django_jobs.api.generations import GENERATION, MANY
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.workflows import WAIT
from django_jobs.lifecycle import workers
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.operations import limits, quarantines
from django_jobs.lifecycle.operations import schedules as schedule_operations
from django_jobs.models import Job, Queue, Receipt, Resource, Schedule, Tenant, Worker, WorkerStatus
from tests.app.gate_jobs import bill_tenant, charge_account, refund_payment
from tests.app.jobs import add, noop
from tests.factories import (
    claim_ready,
    copies_of,
    due_schedule,
    enqueue_and_claim,
    failure,
    fold_runs,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)
from tests.lifecycle.operations.test_signals import waiting_for
from tests.lifecycle.test_opening import DEAD, finish
from tests.workflows import saga, start_graph, step

HOURS = 2.5 * 3_600
"""An age beyond all thresholds, and a lease that lasts."""
MINUTES = 15 * 60.0
"""An age beyond those of minutes."""


def set_up() -> None:
    """What is there in each scene: a worker that has just sent its heartbeat, for an hour."""
    queues = tuple(Queue.objects.values_list("name", flat=True))
    register_worker("web-1", lease=HOURS, threads=2, queues=queues)
    run_sql("UPDATE django_jobs_worker SET heartbeat_at = now() + '1 h'")
    run_sql("UPDATE django_jobs_worker SET schedules_seen_at = heartbeat_at")
    fold_runs()
    run_sql("UPDATE django_jobs_runwatermark SET reached_at = now() + '1 h'")


def web() -> int:
    """The worker that is there."""
    return Worker.objects.get(name="web-1").pk


def no_workers() -> None:
    run_sql("DELETE FROM django_jobs_worker")


def move_back(table: str, column: str, seconds: float, where: str = "true") -> None:
    """Let it have happened so long ago."""
    run_sql(
        f"UPDATE django_jobs_{table} SET {column} = now() - make_interval(secs => %s)"
        f" WHERE {column} IS NOT NULL AND {where}",
        [seconds],
    )


def run_for(seconds: float, worker: int | None = None) -> Job:
    """A job that has run for so long."""
    held = enqueue_and_claim(add, 1, worker=worker or web())
    move_back("job", "claimed_at", seconds, f"id = {held.id}")
    return Job.objects.get(pk=held.id)


def ready_since(seconds: float) -> Job:
    """A job that has waited for so long."""
    job = noop.enqueue()
    move_back("job", "available_at", seconds, f"id = {job.pk}")
    return job


def with_resource(**fields: Any) -> Job:
    """A job that waits for a resource of this kind."""
    Resource.objects.create(name="stripe", **fields)
    return refund_payment.enqueue(1)


class Workers:
    def healthy(self) -> Job:
        """why -: Nothing holds it: a worker starts it in the next moment.
        metrics jobs{default,ready} 1"""
        return noop.enqueue()

    def no_worker_and_jobs_are_ready(self) -> Job:
        """why workers: No worker is alive.
        doctor D301 No worker is alive, and jobs wait or have been due for a minute in default.
        overview error: No worker is alive. 1 job waits.
        status no worker is alive
        metrics jobs{default,ready} 1; queue_slots{7 series} 0; schedule_look_age_seconds gone;
            workers{running} gone
        alerts DjangoJobsNoWorker"""
        no_workers()
        return noop.enqueue()

    def no_worker_and_nothing_to_do(self) -> None:
        """overview error: No worker is alive. 0 jobs wait.
        status no worker is alive
        metrics queue_slots{7 series} 0; schedule_look_age_seconds gone; workers{running} gone
        alerts DjangoJobsNoWorker"""
        # disagree: the doctor is content without a worker while nothing is to do.
        no_workers()

    def no_worker_and_jobs_are_due(self) -> Job:
        """why workers: No worker is alive.
        doctor D301 No worker is alive, and jobs wait or have been due for a minute in default.
        overview error: No worker is alive. 0 jobs wait.
        status no worker is alive
        metrics overdue_scheduled_age_seconds{default} > 5 min; queue_slots{7 series} 0;
            schedule_look_age_seconds gone; workers{running} gone
        alerts DjangoJobsNoWorker DjangoJobsOldestReadyAge"""
        # disagree: the overview counts ready jobs alone, the doctor those that are due, too.
        no_workers()
        job = noop.using(delay=60).enqueue()
        move_back("job", "available_at", MINUTES)
        return job

    def lease_of_the_only_worker_expired(self) -> Job:
        """why workers: The leases of all workers that could take it have expired.
        doctor D301 No worker is alive, and jobs wait or have been due for a minute in default.
        overview error: No worker is alive. 1 job waits.
        overview error: web-1 has sent no heartbeat for ….
        status no worker is alive
        metrics jobs{default,ready} 1; queue_slots{7 series} 0; worker_heartbeat_age_seconds > 1
            min; workers{running} gone
        alerts DjangoJobsHeartbeatGap DjangoJobsNoWorker"""
        # disagree: `why` says why no worker is alive; two problems are one.
        move_back("worker", "heartbeat_at", 90)
        move_back("worker", "lease_expires_at", 60)
        return noop.enqueue()

    def lease_of_one_worker_expired(self) -> Job:
        """why lease: Runs for … on web-2 #…, attempt 1. The lease of its worker web-2 #… expired …
            ago; a live worker takes it over within ….
        overview error: web-2 has sent no heartbeat for …. Its jobs start again on other workers.
        metrics worker_heartbeat_age_seconds > 1 min
        alerts DjangoJobsHeartbeatGap"""
        # disagree: an error of the overview, and nothing for doctor and status.
        other = register_worker("web-2", lease=HOURS)
        job = run_for(MINUTES, other)
        move_back("worker", "heartbeat_at", 90, f"id = {other}")
        move_back("worker", "lease_expires_at", 60, f"id = {other}")
        return job

    def worker_receives_no_notifications(self) -> None:
        """metrics worker_listen_failures 1
        alerts DjangoJobsListenLost"""
        # The doctor asks the server itself, and its own notification arrives.
        run_sql("UPDATE django_jobs_worker SET listens = false")

    def worker_was_lost_lately(self) -> None:
        """metrics worker_heartbeat_age_seconds > 1 min
        alerts DjangoJobsHeartbeatGap"""
        # disagree: the alert alone looks back.
        lost = register_worker("web-2")
        workers.end(lost, status=WorkerStatus.LOST)
        move_back("worker", "heartbeat_at", 90, f"id = {lost}")

    def only_worker_is_asked_to_drain(self) -> Job:
        """why workers: All workers that could take it are draining.
        metrics jobs{default,ready} 1"""
        # disagree: it claims nothing; `why` alone reads the request to drain.
        job_operations.stop_workers([web()])
        return noop.enqueue()

    def only_worker_drains(self) -> Job:
        """why workers: All workers that could take it are draining.
        doctor D302 No running worker serves the queue 'default', in which 1 job waits.
        overview error: default: no running worker serves this queue. 1 job waits.
        status 1 job in a queue no running worker serves: default
        metrics jobs{default,ready} 1; queue_slots{7 series} 0; workers{running} gone
        alerts DjangoJobsNoWorker"""
        # Its heartbeat has seen that it is to drain.
        job = self.only_worker_is_asked_to_drain()
        Worker.objects.update(status="draining")
        return job

    def no_worker_and_jobs_wait_at_gates(self) -> Job:
        """why turn, workers: Waits for its turn among the tenants of queue default. Also: no worker
            is alive.
        doctor D301 No worker is alive, and jobs wait or have been due for a minute in default.
        overview error: No worker is alive. 1 job waits.
        status no worker is alive
        metrics jobs{default,blocked} 1; queue_slots{7 series} 0; schedule_look_age_seconds gone;
            workers{running} gone
        alerts DjangoJobsNoWorker"""
        no_workers()
        return bill_tenant.enqueue("acme")

    def runs_are_not_counted(self) -> None:
        """overview caution: No worker has counted runs for …: rates and curves end there.
        metrics run_pairs 1; runs_total{app.noop,succeeded,default} 1; totals_age_seconds > 5 min
        alerts DjangoJobsTotalsStale"""
        # disagree: after 1 min the overview, after 5 the alert, after 10 D133.
        settle_one(enqueue_and_claim(worker=web()), Succeeded())
        fold_runs()
        settle_one(enqueue_and_claim(worker=web()), Succeeded())
        move_back("runwatermark", "reached_at", MINUTES)


class Queues:
    def queue_is_unserved(self) -> Job:
        """why workers: No live worker serves this queue.
        doctor D302 No running worker serves the queue 'bulk', in which 1 job waits.
        overview error: bulk: no running worker serves this queue. 1 job waits.
        status 1 job in a queue no running worker serves: bulk
        metrics jobs{bulk,ready} 1; queue_slots{6 series} 0
        alerts DjangoJobsQueueUnserved"""
        run_sql("UPDATE django_jobs_worker SET queues = %s", ['["default"]'])
        return noop.using(queue="bulk").enqueue()

    def queue_has_no_row(self) -> Job:
        """why queue: The queue bulk no longer exists.
        doctor D302 The queue 'bulk' has no row, so no worker claims its 1 job.
        doctor D314 The queue 'bulk' of QUEUES has no row.
        overview error: bulk has no row, so no worker claims its jobs. 1 job waits.
        status 1 job in a queue without a row, which no worker claims: bulk
        metrics {7 series} gone; jobs{bulk,ready} 1
        alerts DjangoJobsQueueUnserved"""
        job = noop.using(queue="bulk").enqueue()
        Queue.objects.filter(name="bulk").delete()
        return job

    def queue_without_a_row_is_unserved(self) -> Job:
        """why queue, workers: The queue bulk no longer exists. Also: no live worker serves this
            queue.
        doctor D302 The queue 'bulk' has no row, so no worker claims its 1 job.
        doctor D314 The queue 'bulk' of QUEUES has no row.
        overview error: bulk has no row, so no worker claims its jobs. 1 job waits.
        status 1 job in a queue without a row, which no worker claims: bulk
        metrics {7 series} gone; jobs{bulk,ready} 1; queue_slots{5 series} 0
        alerts DjangoJobsQueueUnserved"""
        run_sql("UPDATE django_jobs_worker SET queues = %s", ['["default"]'])
        return self.queue_has_no_row()

    def queue_has_no_row_and_jobs_wait_at_gates(self) -> Job:
        """why queue: The queue bulk no longer exists.
        doctor D302 The queue 'bulk' has no row, so no worker claims its 1 job.
        doctor D314 The queue 'bulk' of QUEUES has no row.
        overview error: bulk has no row, so no worker claims its jobs. 1 job waits.
        status 1 job in a queue without a row, which no worker claims: bulk
        metrics jobs{bulk,blocked} 1; {7 series} gone
        alerts DjangoJobsQueueUnserved"""
        job = bill_tenant.using(queue="bulk").enqueue("acme")
        Queue.objects.filter(name="bulk").delete()
        return job

    def queue_is_paused(self) -> Job:
        """why queue: Queue default is paused since …: it floods.
        overview caution: default has been paused for …: it floods. 1 job waits.
        metrics jobs{default,ready} 1; queue_paused{default} 1
        alerts DjangoJobsQueuePaused"""
        # disagree: the overview at once, doctor and alert after an hour, status never.
        job = noop.enqueue()
        job_operations.pause(["default"], reason="it floods")
        move_back("queue", "paused_at", MINUTES)
        return job

    def queue_is_paused_for_long(self) -> Job:
        """why queue: Queue default is paused since …: it floods.
        doctor D322 The queue 'default' has been paused for … (it floods), and 1 job waits in it.
        overview caution: default has been paused for …: it floods. 1 job waits.
        metrics jobs{default,ready} 1; queue_paused{default} 1
        alerts DjangoJobsQueuePaused"""
        job = self.queue_is_paused()
        move_back("queue", "paused_at", HOURS)
        return job

    def queue_is_paused_and_unserved(self) -> Job:
        """why queue, workers: Queue default is paused since …: it floods. Also: no live worker
            serves this queue.
        overview caution: default has been paused for …: it floods. 1 job waits.
        metrics jobs{default,ready} 1; queue_paused{default} 1; queue_slots{6 series} 0
        alerts DjangoJobsQueuePaused"""
        job = self.queue_is_paused()
        run_sql("UPDATE django_jobs_worker SET queues = %s", ['["bulk"]'])
        return job

    def queue_is_paused_without_a_worker(self) -> Job:
        """why queue, workers: Queue default is paused since …: it floods. Also: no worker is alive.
        doctor D301 No worker is alive, and jobs wait or have been due for a minute in default.
        overview error: No worker is alive. 1 job waits.
        overview caution: default has been paused for …: it floods. 1 job waits.
        status no worker is alive
        metrics jobs{default,ready} 1; queue_paused{default} 1; queue_slots{7 series} 0;
            schedule_look_age_seconds gone; workers{running} gone
        alerts DjangoJobsNoWorker DjangoJobsQueuePaused"""
        job = self.queue_is_paused()
        no_workers()
        return job

    def queue_is_paused_and_jobs_wait_at_gates(self) -> Job:
        """why queue: Queue default is paused since …: it floods.
        doctor D322 The queue 'default' has been paused for … (it floods), and 1 job waits in it.
        overview caution: default has been paused for …: it floods. 1 job waits.
        metrics jobs{default,blocked} 1; queue_paused{default} 1
        alerts DjangoJobsQueuePaused"""
        job = bill_tenant.enqueue("acme")
        job_operations.pause(["default"], reason="it floods")
        move_back("queue", "paused_at", HOURS)
        return job

    def queue_is_unserved_and_jobs_wait_at_gates(self) -> Job:
        """why turn, workers: Waits for its turn among the tenants of queue default. Also: no live
            worker serves this queue.
        doctor D302 No running worker serves the queue 'default', in which 1 job waits.
        overview error: default: no running worker serves this queue. 1 job waits.
        status 1 job in a queue no running worker serves: default
        metrics jobs{default,blocked} 1; queue_slots{6 series} 0
        alerts DjangoJobsQueueUnserved"""
        run_sql("UPDATE django_jobs_worker SET queues = %s", ['["bulk"]'])
        return bill_tenant.enqueue("acme")

    def all_slots_of_a_queue_are_taken(self) -> Job:
        """why limit: Waits for a free slot of queue default: its limit of 1 is full.
        overview caution: default: its only slot is taken, and 1 job waits. Longest: app.add #… for
            ….
        metrics jobs{default,ready} 1; oldest_ready_age_seconds{default} > 5 min
        alerts DjangoJobsOldestReadyAge"""
        # disagree: nothing is wrong for doctor and status.
        run_for(MINUTES)
        Queue.objects.filter(name="default").update(max_concurrency=1)
        return ready_since(MINUTES)

    def backlog_is_at_its_limit(self) -> Job:
        """why before: 1 job is before it.
        overview error: default is full: 2 jobs wait, and the limit is 2. Enqueues are refused, or
            drop jobs.
        metrics jobs{default,ready} 2"""
        # disagree: an error of the overview, without an alert, a finding or a status.
        Queue.objects.filter(name="default").update(max_backlog=2)
        noop.enqueue()
        return noop.enqueue()

    def threads_are_busy_and_jobs_are_late(self) -> Job:
        """why threads: Waits for a free thread: all 2 of 1 worker that could run it are busy. None
            of the jobs has a time limit, or an end in sight: 2 app.add (#… for …).
        overview caution: default: all 2 threads are busy with 2 app.add (#… for …); 1 job waits,
            the first for ….
        metrics jobs{default,ready} 1; oldest_ready_age_seconds{default} > 5 min
        alerts DjangoJobsOldestReadyAge"""
        # disagree: nothing is wrong for doctor and status.
        run_for(HOURS)
        run_for(HOURS)
        return ready_since(MINUTES)

    def job_is_not_claimed(self) -> Job:
        """why -: No gate holds it, and yet it has waited for …: look at the logs of its workers.
        metrics jobs{default,ready} 1; oldest_ready_age_seconds{default} > 5 min
        alerts DjangoJobsOldestReadyAge"""
        # disagree: `why` and an alert say that something is wrong; the others do not.
        return ready_since(MINUTES)

    def objective_burns_by_jobs_that_wait(self) -> Job:
        """why -: No gate holds it, and yet it has waited for …: look at the logs of its workers.
        overview error: default: 0.0% of the last hour's jobs started within …; the objective is
            99%. The error budget burns 100.0 times too fast.
        metrics jobs{default,ready} 30; oldest_ready_age_seconds{default} > 5 min;
            queue_slo_target_ratio{default} 0.99; slo_late_jobs{default} 30
        alerts DjangoJobsOldestReadyAge DjangoJobsSloBurnFast DjangoJobsSloBurnSlow"""
        # disagree: a page and an error; nothing for doctor and status.
        Queue.objects.filter(name="default").update(slo_seconds=60, slo_target=0.99)
        noop.enqueue_many([{}] * 30)
        move_back("job", "available_at", MINUTES)
        return Job.objects.earliest("rank", "id")


class Jobs:
    def job_type_is_unknown(self) -> Job:
        """why workers: No live worker of this queue knows this job type.
        doctor D303 No live worker of its queue knows the type app.noop: 1 job waits,
            ready, blocked or due next.
        overview error: app.noop: no live worker of its queue knows this type. 1 job waits.
        status 1 job of a type no live worker of its queue knows: app.noop
        metrics jobs{default,ready} 1; unclaimable_jobs{app.noop,unknown_type} 1
        alerts DjangoJobsUnclaimable"""
        run_sql("UPDATE django_jobs_worker SET job_types = %s", ['["app.add"]'])
        return noop.enqueue()

    def job_type_of_a_job_due_later_is_unknown(self) -> Job:
        """why due, workers: Runs in …, at …: it was enqueued with a delay or a time to run at.
            Also: no live worker of this queue knows this job type.
        doctor D303 No live worker of its queue knows the type app.noop: 1 job waits,
            ready, blocked or due next."""
        # disagree: the others find it when it is ready.
        run_sql("UPDATE django_jobs_worker SET job_types = %s", ['["app.add"]'])
        return noop.using(delay=7_200).enqueue()

    def payload_is_newer_than_the_workers_read(self) -> Job:
        """why workers: No live worker of this queue reads version 7 of its payload.
        doctor D304 No live worker of its queue reads version 7 of app.noop: 1 job
            waits, ready, blocked or due next.
        overview error: app.noop: its payload is of a newer version than any live worker of its
            queue reads. 1 job waits.
        status 1 job of a newer version than any live worker of its queue reads: app.noop, version 7
        metrics jobs{default,ready} 1; unclaimable_jobs{app.noop,newer_version} 1
        alerts DjangoJobsUnclaimable"""
        job = noop.enqueue()
        run_sql("UPDATE django_jobs_job SET payload_version = 7")
        return job

    def payload_is_unreadable(self) -> Job:
        """why payload: This code cannot run it: app.add(first: 'int', second: 'int' = 1) -> 'int':
            missing a required argument: 'first'; got other.
        doctor D305 This code cannot run 1 of the next jobs of app.add, the first is …:
            app.add(first: 'int', second: 'int' = 1) -> 'int': missing a required argument: 'first';
            got other.
        metrics jobs{default,ready} 1"""
        job = add.enqueue(1)
        run_sql("""UPDATE django_jobs_job SET payload = '{"other": 1}'""")
        return job

    def job_is_due_later(self) -> Job:
        """why due: Runs in …, at …: it was enqueued with a delay or a time to run at."""
        return noop.using(delay=7_200).enqueue()

    def job_is_due_and_not_made_ready(self) -> Job:
        """why -: Due since …, and no worker has made it ready: look at their logs.
        metrics overdue_scheduled_age_seconds{default} > 5 min
        alerts DjangoJobsOldestReadyAge"""
        # disagree: an alert and `why`; nothing for doctor, overview and status.
        job = noop.using(delay=60).enqueue()
        move_back("job", "available_at", MINUTES)
        return job

    def job_is_retried_later(self) -> Job:
        """why due: Failed 1 of 5 times; runs again in …."""
        held = enqueue_and_claim(worker=web())
        settle_one(held, failure())
        move_back("job", "available_at", -7_200)
        return Job.objects.get(pk=held.id)

    def job_has_expired(self) -> Job:
        """why expires: It expired … ago: the worker that takes it ends it without a run of its
            handler.
        metrics jobs{default,ready} 1"""
        job = noop.enqueue()
        Job.objects.update(expires_at=timezone.now() - timedelta(minutes=3))
        return job

    def step_waits_for_a_signal(self) -> Job:
        """why prerequisites: Waits for the signal approval."""
        # Such as the approval of a person.
        return waiting_for("approval", step(start_graph({"a": "", "b": "a"}), "a"))

    def step_waits_for_a_person(self) -> Job:
        """why prerequisites: Waits for the signal approval.
        overview caution: 1 step waits for a person: a of graph #… has waited for 1 d ….
        """
        # disagree: the overview alone, after a day.
        job = self.step_waits_for_a_signal()
        payload = {"name": "approval", "fields": [["approved", "bool"]]}
        Job.objects.filter(pk=job.pk).update(job_type=WAIT, payload=payload)
        began = Now() - timedelta(hours=26)
        answer = {"until": "infinity"}
        Receipt.objects.create(
            job_id=job.pk, key="signal:approval", attempt=1, answer=answer, made_at=began
        )
        return Job.objects.get(pk=job.pk)

    def running_job_was_cancelled(self) -> Job:
        """why -: Runs for … on web-1 #…, attempt 1. Its cancellation was requested."""
        job = run_for(MINUTES)
        job_operations.cancel([job.pk])
        return job

    def jobs_are_dead(self) -> Job:
        """why -: Dead … ago, attempt 1: not retried: ValueError: boom.
        overview caution: 1 job of the last hour is dead: 1 in default.
        metrics recently_dead_jobs{default} 1; run_pairs 1; runs_total{app.noop,failed,default} 1
        alerts DjangoJobsDeadGrowth"""
        # disagree: nothing is wrong for doctor and status.
        dead = make_dead(worker=web())
        fold_runs()
        return dead

    def chain_of_generations(self) -> Job:
        """why -: Nothing holds it: a worker starts it in the next moment.
        doctor D316 Jobs of app.noop come from a chain of 1,000 handlers, of which each enqueued a
            job of the next.
        metrics jobs{default,ready} 1"""
        # disagree: the doctor alone.
        return noop.using(headers={GENERATION: MANY}).enqueue()


class Gates:
    def key_is_held(self) -> Job:
        """why key: Waits for the concurrency key account:7 (limit 1): job #… (…, no progress
            reported) holds it.
        metrics jobs{default,blocked} 1"""
        holder = charge_account.enqueue(7)
        job = charge_account.enqueue(7)
        Job.objects.filter(pk=holder.pk).update(status="ready")
        claim_ready(web())
        return job

    def key_is_held_for_long(self) -> Job:
        """why key: Waits for the concurrency key account:7 (limit 1): job #… (…, no progress
            reported) holds it.
        doctor D321 Job … (app.charge_account) has held the concurrency key 'account:7' for …; at
            least 1,000 jobs wait behind it.
        metrics jobs{default,blocked} 1000"""
        # disagree: the doctor alone; a resource that is taken is a problem at once.
        job = self.key_is_held()
        copies_of(job, 999, status="blocked")
        move_back("job", "claimed_at", HOURS)
        return job

    def resource_is_taken(self) -> Job:
        """why resource: Waits for the resource stripe (1 of 1 taken).
        overview caution: stripe: its only slot is taken, and 1 job waits. Held by
            app.refund_payment #… for ….
        metrics jobs{default,blocked} 1; jobs{default,ready} 1; resource_taken{stripe} 1;
            resource_waiting{stripe} 1"""
        # disagree: the overview alone, and it alone says "all 1".
        job = with_resource(max_concurrency=1)
        copies_of(job)
        return job

    def no_more_jobs_may_wait_for_a_resource(self) -> Job:
        """why turn: Waits for its turn.
        overview error: stripe is full: 1 job waits, and the limit is 1. Enqueues are refused, or
            drop jobs.
        metrics jobs{default,blocked} 1; resource_waiting{stripe} 1"""
        # disagree: an error of the overview alone. Enqueues are refused.
        return with_resource(max_concurrency=1, max_waiting=1)

    def rate_is_spent(self) -> Job:
        """why resource: Waits for the rate of stripe (1 in …).
        metrics jobs{default,blocked} 1; resource_waiting{stripe} 1"""
        # disagree: `why` alone; the overview shows other limits that are full.
        return with_resource(rate=1.0, rate_seconds=86_400.0, tokens=0.0, refilled_at=Now())

    def rate_is_held_by_ready_jobs(self) -> Job:
        """why resource: Waits for the rate of stripe (2 in …).
        metrics jobs{default,blocked} 1; jobs{default,ready} 2; resource_taken{stripe} 2;
            resource_waiting{stripe} 1"""
        job = with_resource(rate=2.0, tokens=2.0, refilled_at=Now())
        copies_of(job, 2)
        return job

    def retry_budget_is_spent(self) -> Job:
        """why resource: Waits: the retry budget of stripe is used up.
        metrics jobs{default,blocked} 1; resource_retry_budget_used_ratio{stripe} 1;
            resource_waiting{stripe} 1
        alerts DjangoJobsRetryBudgetGone"""
        # disagree: an alert, and no problem of the overview.
        recent = {"counted_at": Now(), "recent_starts": 50.0, "recent_retries": 20.0}
        job = with_resource(retry_budget=0.2, **recent)
        Job.objects.update(failures=1)
        return job

    def breaker_is_open(self) -> Job:
        """why resource: Waits: the breaker of stripe is open until ….
        overview error: stripe is failing: its breaker has been open for …. 1 job waits.
        metrics jobs{default,blocked} 1; resource_breaker{stripe,open} 1; resource_waiting{stripe} 1
        alerts DjangoJobsBreakerOpen"""
        # disagree: overview and alert at once, the doctor after 20 min, status never.
        fields = {"breaker_open_for": 600.0, "breaker_reason": "3 failures"}
        return with_resource(breaker_state="open", breaker_changed_at=Now(), **fields)

    def breaker_is_open_for_long(self) -> Job:
        """why resource: Waits: the breaker of stripe is open.
        doctor D323 The breaker of the resource 'stripe' has been open for … (3 failures), and 1 job
            waits for it.
        overview error: stripe is failing: its breaker has been open for …. 1 job waits.
        metrics jobs{default,blocked} 1; resource_breaker{stripe,open} 1; resource_waiting{stripe} 1
        alerts DjangoJobsBreakerOpen"""
        job = self.breaker_is_open()
        move_back("resource", "breaker_changed_at", HOURS)
        return job

    def breaker_is_half_open(self) -> Job:
        """why turn: Waits for its turn.
        overview caution: stripe is being tested: its half-open breaker lets a few jobs through. 1
            job waits.
        metrics jobs{default,blocked} 1; resource_breaker{stripe,half_open} 1;
            resource_waiting{stripe} 1
        alerts DjangoJobsBreakerOpen"""
        # disagree: the alert says that it is open.
        job = self.breaker_is_open()
        Resource.objects.update(breaker_state="half_open")
        return job

    def breaker_is_open_and_nothing_waits(self) -> None:
        """overview error: stripe is failing: its breaker has been open for …. 0 jobs wait.
        metrics resource_breaker{stripe,open} 1
        alerts DjangoJobsBreakerOpen"""
        # disagree: an error and an alert; no finding.
        Resource.objects.create(name="stripe", breaker_state="open", breaker_changed_at=Now())
        move_back("resource", "breaker_changed_at", HOURS)

    def resource_is_paused(self) -> Job:
        """why resource: Waits: the resource stripe is paused since …: maintenance.
        overview caution: stripe is paused: maintenance. 1 job waits.
        metrics jobs{default,blocked} 1; resource_waiting{stripe} 1"""
        # disagree: the overview at once, the doctor after an hour; queues alone have an alert.
        job = with_resource()
        limits.pause_resources(["stripe"], reason="maintenance")
        move_back("resource", "paused_at", MINUTES)
        return job

    def resource_is_paused_for_long(self) -> Job:
        """why resource: Waits: the resource stripe is paused since …: maintenance.
        doctor D322 The resource 'stripe' has been paused for … (maintenance), and 1 job waits for
            it.
        overview caution: stripe is paused: maintenance. 1 job waits.
        metrics jobs{default,blocked} 1; resource_waiting{stripe} 1"""
        job = self.resource_is_paused()
        move_back("resource", "paused_at", HOURS)
        return job

    def tenant_is_at_its_limit(self) -> Job:
        """why tenant: Waits for the tenant acme (1 of 1 taken).
        metrics jobs{default,blocked} 1; jobs{default,ready} 1"""
        # disagree: no problem of the overview, as a resource has.
        Tenant.objects.create(name="acme", max_concurrency=1)
        job = bill_tenant.enqueue("acme")
        copies_of(job)
        return job

    def tenant_is_paused(self) -> Job:
        """why tenant: Waits: the tenant acme is paused since …: unpaid.
        metrics jobs{default,blocked} 1"""
        # disagree: no problem of the overview, as a resource has; the doctor after an hour.
        job = bill_tenant.enqueue("acme")
        limits.pause_tenants(["acme"], reason="unpaid")
        move_back("tenant", "paused_at", MINUTES)
        return job

    def job_of_an_unknown_type_waits_at_its_gates(self) -> Job:
        """why workers: No live worker of this queue knows this job type.
        doctor D303 No live worker of its queue knows the type app.bill_tenant: 1 job waits, ready,
            blocked or due next.
        overview error: app.bill_tenant: no live worker of its queue knows this type. 1 job waits.
        status 1 job of a type no live worker of its queue knows: app.bill_tenant
        metrics jobs{default,blocked} 1; unclaimable_jobs{app.bill_tenant,unknown_type} 1
        alerts DjangoJobsUnclaimable"""
        run_sql("UPDATE django_jobs_worker SET job_types = %s", ['["app.add"]'])
        return bill_tenant.enqueue("acme")

    def job_type_is_quarantined_and_nothing_waits(self) -> None:
        """metrics quarantined_jobs{app.noop} 0
        alerts DjangoJobsQuarantined"""
        # disagree: an alert without a problem or a finding.
        quarantines.quarantine("app.noop", reason="it crashes")
        move_back("quarantine", "since", HOURS)

    def job_type_is_quarantined_for_long(self) -> Job:
        """why quarantine: Blocked: its job type is quarantined since … by a worker: it crashes.
        doctor D324 app.noop has been quarantined for … (it crashes), and blocks 1 job.
        overview caution: app.noop is quarantined. 1 job waits.
        metrics jobs{default,blocked} 1; quarantined_jobs{app.noop} 1
        alerts DjangoJobsQuarantined"""
        job = noop.enqueue()
        quarantines.quarantine("app.noop", reason="it crashes")
        move_back("quarantine", "since", HOURS)
        return job


class Schedules:
    def schedule_is_late(self) -> None:
        """doctor D307 Schedules do not fire: the schedule 'tick' is overdue by ….
        overview error: 1 schedule is overdue, by ….
        status the schedule 'tick' is overdue by …
        metrics schedule_lag_seconds > 5 min; schedules{overdue} 1
        alerts DjangoJobsScheduleLate"""
        due_schedule(MINUTES)

    def schedules_are_not_looked_at(self) -> None:
        """doctor D307 Schedules do not fire: no worker has looked at schedules for ….
        overview error: No worker has checked the schedules for ….
        status no worker has looked at schedules for …
        metrics schedule_look_age_seconds > 5 min; schedules{on} 1
        alerts DjangoJobsScheduleLate"""
        due_schedule(-3_600)
        move_back("worker", "schedules_seen_at", MINUTES)
        move_back("worker", "started_at", HOURS)

    def schedules_were_never_looked_at(self) -> None:
        """doctor D307 Schedules do not fire: no worker looks at schedules.
        overview error: No worker checks the schedules.
        status no worker looks at schedules
        metrics schedule_look_age_seconds gone; schedules{on} 1"""
        # disagree: no alert.
        due_schedule(-3_600)
        run_sql("UPDATE django_jobs_worker SET schedules_seen_at = NULL")
        move_back("worker", "started_at", HOURS)

    def schedule_has_an_error(self) -> None:
        """doctor D307 Schedules do not fire: schedules with an error: 1.
        overview error: tick does not fire: no such zone
        status schedules with an error: 1
        metrics schedules{error} 1
        alerts DjangoJobsScheduleError"""
        due_schedule(-3_600)
        Schedule.objects.update(error="no such zone")

    def schedule_has_no_handler(self) -> None:
        """doctor D306 The schedule 'tick' fires shop.gone, for which there is no handler.
        metrics schedules{on} 1"""
        # disagree: the doctor alone, as an error.
        due_schedule(-3_600, job_type="shop.gone")

    def schedule_is_paused(self) -> None:
        row = due_schedule(MINUTES)
        schedule_operations.pause([row.pk], reason="too loud")
        move_back("schedule", "paused_at", HOURS)

    def schedule_has_ended(self) -> None:
        due_schedule(MINUTES)
        Schedule.objects.update(next_due_at=None)

    def schedule_is_not_written(self) -> None:
        """doctor D310 The schedule 'nightly' is declared in code and has no row, so it never
        fires."""
        schedule("nightly", noop, cron="0 3 * * *")


class Workflows:
    def workflow_failed(self) -> Job:
        """why -: Cancelled … ago, without an attempt: skipped: a failed.
        overview caution: graph #… failed … ago.
        metrics recently_dead_jobs{default} 1; run_pairs 1; runs_total{app.noop,failed,default} 1
        alerts DjangoJobsDeadGrowth"""
        # disagree: a run for the overview, a job for the alert, nothing for doctor and status.
        run = start_graph({"a": "", "b": "a"})
        settle_one(claim_ready(web())[0], DEAD)
        fold_runs()
        return step(run, "b")

    def workflow_is_stuck(self) -> Job:
        """why prerequisites: Waits for its prerequisites.
        doctor D308 The workflow run … cannot end: step b: no step before it is left, and it
            waits. No crash leaves this: rows were changed or deleted by hand, or it is a bug."""
        # disagree: the doctor alone.
        run = start_graph({"a": "", "b": "a"})
        Job.objects.filter(workflow_run=run, step="a").delete()
        return step(run, "b")

    def compensation_failed(self) -> Job:
        """why -: Dead … ago, attempt 1: not retried: ValueError: boom.
        doctor D309 Compensations of the run … of saga failed: undo a. What they should have undone
            stays done.
        overview error: saga #… is not fully undone: undo a failed.
        metrics recently_dead_jobs{default} 2; run_pairs 1; runs_total{app.noop,failed,default} 2;
            runs_total{app.noop,succeeded,default} 1
        alerts DjangoJobsDeadGrowth"""
        # disagree: an error until it is seen to; the alert ends after an hour.
        run = saga("a")
        finish({"last": DEAD, "undo a": DEAD})
        run_sql("DELETE FROM django_jobs_worker WHERE name <> 'web-1'")
        fold_runs()
        return step(run, "undo a")


ROOMS = Workers, Queues, Jobs, Gates, Schedules, Workflows
SCENES: dict[str, Callable[[], Job | None]] = {
    name: getattr(room(), name) for room in ROOMS for name in vars(room) if name[0] != "_"
}


def words_of(name: str) -> list[str]:
    """What the readers say of a scene: its docstring. A line that begins with no reader
    continues the one before."""
    text = " ".join((SCENES[name].__doc__ or "").split())
    return re.split(r" (?=(?:why|doctor|overview|status|metrics|alerts) )", text)
