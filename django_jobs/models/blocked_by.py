"""What a job waits for, in words. Reads it from the tables as they are now."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..domain.gates import Gates, parse
from ..domain.retry_budget import retries_allowed
from ..domain.states import JobState
from .database import fetch, fetch_named
from .resource import FADED, BreakerState

MOST_TAKEN = 100_000
"""Jobs with resources that a count reads. No more than that are ready or running."""

QUARANTINE = """
SELECT reason FROM django_jobs_quarantine
WHERE job_type = %(job_type)s AND lifted_at IS NULL
"""
KEY = """
SELECT count(*), (array_agg(id ORDER BY id))[1:3] FROM (
    SELECT id FROM django_jobs_job
    WHERE concurrency_key = %(key)s AND status IN ('ready', 'running')
    LIMIT %(limit)s) AS holder
"""
# No index finds the jobs of one resource, because few jobs with resources are ready or running.
RESOURCES = f"""
SELECT resource.name, paused_at IS NOT NULL AS paused, paused_reason, breaker_state,
    breaker_changed_at + make_interval(secs => breaker_open_for) AS open_until,
    rate, rate_seconds, max_concurrency, retry_budget,
    coalesce(recent_starts * {FADED}, 0) AS starts,
    coalesce(recent_retries * {FADED}, 0) AS retries,
    tokens + rate / rate_seconds * greatest(
        date_part('epoch', statement_timestamp() - refilled_at), 0) < 1 AS rate_is_spent,
    (SELECT count(*) FROM (
        SELECT 1 FROM (
            SELECT job.resources FROM django_jobs_job AS job
            WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
            ORDER BY job.id LIMIT %(most)s) AS used
        WHERE jsonb_exists(used.resources, resource.name)
        LIMIT resource.max_concurrency) AS counted) AS taken
FROM django_jobs_resource AS resource
WHERE resource.name = ANY(%(names)s::text[])
ORDER BY resource.name
"""  # noqa: S608 — a constant
TENANT = """
SELECT paused_at IS NOT NULL AS paused, paused_reason, max_concurrency,
    (SELECT count(*) FROM (
        SELECT 1 FROM django_jobs_job AS job
        WHERE job.tenant = %(tenant)s AND job.status IN ('ready', 'running')
        LIMIT tenant.max_concurrency) AS counted) AS taken
FROM django_jobs_tenant AS tenant
WHERE tenant.name = %(tenant)s
"""
SIGNAL_UNTIL = """
SELECT (answer ->> 'until')::timestamptz FROM django_jobs_receipt
WHERE job_id = %(job)s AND key = 'signal:' || %(name)s
"""
SLEEP = """
SELECT substr(key, 7), (answer ->> 'until')::timestamptz FROM django_jobs_receipt
WHERE job_id = %(job)s AND starts_with(key, 'sleep:')
  AND (answer ->> 'until')::timestamptz > statement_timestamp()
ORDER BY id DESC LIMIT 1
"""
MOST_STEPS = 4
STEPS_BEFORE = """
SELECT parent.step FROM django_jobs_dependency AS edge
JOIN django_jobs_job AS parent ON parent.id = edge.parent_id
    AND parent.status NOT IN ('succeeded', 'cancelled', 'dead')
WHERE edge.child_id = %(job)s
ORDER BY edge.parent_id LIMIT %(limit)s
"""
SCHEDULE = "SELECT name FROM django_jobs_schedule WHERE id = %(schedule)s"


def blocked_by(
    status: str, job_type: str, gates: str | None, schedule: int | None, failures: int
) -> str:
    """What holds up a job with these columns; empty if nothing that is decided before it is
    ready."""
    match status:
        case JobState.WAITING:
            return _prerequisite(schedule)
        case JobState.BLOCKED:
            return "; ".join(_reasons(job_type, gates, failures > 0)) or _turn(gates)
    return ""


def awaited_signal(job: int, name: str) -> str:
    """The signal that a handler waits for, and until when."""
    text = _("the signal %(name)s") % {"name": name}
    for (until,) in fetch(SIGNAL_UNTIL, {"job": job, "name": name}):
        if until is not None:
            return _("%(signal)s, until %(time)s") % {"signal": text, "time": _shown(until)}
    return text


def unfinished_sleep(job: int) -> str:
    """Until when the handler sleeps; empty if it does not."""
    for key, until in fetch(SLEEP, {"job": job}):
        return _("its sleep %(key)s, until %(time)s") % {"key": key, "time": _shown(until)}
    return ""


def steps_before(job: int) -> str:
    """The first steps of a workflow that have to end before this one."""
    found = [step for (step,) in fetch(STEPS_BEFORE, {"job": job, "limit": MOST_STEPS})]
    if not found:
        return _("its prerequisites")
    names = ", ".join(found[: MOST_STEPS - 1])
    if len(found) == MOST_STEPS:
        names = _("%(steps)s and more") % {"steps": names}
    text = ngettext("the step %(steps)s", "the steps %(steps)s", len(found))
    return text % {"steps": names}


def _prerequisite(schedule: int | None) -> str:
    if schedule is None:
        return _("its prerequisites")
    for (name,) in fetch(SCHEDULE, {"schedule": schedule}):
        return _("the previous job of the schedule %(name)s") % {"name": name}
    return _("the previous job of its schedule")


def _reasons(job_type: str, text: str | None, is_retry: bool) -> Iterator[str]:
    for (reason,) in fetch(QUARANTINE, {"job_type": job_type}):
        yield _because(_("its job type is quarantined"), reason)
    if text is None:
        return
    gates = parse(text)
    if gates.tenant is not None:
        yield from _tenant(gates.tenant)
    if gates.resources:
        parameters = {"names": list(gates.resources), "most": MOST_TAKEN}
        for row in fetch_named(RESOURCES, parameters):
            yield from _resource(row, is_retry)
    if gates.key is not None:
        yield from _key(gates)


def _tenant(name: str) -> Iterator[str]:
    for row in fetch_named(TENANT, {"tenant": name}):
        if row["paused"]:
            yield _because(
                _("the tenant %(name)s is paused") % {"name": name}, row["paused_reason"]
            )
        elif row["max_concurrency"] is not None and row["taken"] >= row["max_concurrency"]:
            yield _("the tenant %(name)s (%(limit)s of %(limit)s taken)") % {
                "name": name,
                "limit": row["max_concurrency"],
            }


def _resource(row: dict[str, Any], is_retry: bool) -> Iterator[str]:
    name, limit = {"name": row["name"]}, row["max_concurrency"]
    if row["paused"]:
        yield _because(_("the resource %(name)s is paused") % name, row["paused_reason"])
    elif row["breaker_state"] == BreakerState.OPEN:
        yield _open_breaker(row["name"], row["open_until"])
    elif limit is not None and row["taken"] >= limit:
        text = _("the resource %(name)s (%(limit)s of %(limit)s taken)")
        yield text % {**name, "limit": limit}
    elif row["rate_is_spent"]:
        rate = {"rate": f"{row['rate']:g}", "seconds": f"{row['rate_seconds']:g}"}
        yield _("the rate of %(name)s (%(rate)s in %(seconds)s s)") % {**name, **rate}
    elif row["breaker_state"] == BreakerState.HALF_OPEN and row["taken"]:
        yield _("the breaker of %(name)s is half open and lets few jobs try") % name
    elif is_retry and _is_spent(row["retry_budget"], row["starts"], row["retries"]):
        yield _("the retry budget of %(name)s is used up") % name


def _is_spent(budget: float | None, starts: float, retries: float) -> bool:
    if budget is None or budget >= 1:
        return False
    return retries_allowed(budget, starts, retries) == 0


def _open_breaker(name: str, until: datetime | None) -> str:
    if until is None or until <= timezone.now():
        return _("the breaker of %(name)s is open") % {"name": name}
    values = {"name": name, "time": _shown(until)}
    return _("the breaker of %(name)s is open until %(time)s") % values


def _shown(moment: datetime) -> str:
    """In local time, with the date unless it is today."""
    local = timezone.localtime(moment)
    today = local.date() == timezone.localdate()
    return f"{local:%H:%M:%S}" if today else f"{local:%Y-%m-%d %H:%M:%S}"


def _key(gates: Gates) -> Iterator[str]:
    ((count, first),) = fetch(KEY, {"key": gates.key, "limit": gates.limit})
    if count < gates.limit:
        return
    named, more = ", ".join(map(str, first)), count - len(first)
    if more:
        named = _("%(jobs)s and %(count)s more") % {"jobs": named, "count": more}
    text = ngettext(
        "the concurrency key %(key)s (limit %(limit)s): job %(jobs)s holds it",
        "the concurrency key %(key)s (limit %(limit)s): jobs %(jobs)s hold it",
        count,
    )
    yield text % {"key": gates.key, "limit": gates.limit, "jobs": named}


def _turn(text: str | None) -> str:
    """Of a job whose gates have room: others are before it, or no worker has looked yet."""
    gates = Gates() if text is None else parse(text)
    if gates.tenant is None:
        return _("its turn")
    return _("its turn among the tenants of queue %(name)s") % {"name": gates.queue}


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text
