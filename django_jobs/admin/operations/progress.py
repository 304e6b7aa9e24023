"""How far an operation is, how the jobs ended that it replayed, and where these are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib.admin.sites import AdminSite
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext

from ...conf import conf
from ...domain.states import BulkState
from ...lifecycle.scope import scope_of
from ...models import BulkAction, BulkOperation, Job
from ...separators import number_text
from ..base.formatting import Visible, duration

MOST_FAILURES = 3
"""Failures of replayed jobs to which a page links."""


def fraction_of(operation: BulkOperation) -> float | None:
    """How much of what matched at the start has been handled."""
    if operation.has_looked_at_all:
        return 1.0
    if not operation.matched:
        return None
    return min((operation.done + operation.left) / float(operation.matched), 1.0)


def numbers(operation: Any) -> list[tuple[str, str]]:
    counts = [(gettext("done"), operation.done)]
    if not operation.has_looked_at_all and operation.matched is not None:
        rest = max(operation.matched - operation.done - operation.left, 0)
        counts.append((gettext("not yet done"), rest))
    counts.append((gettext("skipped"), operation.left))
    if operation.no_longer_matched:
        counts.append((gettext("no longer matched, at least"), operation.no_longer_matched))
    if operation.action == BulkAction.REPLAY:
        unknown = gettext("not ended yet") if operation.is_unfinished else gettext("not known")
        counts += [
            (gettext("succeeded"), operation.succeeded),
            (gettext("failed again"), operation.failed),
        ]
        if operation.cancelled:
            counts.append((gettext("cancelled"), operation.cancelled))
        if operation.outcomes_unknown or operation.is_unfinished:
            counts.append((unknown, operation.outcomes_unknown))
    return [(label, number_text(count)) for label, count in counts]


def sentence(operation: Any) -> str:
    """The state of an operation in one sentence, what no longer matched in another, and how the
    replayed jobs ended in a third."""
    texts = _state(operation), _no_longer_matched(operation), outcomes(operation)
    return " ".join(filter(None, texts))


def _state(operation: Any) -> str:
    handled = operation.done + operation.left
    match operation.status:
        case BulkState.PENDING:
            from ...maintenance.bulk_actions import live_workers

            if not live_workers():
                return gettext("No worker has started it yet. No worker is alive.")
            return gettext("No worker has started it yet.")
        case BulkState.RUNNING if operation.stop_requested_by:
            return gettext("It stops after this chunk: %(name)s asked for it.") % {
                "name": operation.stop_requested_by
            }
        case BulkState.RUNNING if operation.progress.get("all_sent"):
            return ngettext(
                "%(count)s job was sent back to its queue.",
                "%(count)s jobs were sent back to their queues.",
                operation.done,
            ) % {"count": number_text(operation.done)}
        case BulkState.RUNNING:
            text = gettext("%(handled)s of about %(matched)s jobs.") % {
                "handled": number_text(handled),
                "matched": number_text(operation.matched or 0),
            }
            left = time_left(operation, handled)
            if left is None:
                return text
            return text + " " + gettext("About %(time)s left.") % {"time": duration(left)}
        case BulkState.COMPLETED:
            return ngettext(
                "Completed in %(time)s: %(count)s job done.",
                "Completed in %(time)s: %(count)s jobs done.",
                operation.done,
            ) % {
                "time": duration(operation.worked(operation.finished_at)),
                "count": number_text(operation.done),
            }
        case BulkState.STOPPED:
            text = ngettext(
                "Stopped after %(count)s job: %(why)s.",
                "Stopped after %(count)s jobs: %(why)s.",
                handled,
            )
        case _:
            text = ngettext(
                "Failed after %(count)s job: %(why)s",
                "Failed after %(count)s jobs: %(why)s",
                handled,
            )
    return text % {"count": number_text(handled), "why": operation.why}


def _no_longer_matched(operation: BulkOperation) -> str:
    number = operation.no_longer_matched
    if not number:
        return ""
    return ngettext(
        "At least %(count)s other job no longer matched.",
        "At least %(count)s other jobs no longer matched.",
        number,
    ) % {"count": number_text(number)}


def outcomes(operation: BulkOperation) -> str:
    """How the replayed jobs ended; empty if it has replayed none."""
    if operation.action != BulkAction.REPLAY or not operation.done:
        return ""
    cancelled, unknown = operation.cancelled, operation.outcomes_unknown
    counts = [
        (operation.succeeded, gettext("%(count)s succeeded")),
        (operation.failed, gettext("%(count)s failed again")),
    ]
    if cancelled:
        text = ngettext("%(count)s was cancelled", "%(count)s were cancelled", cancelled)
        counts.append((cancelled, text))
    if unknown and operation.is_unfinished:
        text = ngettext("%(count)s has not ended yet", "%(count)s have not ended yet", unknown)
        counts.append((unknown, text))
    elif unknown:
        text = ngettext(
            "the outcome of %(count)s is not known",
            "the outcomes of %(count)s are not known",
            unknown,
        )
        counts.append((unknown, text))
    return ", ".join(text % {"count": number_text(count)} for count, text in counts) + "."


def time_left(operation: Any, handled: int) -> timedelta | None:
    """About how long the rest takes, by the time that the others took."""
    from ...domain.replay_plan import ReplayPlan

    took: timedelta | None = operation.worked(operation.read_at)
    if not handled or took is None:
        return None
    rest = max((operation.matched or 0) - handled, 0)
    if operation.plan is not None:
        plan = ReplayPlan.from_json(operation.plan)
        sent = operation.progress.get("sent", 0) - plan.first - plan.then
        if sent <= 0 or "rest_since" not in operation.progress:
            return None
        seconds = operation.read_at.timestamp() - operation.progress["rest_since"]
        return timedelta(seconds=max(rest / plan.rate, rest * seconds / sent))
    return took * rest / handled


def plan_text(operation: Any) -> str:
    from ...domain.replay_plan import ReplayPlan

    if operation.plan is None:
        return ""
    plan = ReplayPlan.from_json(operation.plan)
    text = gettext(
        "First %(first)s, then %(then)s, then the rest at %(rate)s per second; it stops if more "
        "than %(most)s %% fail."
    ) % {
        "first": number_text(plan.first),
        "then": number_text(plan.then),
        "rate": number_text(plan.rate),
        "most": plan.most_failed,
    }
    return text


def links(operation: BulkOperation, visible: Visible) -> list[tuple[str, str]]:
    """The jobs that failed again, and the failures that it is about, for those who see jobs."""
    if not visible.sees(Job):
        return []
    failed: list[int] = operation.progress.get("failed", [])
    found = []
    if failed:
        label = gettext("Jobs that failed again")
        if len(failed) < operation.failed:
            label = gettext("The last %(count)s jobs that failed again") % {
                "count": number_text(len(failed))
            }
        found.append((label, visible.list_url(Job, q=" ".join(map(str, failed)))))
    if scope_of(visible.request.user) is None:
        found += _failures(operation, failed, visible.site)
    return found


def _failures(
    operation: BulkOperation, failed: list[int], site: AdminSite
) -> list[tuple[str, str]]:
    """The failure that is replayed, or those of the jobs that failed again."""
    from ..failures.group_rows import failure_url, groups_url

    terms = operation.terms
    if error := terms.get("error"):
        if job_type := terms.get("job_type"):
            return [(gettext("The failure"), failure_url(site, job_type, error))]
        url = f"{groups_url(site)}?{urlencode({'q': f'error:{error}'})}"
        return [(gettext("The failure"), url)]
    jobs = Job.objects.using(conf().database).filter(pk__in=failed).exclude(fingerprint="")
    kinds = jobs.order_by().values_list("job_type", "fingerprint").distinct()
    return [
        (gettext("The failure of %(type)s") % {"type": job_type}, failure_url(site, job_type, one))
        for job_type, one in kinds[:MOST_FAILURES]
    ]
