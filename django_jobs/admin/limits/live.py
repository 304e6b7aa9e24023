"""The numbers of a resource or a tenant now, above its form."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ... import registry
from ...conf import conf
from ...domain.histograms import Histogram
from ...domain.states import FAILURES, JobState, RunState
from ...metrics.limits import BUCKETS, LimitDetails, rate_text, read_resource, read_tenant
from ...metrics.overview import MINUTES
from ...models import Job, Resource, Tenant
from ...separators import number_text
from ..base.formatting import NOTHING, Visible, badge, joined
from ..jobs.detail import COLUMNS
from ..layout.charts import Chart, attempts_chart, sparkline
from ..layout.tables import Column, Table
from ..overview.numbers import seconds_text
from ..overview.sections import Tile
from .sentences import (
    breaker_sentence,
    budget_sentence,
    burst,
    counted,
    rate_sentence,
    retry_share,
    state_sentence,
    taken_number,
    taken_of,
    waiting_number,
    waiting_of,
)

STATES = {"ready": gettext_lazy("ready"), "running": gettext_lazy("running")}
Fact = tuple[str, str]
EXPLAINED = 3
"""Lines of which the page says why they wait: those with the most jobs."""


def live_resource(row: Resource, visible: Visible) -> dict[str, Any]:
    types = [name for name in registry.names() if row.name in registry.get(name).resources]
    details = read_resource(row, types)
    return {
        **_shown(row, details),
        "facts": [*_why(details, visible), *_facts(row, types, visible, details)],
        "tiles": [*_tiles(row, details), *_meters(row, details)],
        "curve": _failures(row, details),
        "chart": _attempts(row, types, details),
        "tables": _of_jobs(details, visible),
    }


def live_tenant(row: Tenant, visible: Visible) -> dict[str, Any]:
    details = read_tenant(row)
    weight = Tile(number_text(row.weight, "g"), _("weight"))
    links = [(_("All jobs of the tenant"), visible.list_url(Job, tenant=row.name))]
    return {
        **_shown(row, details),
        "facts": [*_day(row, details), *_why(details, visible)],
        "tiles": [*_tiles(row, details), *_starts(row, details), weight],
        "tables": [_shares(row, details), *_of_jobs(details, visible)],
        "links": links if visible.sees(Job) else [],
    }


def _shown(row: Any, details: LimitDetails) -> dict[str, Any]:
    return {"kind": "limit", "states": [state_sentence(row, details), waiting_of(details)]}


def _why(details: LimitDetails, visible: Visible) -> list[Fact]:
    """What holds the first job of the longest lines, and so the others of them."""
    lines = {one["first"]: one for one in details.parts["lines"][:EXPLAINED] if one["jobs"]}
    if not lines or not visible.sees(Job):
        return []
    from ...why.evaluation import explain
    from ..job_sections.why import Linked

    blocked = Job.objects.using(conf().database).filter(pk__in=lines, status=JobState.BLOCKED)
    jobs, linked = blocked.defer(*COLUMNS).in_bulk(), Linked(visible)
    found: dict[str, tuple[int, bool]] = {}
    for pk, line in lines.items():
        if pk in jobs:
            sentence = linked.text(explain(jobs[pk]).sentence)
            count, more = found.get(sentence, (0, False))
            found[sentence] = count + line["jobs"], more or line["more"]
    facts = []
    for sentence, (count, more) in found.items():
        label = ngettext("Why %(count)s job waits", "Why %(count)s jobs wait", count)
        facts.append((label % {"count": number_text(count, more=more)}, sentence))
    return facts


def _day(tenant: Tenant, details: LimitDetails) -> list[Fact]:
    """How the attempts of a tenant ended in the last day, and how long they took."""
    row = details.row("day")
    if not row or not conf().totals:
        return []
    runs = row["outcomes"]
    means = {time: Histogram(*row[time]).mean for time in ("waiting", "runtime")}
    shown = {time: NOTHING if mean is None else seconds_text(mean) for time, mean in means.items()}
    text = _(
        "%(succeeded)s succeeded, %(failed)s failed. On average an attempt waited for %(waiting)s "
        "and ran for %(runtime)s."
    )
    counts = {"succeeded": runs[RunState.SUCCEEDED], "failed": sum(runs[one] for one in FAILURES)}
    numbers = {name: number_text(count) for name, count in counts.items()}
    facts = [(_("Attempts of the last day"), text % {**numbers, **shown})]
    if row["slo_runs"]:
        share = number_text(row["slo_met"] / row["slo_runs"], ".2%")
        if tenant.slo_seconds is None:
            text = _("%(share)s started in time, by the objectives of their queues.")
        else:
            text = _("%(share)s started within %(time)s; the objective is %(target)s.")
        target = number_text(tenant.slo_target * 100, ".4g") + "%"
        time = seconds_text(tenant.slo_seconds or 0)
        facts.append((_("Objective"), text % {"share": share, "time": time, "target": target}))
    return facts


def _tiles(row: Any, details: LimitDetails) -> list[Tile]:
    counts, first = details.row("taken"), details.row("next")
    limit = "∞" if row.max_concurrency is None else number_text(row.max_concurrency)
    waiting = waiting_number(details)
    if row.max_waiting is not None:
        waiting = f"{waiting} / {number_text(row.max_waiting)}"
    return [
        Tile(f"{taken_number(details)} / {limit}", _("taken of the limit")),
        Tile(number_text(counts["running"], more=details.more_hold), _("running")),
        Tile(number_text(counts["ready"], more=details.more_hold), _("ready, not started")),
        Tile(waiting, _("blocked in line")),
        Tile(seconds_text(first["seconds"]) if first else NOTHING, _("the next one waits")),
    ]


def _starts(row: Resource | Tenant, details: LimitDetails) -> list[Tile]:
    if row.rate is None:
        return []
    left = max(int(details.row("meters")["tokens"]), 0)
    label = _("starts left, rate %(rate)s") % {"rate": rate_text(row.rate, row.rate_seconds)}
    return [Tile(f"{number_text(left)} / {number_text(burst(row))}", label)]


def _meters(row: Resource, details: LimitDetails) -> list[Tile]:
    shown = _starts(row, details)
    if row.retry_budget is not None:
        label = _("retries, budget %(budget)s") % {"budget": number_text(row.retry_budget, ".0%")}
        shown.append(Tile(retry_share(details), label))
    if row.breaker_failures is not None:
        failed, most = counted(details, "failed"), number_text(row.breaker_failures)
        shown.append(Tile(f"{number_text(failed)} / {most}", _("failures that open it")))
    return shown


def _facts(row: Resource, types: list[str], visible: Visible, details: LimitDetails) -> list[Fact]:
    found = [(_("Breaker"), breaker_sentence(row, details))]
    if row.rate is not None:
        found.append((_("Rate"), rate_sentence(row, details)))
    if row.retry_budget is not None:
        found.append((_("Retries"), budget_sentence(row, details)))
    used = joined(", ", (visible.list_link(Job, name, job_type=name) for name in types))
    found.append((_("Used by"), used or _("No job type that this server knows.")))
    return found


def _failures(row: Resource, details: LimitDetails) -> Chart | None:
    """The failures that the breaker counts, over its window."""
    if row.breaker_failures is None:
        return None
    values = [0.0] * BUCKETS
    for one in details.parts["outcomes"]:
        values[max(BUCKETS - 1 - one["ago"], 0)] += one["failed"]
    title = _("Failures in the last %(window)s") % {"window": seconds_text(row.breaker_window)}
    return sparkline(values, title, "failed")


def _attempts(row: Resource, types: list[str], details: LimitDetails) -> Chart | None:
    """How the attempts of its job types ended in the last hour; None without any."""
    if not details.parts["minutes"] or not conf().totals:
        return None
    known = {one["ago"]: one for one in details.parts["minutes"]}
    nothing = {"succeeded": 0, "failed": 0, "others": 0}
    minutes = [known.get(ago, nothing) for ago in range(MINUTES - 1, -1, -1)]
    title = _("Attempts of its job types, for each minute of the last hour, by outcome")
    return attempts_chart(minutes, title)


def _of_jobs(details: LimitDetails, visible: Visible) -> list[Table]:
    """The tables of single jobs and of lines, for a user who may view jobs."""
    if not visible.sees(Job):
        return []
    lines = [] if _is_tenant(details) else _lines(details)
    return [_holders(details, visible), _next(details, visible), *lines]


def _holders(details: LimitDetails, visible: Visible) -> Table:
    rows = []
    for one in details.parts["holders"]:
        state, share = one["status"], one["fraction"]
        since = one["seconds"] if state == "running" else None
        rows.append([
            visible.job(one["id"]), one["job_type"], badge(state, STATES[state]),
            NOTHING if since is None else seconds_text(since),
            NOTHING if share is None else number_text(share, ".0%"), *_where(one, details),
        ])  # fmt: skip
    columns = [
        Column(_("Job")), Column(_("Job type")), Column(_("State")),
        Column(_("For"), number=True), Column(_("Progress"), number=True, wide=True),
        *_where_columns(details),
    ]  # fmt: skip
    title, taken = _("Taken by"), taken_of(details)
    if taken > len(rows):
        values = {"count": len(rows), "all": taken_number(details)}
        title = _("Taken by, the first %(count)s of %(all)s") % values
    return Table(title, columns, rows, _("Nothing is taken."))


def _next(details: LimitDetails, visible: Visible) -> Table:
    rows = [
        [
            visible.job(one["id"]), one["job_type"], seconds_text(one["seconds"]),
            *_where(one, details),
        ]
        for one in details.parts["next"]
    ]  # fmt: skip
    columns = [
        Column(_("Job")), Column(_("Job type")), Column(_("Waits"), number=True),
        *_where_columns(details),
    ]  # fmt: skip
    return Table(_("Next in line"), columns, rows, _("No job waits."))


def _where(job: dict[str, Any], details: LimitDetails) -> list[str]:
    """The queue of a job, and its tenant unless the page is that of the tenant."""
    names = [job["queue"], job["tenant"] or NOTHING]
    return names[:1] if _is_tenant(details) else names


def _where_columns(details: LimitDetails) -> list[Column]:
    columns = [Column(_("Queue"), wide=True), Column(_("Tenant"), wide=True)]
    return columns[:1] if _is_tenant(details) else columns


def _is_tenant(details: LimitDetails) -> bool:
    return "shares" in details.parts


def _lines(details: LimitDetails) -> list[Table]:
    """The lines with the most jobs, if there are several."""
    if len(details.lines) < 2:
        return []
    rows = []
    for one in details.parts["lines"]:
        gates = details.lines[one["gates"]]
        rows.append([
            gates.tenant or NOTHING, gates.queue or NOTHING, gates.key or NOTHING,
            ", ".join(gates.resources), number_text(one["jobs"], more=one["more"]),
        ])  # fmt: skip
    columns = [
        Column(_("Tenant")), Column(_("Queue"), wide=True), Column(_("Concurrency key")),
        Column(_("Resources"), wide=True), Column(_("Jobs"), number=True),
    ]  # fmt: skip
    title = _("Lines that wait, the first %(count)s of %(all)s") % {
        "count": len(rows), "all": number_text(len(details.lines))
    }  # fmt: skip
    return [Table(title, columns, rows, "")]


def _shares(row: Tenant, details: LimitDetails) -> Table:
    """Its share of each queue where it waits."""
    rows = []
    for one in details.parts["shares"]:
        share = row.weight / one["weights"] if one["weights"] and not row.paused else 0.0
        rows.append([
            one["queue"], number_text(int(one["jobs"]), more=one["more"]),
            number_text(share, ".0%"), number_text(one["tenants"]),
        ])  # fmt: skip
    columns = [
        Column(_("Queue")), Column(_("Jobs that wait"), number=True),
        Column(_("Share"), number=True), Column(_("Tenants that wait"), number=True),
    ]  # fmt: skip
    return Table(_("Its turn in the queues"), columns, rows, _("It waits in no queue."))
