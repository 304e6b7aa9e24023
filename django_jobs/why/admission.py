"""The gates between blocked and ready: quarantine, tenant, resources, concurrency key, and the turn
of the job among those that wait for the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..domain.admission import retries_allowed
from ..domain.breaker import PROBES
from ..domain.gates import Gates, parse
from ..domain.states import JobState
from ..models import BreakerState, Job
from ..models.job import QUARANTINED
from ..models.resource import FADED
from . import queue
from .explanation import Gate, GateState, Ref, Text, Value, fill, holding, plain
from .facts import (
    MOST_IN_LINE,
    MOST_READ,
    Facts,
    Row,
    after,
    before_in,
    clock,
    holders,
    jobs_text,
    moment,
    pause_text,
    usage_of,
)
from .workers import WORKERS, unable

MOST_TAKEN = 100_000
"""Jobs with resources that a count reads. No more than that are ready or running."""

QUARANTINE = """
SELECT id, since, reason, by FROM django_jobs_quarantine
WHERE job_type = %(job_type)s AND lifted_at IS NULL
"""
KEY = usage_of("""
    SELECT id, status, claimed_at, attempt FROM django_jobs_job_live
    WHERE concurrency_key = %(key)s AND status IN ('ready', 'running')
    LIMIT %(limit)s""")
# As the admission counts: a job that began before the breaker was half open is not one that tries.
HANGS = """resource.breaker_state = 'half_open' AND status = 'running'
    AND coalesce(claimed_at < resource.breaker_changed_at, false)"""
# No index finds the jobs of one resource, because few jobs with resources are ready or running.
USERS = usage_of(
    f"""
    SELECT id, status, claimed_at, attempt FROM (
        SELECT job.id, job.status, job.claimed_at, job.attempt, job.resources
        FROM django_jobs_job_live AS job
        WHERE job.resources IS NOT NULL AND job.status IN ('ready', 'running')
        ORDER BY job.id LIMIT {MOST_TAKEN}) AS user_of_any
    WHERE jsonb_exists(user_of_any.resources, resource.name)
    LIMIT coalesce(resource.max_concurrency, {MOST_READ})""",
    HANGS,
)
RATE = """rate, rate_seconds, tokens + rate / rate_seconds * greatest(
        date_part('epoch', statement_timestamp() - refilled_at), 0) < 1 AS rate_is_spent,
    coalesce(burst, ceil(rate)) - used.ready < 1 AS burst_is_held"""
RESOURCES = f"""
SELECT resource.id, resource.name, paused_at, paused_reason, paused_by, paused_until,
    breaker_state, breaker_changed_at, breaker_open_for, breaker_reason,
    max_concurrency, retry_budget,
    coalesce(recent_starts * {FADED}, 0) AS starts,
    coalesce(recent_retries * {FADED}, 0) AS retries,
    {RATE}, used.taken, used.hanging, used.holders
FROM django_jobs_resource AS resource CROSS JOIN LATERAL ({USERS}) AS used
WHERE resource.name = ANY(%(names)s::text[])
ORDER BY resource.name
"""
JOBS_OF_TENANT = usage_of(f"""
    SELECT job.id, job.status, job.claimed_at, job.attempt FROM django_jobs_job_live AS job
    WHERE job.tenant = %(tenant)s AND job.status IN ('ready', 'running')
    LIMIT coalesce(tenant.max_concurrency, {MOST_READ})""")
TENANT = f"""
SELECT tenant.id, tenant.name, weight, paused_at, paused_reason, paused_by, paused_until,
    max_concurrency, {RATE}, used.taken, used.holders
FROM django_jobs_tenant AS tenant CROSS JOIN LATERAL ({JOBS_OF_TENANT}) AS used
WHERE tenant.name = %(tenant)s
"""
LINE = before_in(
    """
    SELECT rank, id FROM django_jobs_job_live
    WHERE gates = %(gates)s AND gates IS NOT NULL AND status = 'blocked'
    ORDER BY gates, rank, id""",
    MOST_IN_LINE,
)


def gates_of(job: Job) -> Gates | None:
    """The gates of a job; None if it has none, or if they cannot be read."""
    try:
        return None if job.gates is None else parse(job.gates)
    except ValueError:
        return None


def parts(job: Job) -> dict[str, str]:
    found = {"quarantine": QUARANTINE}
    gates = gates_of(job)
    if gates is None or job.status == JobState.READY:
        return found
    if gates.tenant is not None:
        found["tenant"] = TENANT
    if gates.resources:
        found["resources"] = RESOURCES
    if gates.key is not None:
        found["key"] = KEY
    if job.status == JobState.BLOCKED:
        found |= {"line": LINE, "workers": WORKERS, **queue.parts(job)}
    return found


def gates(job: Job, facts: Facts) -> Iterator[Gate]:
    yield _quarantine(job, facts)
    if job.gates is None:
        if job.status == JobState.BLOCKED and not facts.rows("quarantine"):
            yield _without_gates(job)
        return
    wanted = gates_of(job)
    if wanted is None:
        yield _blocked(_("its gates cannot be read: the row was not written by this package"))
        return
    if job.status == JobState.READY:
        yield Gate(
            "admission", _("Admission"), (_("it holds its slots of key, resources and tenant"),)
        )
        return
    found = []
    if wanted.tenant is not None:
        found.append(_tenant(wanted.tenant, facts))
    rows = {row["name"]: row for row in facts.rows("resources")}
    found += [_resource(name, rows.get(name), job, facts) for name in sorted(wanted.resources)]
    if wanted.key is not None:
        found.append(_key(wanted, facts))
    yield from found
    if job.status == JobState.BLOCKED:
        closed = [*queue.gates(job, facts), *unable(job, facts)]
        is_held = any(gate.holds for gate in (*found, *closed)) or bool(facts.rows("quarantine"))
        yield _turn(wanted, is_held, facts)


def _quarantine(job: Job, facts: Facts) -> Gate:
    title, row = _("Quarantine"), facts.row("quarantine")
    if row is None:
        text = fill(_("%(name)s is not quarantined"), name=job.job_type)
        return Gate("quarantine", title, text)
    since, link = moment(row["since"]), Ref("quarantine", row["id"], _("quarantined"))
    text = fill(
        _("its job type is %(quarantined)s since %(time)s by %(who)s"),
        quarantined=link,
        time="-" if since is None else f"{clock(since)} ({facts.since(since)})",
        who=row["by"] or _("a worker"),
    )
    if row["reason"]:
        text = fill("%(text)s: %(reason)s", text=text, reason=row["reason"])
    if job.status == JobState.BLOCKED:
        blocked = _("Blocked: %(text)s.")
    elif job.status == JobState.READY:
        blocked = _("No worker claims it: %(text)s.")
    else:
        blocked = _("A worker blocks it once it is ready: %(text)s.")
    return holding(
        "quarantine",
        title,
        text,
        sentence=fill(blocked, text=text),
        phrase=_because(_("its job type is quarantined"), row["reason"]),
        lasting=True,
    )


def _without_gates(job: Job) -> Gate:
    if job.reason == QUARANTINED:
        text = _("its quarantine was lifted, and a worker makes it ready in the next moment")
        return _blocked(text, phrase=_("its turn"), lasting=False)
    return _blocked(_("it has no gate that could open: the row was not written by this package"))


def _blocked(text: str, *, phrase: str = "", lasting: bool = True) -> Gate:
    return holding(
        "admission",
        _("Admission"),
        (text,),
        sentence=fill(_("Blocked: %(text)s."), text=text),
        phrase=phrase or text,
        lasting=lasting,
    )


def _tenant(name: str, facts: Facts) -> Gate:
    title, row = _("Tenant"), facts.row("tenant")
    if row is None:
        text = fill(_("%(name)s has no row: weight 1, no limit"), name=name)
        return Gate("tenant", title, text)
    link, limit = Ref("tenant", row["id"], row["name"]), row["max_concurrency"]
    if row["paused_at"] is not None:
        phrase = _("the tenant %(name)s is paused") % {"name": name}
        named = fill(_("the tenant %(name)s"), name=link)
        return _paused("tenant", title, row, named, phrase, facts)
    if limit is not None and row["taken"] >= limit:
        text = fill(_("the tenant %(name)s (%(limit)s of %(limit)s taken)"), name=link, limit=limit)
        return _full("tenant", title, text, row, facts)
    if row["rate_is_spent"] or row["burst_is_held"]:
        return _rate("tenant", title, link, row, facts)
    weight = f"{row['weight']:g}"
    if limit is None:
        text = fill(_("%(name)s has weight %(weight)s and no limit"), name=link, weight=weight)
    else:
        text = fill(
            _("%(name)s has %(taken)s of %(limit)s, weight %(weight)s"),
            **{"name": link, "taken": row["taken"], "limit": limit, "weight": weight},
        )
    return Gate("tenant", title, text)


def _resource(name: str, row: Row | None, job: Job, facts: Facts) -> Gate:
    title = _("Resource")
    if row is None:
        text = fill(_("%(name)s has no row, and so no limit"), name=name)
        return Gate("resource", title, text)
    link, limit, taken = Ref("resource", row["id"], name), row["max_concurrency"], row["taken"]
    if row["paused_at"] is not None:
        phrase = _("the resource %(name)s is paused") % {"name": name}
        named = fill(_("the resource %(name)s"), name=link)
        return _paused("resource", title, row, named, phrase, facts)
    if row["breaker_state"] == BreakerState.OPEN:
        return _in_state(title, _open_breaker(row, link, facts))
    if limit is not None and row["taken"] >= limit:
        template = _("the resource %(name)s (%(limit)s of %(limit)s taken)")
        return _full("resource", title, fill(template, name=link, limit=limit), row, facts)
    if row["rate_is_spent"] or row["burst_is_held"]:
        return _rate("resource", title, link, row, facts)
    trying = taken - row["hanging"]
    if row["breaker_state"] == BreakerState.HALF_OPEN and trying >= PROBES:
        text = fill(_("the breaker of %(name)s is half open and lets few jobs try"), name=link)
        return _in_state(title, text, holders({**row, "taken": trying}, facts))
    if job.failures and _is_spent(row):
        text = fill(_("the retry budget of %(name)s is used up"), name=link)
        return _in_state(title, text)
    if limit is None:
        text = fill(_("%(name)s has no limit; it has %(jobs)s"), name=link, jobs=jobs_text(taken))
    else:
        text = fill(_("%(name)s has %(taken)s of %(limit)s"), name=link, taken=taken, limit=limit)
    return Gate("resource", title, text)


def _rate(name: str, title: str, link: Ref, row: Row, facts: Facts) -> Gate:
    rate = {"rate": f"{row['rate']:g}", "seconds": f"{row['rate_seconds']:g}"}
    text = fill(_("the rate of %(name)s (%(rate)s in %(seconds)s s)"), name=link, **rate)
    # Ready jobs have their tokens, and with the whole burst no other gets one.
    return _waits(name, title, text, holders(row, facts) if row["burst_is_held"] else ())


def _open_breaker(row: Row, link: Ref, facts: Facts) -> Text:
    until = after(row["breaker_changed_at"], row["breaker_open_for"])
    if until is None or until <= facts.now:
        return fill(_("the breaker of %(name)s is open"), name=link)
    return fill(_("the breaker of %(name)s is open until %(time)s"), name=link, time=clock(until))


def _is_spent(row: Row) -> bool:
    budget = row["retry_budget"]
    if budget is None or budget >= 1:
        return False
    return retries_allowed(budget, row["starts"], row["retries"]) == 0


def _key(wanted: Gates, facts: Facts) -> Gate:
    row, title = facts.row("key"), _("Concurrency key")
    assert row is not None
    values: dict[str, Value] = {
        "key": wanted.key or "",
        "taken": row["taken"],
        "limit": wanted.limit,
    }
    if row["taken"] < wanted.limit:
        template = _("%(key)s has %(taken)s of %(limit)s") if row["taken"] else _("%(key)s is free")
        return Gate("key", title, fill(template, **values))
    if not facts.names_jobs:
        template = _("the concurrency key %(key)s (%(limit)s of %(limit)s taken)")
        return _waits("key", title, fill(template, **values), holders(row, facts))
    ids = ", ".join(str(one["id"]) for one in sorted(row["holders"], key=lambda one: one["id"]))
    if more := row["taken"] - len(row["holders"]):
        ids = _("%(jobs)s and %(count)s more") % {"jobs": ids, "count": more}
    template = ngettext(
        "the concurrency key %(key)s (limit %(limit)s): job %(jobs)s holds it",
        "the concurrency key %(key)s (limit %(limit)s): jobs %(jobs)s hold it",
        row["taken"],
    )
    text = fill(template, jobs=holders(row, facts), **values)
    phrase = plain(fill(template, jobs=ids, **values))
    return _waits("key", title, text, phrase=phrase)


def _turn(wanted: Gates, is_held: bool, facts: Facts) -> Gate:
    row, title = facts.row("line"), _("Its turn")
    before = row["before"] if row else 0
    if before:
        number = jobs_text(before, row["more"] if row else False)
        text = fill(_("%(jobs)s with the same gates before it"), jobs=number)
    else:
        text = (_("the first of those with the same gates"),)
    if is_held:
        state = GateState.HOLDS if before else GateState.PASSED
        return Gate("turn", title, text, state=state)
    phrase = _("its turn")
    if wanted.tenant is not None:
        phrase = _("its turn among the tenants of queue %(name)s") % {"name": wanted.queue}
    sentence = fill(_("Waits for %(turn)s."), turn=phrase)
    return holding("turn", title, text, sentence=sentence, phrase=phrase, momentary=True)


def _paused(name: str, title: str, row: Row, named: Text, phrase: str, facts: Facts) -> Gate:
    text = pause_text(row, named, facts)
    return holding(
        name,
        title,
        text,
        sentence=fill(_("Waits: %(text)s."), text=text),
        phrase=_because(phrase, row["paused_reason"]),
        lasting=True,
    )


def _full(name: str, title: str, text: Text, row: Row, facts: Facts) -> Gate:
    return _waits(name, title, text, holders(row, facts), lasting=True)


def _waits(
    name: str, title: str, text: Text, by: Text = (), *, phrase: str = "", lasting: bool = False
) -> Gate:
    """A gate that holds, and the jobs that hold it."""
    return holding(
        name,
        title,
        fill("%(text)s: %(jobs)s", text=text, jobs=by) if by else text,
        sentence=fill(_("Waits for %(what)s."), what=text),
        phrase=phrase or plain(text),
        lasting=lasting,
        momentary=True,
    )


def _in_state(title: str, text: Text, by: Text = ()) -> Gate:
    """A resource that holds, of which ``text`` is a clause."""
    gate = _waits("resource", title, text, by, lasting=True)
    return replace(gate, sentence=fill(_("Waits: %(text)s."), text=text))


def _because(text: str, reason: str) -> str:
    return f"{text}: {reason}" if reason else text
