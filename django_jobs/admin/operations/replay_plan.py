"""The page of a replay plan: what a replay would meet today, and the waves in which it is done."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.db.models import CharField, Func, TextField
from django.db.models.functions import Cast
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...api.shortcuts import stored_payload_problem
from ...conf import conf
from ...domain.bulk import Reasons, checked_terms
from ...exceptions import OperationRefused
from ...lifecycle.operations import bulk
from ...maintenance.bulk_actions import is_known_elsewhere, knows, live_workers
from ...models import BulkAction, DeadLetter, Job, Worker
from ...separators import number_text
from ..base.actions import ModelAdmin, ceiling_of
from ..base.formatting import duration, list_url
from ..failures.filters import NO_ERROR, error_of
from ..forms.fields import reason_field
from ..layout.console_page import console_page, time_limit
from .background import begin, described

if TYPE_CHECKING:
    from ...domain.replay_plan import ReplayPlan

SAMPLE = 500
SAMPLE_BYTES = 8 * 2**20
"""Jobs, and bytes of payloads, that the dry run reads."""
NAMED = 3
LINKED = {"error": "error", "type": "job_type", "queue": "queue", "code": "code"}
"""The parameters of the page's address, and their terms."""


class PlanForm(forms.Form):
    first = forms.IntegerField(
        label=_("Jobs in the first wave"), min_value=1, max_value=1_000, initial=1
    )
    then = forms.IntegerField(
        label=_("Jobs in the second wave"), min_value=0, max_value=10_000, initial=20
    )
    rate = forms.IntegerField(
        label=_("The rest, jobs per second"), min_value=1, max_value=1_000, initial=10
    )
    most_failed = forms.IntegerField(
        label=_("Stop above this percentage of failures"),
        min_value=0,
        max_value=100,
        initial=20,
        help_text=_("Of the last 100 replayed jobs. 100 never stops by itself."),
    )
    reason = reason_field(_("Optional. Stored with each job and in the history."))

    def plan(self) -> ReplayPlan:
        from ...domain.replay_plan import ReplayPlan

        given = self.cleaned_data
        return ReplayPlan(**{name: given[name] for name in given if name != "reason"})


def plan_view(page: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Show the dry run; on ``begin``, start the operation."""
    try:
        terms, max_id = _asked(request)
    except (ValueError, RecursionError) as error:
        page.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(list_url(page.admin_site, DeadLetter))
    if request.method == "POST" and "begin" in request.POST:
        form = PlanForm(request.POST)
        if form.is_valid():
            reason = form.cleaned_data["reason"]
            try:
                return begin(
                    page, request, BulkAction.REPLAY, terms, {}, reason, max_id, form.plan()
                )
            except OperationRefused as error:
                form.add_error(None, str(error))
    else:
        form = PlanForm()
    return plan_page(page, request, terms, max_id, form)


def _asked(request: HttpRequest) -> tuple[dict[str, Any], int]:
    """The terms of the address or of the form, and the newest job. Raises ``ValueError``."""
    if request.method == "POST":
        terms = json.loads(request.POST.get("terms", ""))
    else:
        terms = {
            LINKED.get(name, name): value for name, value in request.GET.items() if value != ""
        }
        if terms.get("error") == NO_ERROR:
            terms["error"] = ""
        terms = terms or {"status": "dead"}
    ceiling = ceiling_of(request)
    return checked_terms(terms), bulk.newest() if ceiling is None else ceiling


def plan_page(
    page: ModelAdmin, request: HttpRequest, terms: Mapping[str, Any], max_id: int, form: PlanForm
) -> HttpResponse:
    from ...domain.replay_plan import ReplayPlan

    terms = bulk.in_scope(terms, request.user)
    with time_limit():
        matched = bulk.count(BulkAction.REPLAY, terms, max_id).jobs
        sample = _sample(terms, max_id)
        checks = _checks(sample, matched)
    plan = form.plan() if form.is_bound and form.is_valid() else ReplayPlan()
    rest = plan.seconds(matched)
    title = ngettext("Replay plan: %(count)s dead job", "Replay plan: %(count)s dead jobs", matched)
    return console_page(
        page,
        request,
        "bulkoperation/plan.html",
        title=title % {"count": number_text(matched)},
        media=forms.Media(css={"all": ("admin/css/forms.css", "django_jobs/operations.css")}),
        parents=[(gettext("Dead letters"), list_url(page.admin_site, DeadLetter))],
        which=described(terms, error_of(terms["error"], request.user) if "error" in terms else ""),
        matched=matched,
        checks=checks,
        sampled=len(sample) if len(sample) < matched else 0,
        form=form,
        terms=json.dumps(terms),
        max_id=max_id,
        expected=duration(timedelta(seconds=rest)) if rest else "",
        back=list_url(page.admin_site, DeadLetter),
    )


def _sample(terms: Mapping[str, Any], max_id: int) -> list[dict[str, Any]]:
    """The oldest jobs that match, with their payloads as text."""
    ids = bulk.find(BulkAction.REPLAY, terms, 0, max_id).ids[:SAMPLE]
    jobs = Job.objects.using(conf().database).dead().filter(pk__in=ids)
    stored = Func("payload", function="pg_column_size", output_field=CharField())
    chosen, size = [], 0
    for id_, length in jobs.order_by("pk").values_list("pk", stored):
        size += int(length)
        if size <= SAMPLE_BYTES:
            chosen.append(id_)
    columns = "job_type", "payload_version", "queue", "workflow_run_id"
    keys = "idempotency_key", "at_most_once"
    texts = jobs.filter(pk__in=chosen).annotate(text=Cast("payload", TextField()))
    return list(texts.values("pk", *columns, *keys, "text"))


def _checks(sample: list[dict[str, Any]], matched: int) -> list[dict[str, str]]:
    """What a replay of these jobs would meet: a state, a name and a text each."""
    if not sample:
        return []
    workers = live_workers()
    checks = [_handlers(sample, workers), *_code(sample, workers), _payloads(sample, workers)]
    if keyed := [job for job in sample if job["idempotency_key"] is not None]:
        checks.append(_keys(keyed))
    if once := sum(job["at_most_once"] for job in sample):
        text = ngettext(
            "%(count)s is of an at-most-once type: a replay may repeat what was done",
            "%(count)s are of an at-most-once type: a replay may repeat what was done",
            once,
        )
        checks.append(_check("caution", gettext("At most once"), text, once))
    return checks


def _handlers(sample: list[dict[str, Any]], workers: list[Worker]) -> dict[str, str]:
    types = Counter(job["job_type"] for job in sample)
    known = {name: [one for one in workers if knows(one, name)] for name in types}
    name = gettext("Handler")
    if unknown := sorted(one for one in types if not known[one]):
        text = gettext("no live worker knows %(named)s") % {"named": _named(unknown)}
        return _check("error", name, text)
    fewest = min(len(ones) for ones in known.values())
    text = ngettext("known to %(count)s live worker", "known to %(count)s live workers", fewest) % {
        "count": number_text(fewest)
    }
    versions = {worker.code_version for ones in known.values() for worker in ones}
    if len(versions) > 1:
        text += ", " + gettext("with %(count)s code versions") % {"count": len(versions)}
    return _check("ok" if len(versions) <= 1 else "caution", name, text)


def _code(sample: list[dict[str, Any]], workers: list[Worker]) -> list[dict[str, str]]:
    """Whether the code has changed since the jobs died; nothing if versions are not known."""
    from ...metrics.failures import code_versions_of

    types = {job["job_type"] for job in sample}
    now = {one.code_version for one in workers if any(knows(one, name) for name in types)} - {""}
    failed = {one.version: one.jobs for one in code_versions_of([job["pk"] for job in sample])}
    if not now or not failed:
        return []
    values = {"failed": _named(failed), "now": _named(sorted(now))}
    same = sum(failed[version] for version in now & failed.keys())
    if not same:
        text = gettext("failed in %(failed)s, workers run %(now)s") % values
    elif same == sum(failed.values()):
        text = gettext("failed in %(failed)s, workers run %(now)s: nothing has changed") % values
    else:
        text = ngettext(
            "failed in %(failed)s, workers run %(now)s: for %(same)s job nothing has changed",
            "failed in %(failed)s, workers run %(now)s: for %(same)s jobs nothing has changed",
            same,
        ) % {**values, "same": number_text(same)}
    return [_check("caution" if same else "ok", gettext("Code"), text)]


def _named(names: Iterable[str]) -> str:
    named = list(names)
    return ", ".join(named[:NAMED]) + (", …" if len(named) > NAMED else "")


def _payloads(sample: list[dict[str, Any]], workers: list[Worker]) -> dict[str, str]:
    from ...lifecycle.workflows.results import taken_arguments

    problems = Reasons()
    steps = taken_arguments(job["pk"] for job in sample if job["workflow_run_id"] is not None)
    for job in sample:
        type_, version = job["job_type"], job["payload_version"]
        if not is_known_elsewhere(workers, type_, version):
            taken = partial(list[str], steps.get(job["pk"], ()))
            problem = stored_payload_problem(type_, version, job["text"], taken, brief=True)
            if problem is not None:
                problems.add({job["pk"]: problem})
    wrong = sum(entry["count"] for entry in problems.counts.values())
    text = gettext("%(good)s of %(all)s fit the current handler") % {
        "good": number_text(len(sample) - wrong),
        "all": number_text(len(sample)),
    }
    if wrong:
        text += "; " + gettext("the others are not replayed: %(why)s") % {
            "why": "; ".join(list(problems.counts)[:NAMED])
        }
    return _check("caution" if wrong else "ok", gettext("Payload"), text)


def _keys(keyed: list[dict[str, Any]]) -> dict[str, str]:
    live = (
        Job.objects.using(conf().database)
        .live()
        .filter(
            queue__in={job["queue"] for job in keyed},
            idempotency_key__in=[job["idempotency_key"] for job in keyed],
        )
    )
    holders = set(live.values_list("queue", "idempotency_key"))
    taken = sum((job["queue"], job["idempotency_key"]) in holders for job in keyed)
    if not taken:
        return _check("ok", gettext("Keys"), gettext("no live job has one of their keys"))
    text = ngettext(
        "%(count)s has a live job with its key: it is not replayed",
        "%(count)s have a live job with their key: these are not replayed",
        taken,
    )
    return _check("caution", gettext("Keys"), text, taken)


def _check(state: str, name: str, text: str, count: int = 0) -> dict[str, str]:
    return {
        "state": state,
        "name": name,
        "text": text % {"count": number_text(count)} if count else text,
    }
