"""The due time of a job and where it comes from, its prerequisites, and when it expires."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..domain.states import FAILURES, JobState, RunState
from ..domain.workflows import When
from ..models import Job, RunOutcome, StepCondition
from ..models.fields import DistantTime
from .explanation import Gate, Ref, Text, Value, fill, holding, joined, plain
from .facts import Facts, Row, clock, job_ref, moment, status_text

MOST_STEPS = 4
CONDITIONS = dict(StepCondition.choices)

SLEEP = """
SELECT substr(key, 7) AS key, answer ->> 'until' AS until FROM django_jobs_receipt
WHERE job_id = %(id)s AND starts_with(key, 'sleep:')
  AND (answer ->> 'until')::timestamptz > statement_timestamp()
ORDER BY id DESC LIMIT 1
"""
LAST_RUN = """
SELECT outcome, error_type, attempt, error_message <> '' AS has_message FROM django_jobs_run
WHERE job_id = %(id)s AND attempt <= %(attempt)s ORDER BY attempt DESC LIMIT 1
"""
# Each edit notes what it changed in the headers. Hands may write anything there.
EDITS = """
SELECT edit #>> '{after,due}' AS due FROM django_jobs_job_live AS job,
    jsonb_path_query(job.headers, '$.edits[*]') AS edit
WHERE job.id = %(id)s AND job.status = 'scheduled'
"""
SIGNAL = """
SELECT answer ->> 'until' AS until FROM django_jobs_receipt
WHERE job_id = %(id)s AND key = 'signal:' || %(awaits)s
"""
# Those that can still end are live.
STEPS = f"""
SELECT parent.id, parent.step, parent.status, edge.when FROM django_jobs_dependency AS edge
JOIN django_jobs_job_live AS parent ON parent.id = edge.parent_id
    AND parent.status NOT IN ('succeeded', 'cancelled', 'dead')
WHERE edge.child_id = %(id)s
ORDER BY edge.parent_id LIMIT {MOST_STEPS}
"""
SCHEDULE = "SELECT id, name FROM django_jobs_schedule WHERE id = %(schedule)s"
PREVIOUS = """
SELECT id, status FROM django_jobs_job_live
WHERE schedule_id = %(schedule)s AND id < %(id)s
  AND status IN ('waiting', 'scheduled', 'blocked', 'ready', 'running')
ORDER BY id LIMIT 3
"""


def parts(job: Job) -> dict[str, str]:
    match job.status:
        case JobState.SCHEDULED if job.attempt:
            return {"edits": EDITS, "sleep": SLEEP, "last_run": LAST_RUN}
        case JobState.SCHEDULED:
            return {"edits": EDITS}
        case JobState.WAITING if job.awaits:
            return {"signal": SIGNAL}
        case JobState.WAITING if job.prerequisites:
            return {"steps": STEPS}
        case JobState.WAITING if job.schedule_id is not None:
            return {"schedule": SCHEDULE, "previous": PREVIOUS}
    return {}


def gates(job: Job, facts: Facts) -> Iterator[Gate]:
    if job.status == JobState.WAITING:
        yield _prerequisites(job, facts)
    else:
        yield _due(job, facts)
    if job.expires_at is not None:
        yield _expiry(job, facts)


def _due(job: Job, facts: Facts) -> Gate:
    title, at = _("Due"), job.available_at
    if at <= facts.now:
        text = fill(
            _("since %(time)s"), time=at.text if isinstance(at, DistantTime) else facts.since(at)
        )
        if job.status == JobState.SCHEDULED:
            text = (*text, _("; a worker makes it ready in the next moment"))
        return Gate("due", title, text)
    if isinstance(at, DistantTime):
        values = {"time": at.text, "origin": _origin(job, facts)}
        text = fill(_("never: its due time is %(time)s; %(origin)s"), **values)
    else:
        values = {"age": facts.since(at), "time": clock(at), "origin": _origin(job, facts)}
        text = fill(_("in %(age)s, at %(time)s: %(origin)s"), **values)
    sleep = facts.row("sleep")
    phrase = ""
    if sleep is not None and (until := moment(sleep["until"])) is not None:
        values = {"key": sleep["key"], "time": clock(until)}
        phrase = _("its sleep %(key)s, until %(time)s") % values
    return holding("due", title, text, sentence=_next_attempt(job, text, facts), phrase=phrase)


def _next_attempt(job: Job, text: Text, facts: Facts) -> Text:
    run = facts.row("last_run")
    if run is None or run["outcome"] not in FAILURES or isinstance(job.available_at, DistantTime):
        again = _("Runs again %(when)s.") if job.attempt else _("Runs %(when)s.")
        return fill(again, when=text)
    template = ngettext(
        "Failed %(failures)s of %(most)s time; runs again in %(age)s.",
        "Failed %(failures)s of %(most)s times; runs again in %(age)s.",
        job.max_attempts,
    )
    values: dict[str, Value] = {"failures": job.failures, "most": job.max_attempts}
    return fill(template, age=facts.since(job.available_at), **values)


def _origin(job: Job, facts: Facts) -> str:
    """Where a due time in the future comes from."""
    if any(moment(edit["due"]) == job.available_at for edit in facts.rows("edits")):
        return _("an edit set it")
    if (sleep := facts.row("sleep")) is not None:
        return _("its handler sleeps (%(key)s)") % {"key": sleep["key"]}
    if not job.attempt:
        if job.scheduled_for is not None:
            return _("its schedule delays its jobs by some seconds (jitter)")
        return _("it was enqueued with a delay or a time to run at")
    run = facts.row("last_run")
    if run is None:
        return _("postponed after attempt %(attempt)s") % {"attempt": job.attempt}
    match run["outcome"]:
        case RunState.SNOOZED if run["has_message"]:  # the worker snoozes for some causes, too
            return _("snoozed in attempt %(attempt)s, whose run says why") % {
                "attempt": run["attempt"]
            }
        case RunState.SNOOZED:
            return _("its handler snoozed in attempt %(attempt)s") % {"attempt": run["attempt"]}
        case outcome if outcome in FAILURES:
            values = {
                "attempt": run["attempt"],
                "outcome": RunOutcome(run["outcome"]).label,
                "error": f" ({run['error_type']})" if run["error_type"] else "",
                "failures": job.failures,
                "most": job.max_attempts,
            }
            return (
                _(
                    "the backoff after attempt %(attempt)s: %(outcome)s%(error)s, "
                    "failure %(failures)s of %(most)s"
                )
                % values
            )
    return _("postponed after attempt %(attempt)s") % {"attempt": run["attempt"]}


def _expiry(job: Job, facts: Facts) -> Gate:
    at = job.expires_at
    assert at is not None
    if isinstance(at, DistantTime):
        return Gate("expires", _("Expires"), (at.text,))
    if at > facts.now:
        values = {"age": facts.since(at), "time": clock(at)}
        text = fill(_("in %(age)s, at %(time)s, unless it has started by then"), **values)
        return Gate("expires", _("Expires"), text)
    text = fill(_("%(age)s ago: the worker that takes it ends it without a run of its handler"),
                age=facts.since(at))  # fmt: skip
    return holding(
        "expires",
        _("Expires"),
        text,
        sentence=fill(_("It expired %(text)s."), text=text),
        phrase=_("it has expired"),
    )


def _prerequisites(job: Job, facts: Facts) -> Gate:
    text, phrase = _prerequisite(job, facts)
    return holding(
        "prerequisites",
        _("Prerequisites"),
        text,
        sentence=fill(_("Waits for %(what)s."), what=text),
        phrase=phrase or plain(text),
        lasting=True,
    )


def _prerequisite(job: Job, facts: Facts) -> tuple[Text, str]:
    """With its short form, if that differs."""
    if job.awaits:
        text = fill(_("the signal %(name)s"), name=job.awaits)
        row = facts.row("signal")
        if row is None or (until := moment(row["until"])) is None:
            return text, ""
        return fill(_("%(signal)s, until %(time)s"), signal=text, time=clock(until)), ""
    if job.prerequisites:
        return _steps(facts)
    if job.schedule_id is not None:
        return _previous_job(facts)
    return (_("its prerequisites"),), ""


def _steps(facts: Facts) -> tuple[Text, str]:
    rows = facts.rows("steps")
    if not rows:
        return (_("its prerequisites"),), ""
    if not facts.names_jobs:
        return (_("the steps before it"),), ""
    shown = rows[: MOST_STEPS - 1]
    links = joined(map(_step, shown))
    names = ", ".join(row["step"] or f"#{row['id']}" for row in shown)
    if len(rows) == MOST_STEPS:
        links = fill(_("%(steps)s and more"), steps=links)
        names = _("%(steps)s and more") % {"steps": names}
    template = ngettext("the step %(steps)s", "the steps %(steps)s", len(rows))
    return fill(template, steps=links), template % {"steps": names}


def _step(row: Row) -> Text:
    step = Ref("job", row["id"], row["step"] or f"#{row['id']}")
    if row["when"] == When.SUCCEEDED:
        return fill("%(step)s (%(status)s)", step=step, status=status_text(row))
    wanted = CONDITIONS.get(row["when"], row["when"])
    template = _("%(step)s (%(status)s, has to be %(wanted)s)")
    return fill(template, step=step, status=status_text(row), wanted=str(wanted))


def _previous_job(facts: Facts) -> tuple[Text, str]:
    row = facts.row("schedule")
    if row is None:
        text: Text = (_("the previous job of its schedule"),)
    else:
        name = Ref("schedule", row["id"], row["name"])
        text = fill(_("the previous job of the schedule %(name)s"), name=name)
    previous = joined(
        fill("%(job)s (%(status)s)", job=job_ref(one["id"]), status=status_text(one))
        for one in facts.rows("previous")
    )
    return (fill("%(text)s: %(jobs)s", text=text, jobs=previous) if previous else text), plain(text)
