"""The metrics for Prometheus and OpenMetrics, by prometheus_client, and the scraped page."""

from __future__ import annotations

import hmac
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from ..conf import conf
from ..domain.histograms import BOUNDS
from ..logs import log_event
from ..models.database import DATABASE_ERRORS, migration_problem
from .gauges import Gauges, read_gauges
from .stored import NoMetrics

if TYPE_CHECKING:
    from prometheus_client import Metric


Kind = Literal["gauge", "counter", "histogram"]
# Of a row: the end of the name of each sample, and the bound of a bucket.
BUCKETS = [("_bucket", bound) for bound in (*map(str, BOUNDS), "+Inf")]
ONE = [("", "")]
SAMPLES = {"gauge": ONE, "counter": ONE, "histogram": [*BUCKETS, ("_count", ""), ("_sum", "")]}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric of ``/metrics``. Its values are in the column ``value`` of the rows of ``part``,
    and its labels in the columns of their names; a null has no sample. That of a histogram is the
    counts of the buckets, and the sum in seconds."""

    name: str
    labels: tuple[str, ...]
    part: str
    value: str
    help: str
    kind: Kind


def _family(row: str) -> Family:
    name, labels, value, help = re.split(r"\s*\|\s*", " ".join(row.split()))
    part, _, column = value.partition(".")
    kind: Kind = "histogram" if part.endswith("times") else "gauge"
    if name.endswith("_total"):
        kind = "counter"
    return Family(f"django_jobs_{name}", tuple(labels.split()), part, column, help, kind)


# name | labels | part.value | help, of which further lines are indented
TABLE = """\
jobs | queue state | jobs.jobs | Jobs that have not ended, and dead ones.
jobs_estimated | queue state | jobs.estimated | 1 where the number of jobs is an estimate.
jobs_sampled_ratio | | sampled.read | Share of the live jobs' pages that was read. At 1 each job was
    counted.
jobs_by_type | queue job_type state | types.jobs | Jobs by job type.
jobs_by_priority | queue priority state | priorities.jobs | Jobs by priority: low is below 0, high
    above 0.
jobs_by_tenant | tenant state | tenants.jobs | Jobs by tenant, of the 20 with the most.
recently_dead_jobs | queue | queues.recently_dead | Jobs that died in the last hour. At most 500 are
    counted.
oldest_ready_age_seconds | queue | queues.oldest_ready_seconds | For how long the oldest ready job
    has been due; 0 without one.
overdue_scheduled_age_seconds | queue | queues.overdue_scheduled_seconds | For how long the oldest
    scheduled job that no worker has made ready has been due.
queue_paused | queue | queues.paused | 1 if the queue is paused.
queue_keeps_successes | queue | queues.keeps_successes | 0 if jobs are deleted when they succeed, so
    that their runs are not counted.
queue_drain_seconds | queue | queues.drain_seconds | In how many seconds its ready jobs, and those
    that arrive meanwhile, will be claimed.
queue_slots | queue | queues.slots | Threads and async slots of the running workers that serve the
    queue.
queue_concurrency_limit | queue | queues.max_concurrency | Jobs of the queue that may run at once.
queue_backlog_limit | queue | queues.max_backlog | Jobs that are ready or wait at their gates at
    which the queue is full.
queue_slo_seconds | queue | queues.slo_seconds | Within how many seconds its jobs should start.
queue_slo_target_ratio | queue | queues.slo_target | Share of its jobs that should start in time.
unclaimable_jobs | job_type reason | unclaimable.jobs | Ready jobs that no live worker of their
    queue can run.
quarantined_jobs | job_type | quarantines.jobs | Jobs that wait because their type is quarantined.
    At most 500 are counted.
workers | version status | workers.workers | Worker processes that have not ended.
worker_slots | version kind | worker_slots.slots | Threads and async slots of the workers whose
    lease has not expired.
worker_jobs | version | worker_jobs.jobs | Jobs that these workers run or have prefetched.
worker_busy_slots | version | worker_jobs.busy | Slots of these workers whose job has started, as of
    their last heartbeats.
worker_claim_failures | version | worker_jobs.claim_failures | Rounds of claims that failed since
    each worker started.
worker_runs | version | worker_jobs.runs | Attempts that these processes have ended since each
    started.
worker_failed_runs | version | worker_jobs.failed_runs | Those of these attempts that failed or ran
    out of time.
worker_rss_bytes | version | worker_jobs.rss_bytes | Memory of these processes, as of their last
    heartbeats.
worker_listen_failures | | heartbeats.deaf | Worker processes that receive no notifications, and
    poll.
workers_ended | version reason | ended_workers.workers | Worker processes that ended in the last
    hour.
worker_drain_seconds | version reason | ended_workers.drain_seconds | The longest time that one of
    them drained.
worker_heartbeat_age_seconds | | heartbeats.seconds | Age of the oldest last heartbeat of a worker
    that has not ended, or that was lost in the last 5 minutes: when it was found.
schedules | state | schedules.schedules | Schedules in each state.
schedule_lag_seconds | | lag.lag | For how long the most overdue schedule has been due.
schedule_look_age_seconds | | lag.looked | How long ago a worker looked at the schedules.
resource_taken | resource | resources.taken | Ready and running jobs that use it.
resource_waiting | resource | resources.waiting | Blocked jobs that want it.
resource_limit | resource | resources.max_concurrency | Jobs that may use it at once.
resource_waiting_limit | resource | resources.max_waiting | Jobs that may wait for it.
resource_paused | resource | resources.paused | 1 if the resource is paused.
resource_breaker | resource state | breakers.is_in | 1 for the state of the circuit breaker.
resource_retry_budget_ratio | resource | resources.retry_budget | Share of the starts that may be
    retries.
resource_retry_budget_used_ratio | resource | resources.retry_budget_used | Share of the retry
    budget that recent retries have used. At 1 no retry starts.
resource_runs_total | resource outcome | resource_runs.runs | Attempts of jobs that use the
    resource.
resource_throttled_total | resource | resource_times.throttled | Those whose error has the code 429.
resource_server_errors_total | resource | resource_times.server_errors | Those whose error has a
    code from 500 to 599.
resource_duration_seconds | resource | resource_times.runtime | Time from the start of these
    attempts to their end.
tenant_weight | tenant | tenant_rows.weight | Its share of a busy queue.
tenant_limit | tenant | tenant_rows.max_concurrency | Jobs of the tenant that may be ready or
    running at once.
tenant_waiting_limit | tenant | tenant_rows.max_waiting | Jobs of the tenant that may wait at their
    gates.
tenant_paused | tenant | tenant_rows.paused | 1 if the tenant is paused.
tenant_runs_total | tenant outcome | tenant_runs.runs | Attempts of the tenant's jobs, of the 20
    tenants with the most.
tenant_waiting_seconds | tenant | tenant_times.waiting | Time from the due time of these attempts to
    their claim.
tenant_duration_seconds | tenant | tenant_times.runtime | Time from the start of these attempts to
    their end.
tenant_slo_runs_total | tenant | tenant_times.slo_runs | Those of these attempts for which the
    tenant or else the queue has an objective.
tenant_slo_met_runs_total | tenant | tenant_times.slo_met | Those that started in time.
workflow_runs | | workflows.runs | Runs of workflows that have not ended.
workflow_runs_ended | status | ended_workflows.runs | Runs of workflows that ended in the last hour.
runs_total | queue job_type outcome | runs.runs | Attempts that ended.
retries_total | queue job_type | times.retries | Attempts that were not the first of their job.
jobs_dead_total | queue job_type | times.died | Jobs that died.
job_type_info | job_type delivery | job_types.info | 1 for each job type, to join its delivery to
    other metrics.
at_most_once_lost_total | queue job_type | times.lost | Lost attempts of job types that are
    delivered at most once.
exactly_once_repeated_total | queue job_type | times.repeated | Attempts after the first of job
    types that are delivered exactly once.
duplicates_prevented_total | queue job_type | times.prevented | Calls that run.once did not repeat.
run_pairs | | pairs.pairs | Pairs of queue and job type with attempts. At most 500 have counters.
run_waiting_seconds | queue job_type | times.waiting | Time from the due time of an attempt to its
    claim.
run_gate_seconds | queue job_type | times.gate | The part of it until its gates let the job go.
run_start_lag_seconds | queue job_type | times.start_lag | Time from the claim of an attempt to its
    start.
run_duration_seconds | queue job_type | times.runtime | Time from the start of an attempt to its
    end.
slo_runs_total | queue | slo.runs | Attempts in queues with an objective that were due.
slo_late_jobs | queue | queues.late | Jobs that wait for longer than the objective of their queue.
slo_met_runs_total | queue | slo.met | Those that started in time.
totals_age_seconds | | watermark.age | How long ago runs were last counted, while some are not; else
    0.
recent_failures | error_type fingerprint | failures.runs | Attempts with each of the ten most
    frequent errors of the last hour.
table_size_bytes | table | tables.bytes | Size of the table with its indexes.
table_live_rows | table | tables.live_rows | Rows of the table, as PostgreSQL estimates.
table_dead_rows | table | tables.dead_rows | Dead rows of the table, as PostgreSQL estimates.
table_sequential_scans_total | table | tables.sequential_scans | Reads of the whole table.
table_index_scans_total | table | tables.index_scans | Searches in the indexes of the table.
table_cache_hits_total | table | tables.hits | Pages of the table and its indexes that PostgreSQL
    had in its memory.
table_cache_misses_total | table | tables.reads | Pages of them that it had to read.
lock_waits | | transactions.lock_waits | Statements on the tables of jobs that wait for a lock.
oldest_transaction_age_seconds | | transactions.seconds | Age of the oldest transaction of the
    database that holds back vacuum.
metrics_age_seconds | | stored.age | How long ago these numbers were taken.
metrics_refresh_seconds | | stored.seconds | What it took to read them.
"""
FAMILIES = tuple(map(_family, re.split(r"\n(?! )", TABLE.rstrip())))


class JobsCollector:
    """The metrics of the jobs' database, as a collector of ``prometheus_client``. Register it in a
    registry of your own to serve it with your other metrics."""

    def describe(self) -> Iterable[Metric]:
        """The families without samples, so that registering it reads nothing."""
        return [_metric(family, {}) for family in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Read the stored numbers once, and yield all families. If the database does not answer,
        they have no samples: the other metrics of the registry are served nevertheless."""
        try:
            gauges = read_gauges()
        except (NoMetrics, *DATABASE_ERRORS) as error:
            text = " ".join(str(error).split())
            log_event("database_error", logging.WARNING, {"what": "read metrics", "error": text})
            gauges = {}
        return (_metric(family, gauges) for family in FAMILIES)


def render(accept: str = "") -> tuple[str, bytes]:
    """The content type and the text of all metrics, in the format that the header ``Accept`` asks
    for. Raises :class:`NoMetrics`, :class:`ImproperlyConfigured` without prometheus_client, and the
    errors of the database."""
    _, content_type = prometheus_client().exposition.choose_encoder(accept)
    is_open = content_type.startswith("application/openmetrics-text")
    return content_type, "".join(_lines(read_gauges(), is_open)).encode()


def _lines(gauges: Gauges, is_open: bool) -> Iterator[str]:
    for family in FAMILIES:
        name = family.name.removesuffix("_total") if is_open else family.name
        yield f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"
        # One template for all samples of a row. A NUL is in no text that PostgreSQL stores.
        row = "".join(
            family.name + end + "{\0" + (bound and f',le="{bound}"') + "} %s\n"
            for end, bound in SAMPLES[family.kind]
        )
        if not family.labels:
            row = row.replace("{\0}", "")
        for labels, values in _rows(family, gauges):
            text = ",".join([f'{label}="{_escaped(value)}"' for label, value in labels.items()])
            yield (row % tuple(map(float, values))).replace("\0", text)
    if is_open:
        yield "# EOF\n"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def prometheus_client() -> Any:
    """The package. Raises :class:`ImproperlyConfigured` with the name of the extra without it."""
    try:
        import prometheus_client
    except ImportError as error:
        raise ImproperlyConfigured(
            "Metrics need prometheus_client: pip install 'django-jobs-postgres[metrics]'"
        ) from error
    return prometheus_client


def _metric(family: Family, gauges: Gauges) -> Metric:
    name = family.name.removesuffix("_total")
    metric: Metric = prometheus_client().Metric(name, family.help, family.kind)
    for labels, values in _rows(family, gauges):
        for (end, bound), value in zip(SAMPLES[family.kind], values, strict=True):
            own = {**labels, "le": bound} if bound else labels
            metric.add_sample(f"{family.name}{end}", own, value)
    return metric


def _rows(family: Family, gauges: Gauges) -> Iterator[tuple[dict[str, str], tuple[float, ...]]]:
    """The labels of each row, and the values of its samples."""
    for row in gauges.get(family.part, ()):
        value = row.get(family.value)
        if value is None:  # or older code stored the numbers without it
            continue
        values = (value,)
        if family.kind == "histogram":
            counts, seconds = value
            values = (*accumulate(counts), sum(counts), seconds)
        yield {label: str(row[label]) for label in family.labels}, values


@never_cache
@require_safe
@transaction.non_atomic_requests
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics, for those who send ``METRICS_TOKEN``. Without one they need ``DEBUG``."""
    if not conf().metrics_token and not settings.DEBUG:
        answer = _text('DJANGO_JOBS["METRICS_TOKEN"] is not set.', 403)
    else:
        answer = respond(request.headers)
    response = HttpResponse(answer.body, content_type=answer.content_type, status=answer.status)
    if answer.status == 401:
        response["WWW-Authenticate"] = "Bearer"
    return response


class Answer(NamedTuple):
    status: int
    content_type: str
    body: bytes


def respond(headers: Mapping[str, str], *, is_local: bool = True) -> Answer:
    """All metrics, or why there are none. If ``METRICS_TOKEN`` is set, they need it; without it
    only those get them who ask on this machine. ``headers`` are those of the request, with names as
    ``Accept``."""
    token = conf().metrics_token
    if not token and not is_local:
        return _text('DJANGO_JOBS["METRICS_TOKEN"] is not set.', 403)
    # Servers decode each byte of a header to one character.
    sent = headers.get("Authorization", "").encode("latin-1", "replace")
    if token and not hmac.compare_digest(sent, f"Bearer {token}".encode()):
        return _text("Send the header Authorization: Bearer, with METRICS_TOKEN.", 401)
    try:
        return Answer(200, *render(headers.get("Accept", "")))
    except (NoMetrics, ImproperlyConfigured) as error:
        return _text(str(error), 503)
    except DATABASE_ERRORS as error:
        problem = migration_problem(error) or f"{type(error).__name__} of the jobs' database"
        return _text(f"No metrics: {problem}.", 503)


def _text(text: str, status: int) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode())
