"""The page of one job, for the list of all jobs and for the dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import QuerySet, Value
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.backoff import Backoff
from ...domain.payload import key_parts
from ...models import JobStatus, Queue, Resource, Tenant
from ...separators import number_text
from ..access.errors import HidesErrors, deaths, hidden_error, hide_in_job, without_secrets
from ..base.actions import ceiling_of
from ..base.formatting import (
    NOTHING,
    choice_badge,
    column,
    joined,
    moment_column,
    one_line,
    page_url,
    text_column,
)
from ..base.json_display import coding_of, document, hidden, object_of, texts
from ..base.model_admin import REFRESH_SECONDS, ConsoleAdmin, allowed_by, section, unlimited
from ..base.search import LARGEST_ID, OUTSIDE_HISTORY, SEE_PAYLOADS, Search, job_search, show
from ..operator_actions import refusal_of
from .columns import name_and_tags, tag_links

PRIVATE = ("payload", "result", "headers")
COLUMNS = (*PRIVATE, "backoff", "signals")
FACTS = (
    *("queue_link", "priority", "workflow_text", "schedule_text"),
    *("tags_text", "tenant_text", "concurrency_key_text", "resources_text"),
    *("key_text", "key_scope_text"),
    *("created", "due", "ready", "started", "finished", "expires", "retried_until"),
    *("cancel_requested", "force_requested"),
    *("failures_of", "replays", "timeout_text", "backoff_text", "delivery_text"),
)
CURVES = {
    "exponential": _("exponential"),
    "polynomial": _("polynomial"),
    "linear": _("linear"),
    "fixed": _("fixed"),
}
EMPTY = (None, "{}", "null")
SAYS: dict[str, Callable[[Any], Any]] = {
    "arguments_line": lambda job: getattr(job, "arguments", ""),
    "urgency": lambda job: job.priority,
    "failures_of": lambda job: job.failures,
    "error_line": lambda job: job.status != JobStatus.SUCCEEDED and job.last_error,
    "progress_line": lambda job: job.report,
    "stop_button": lambda job: job.stops,
}
"""The columns of lists that are left out unless they say something of a row."""
INTERNALS = ("attempt", "crashes_of", "claimed", "rank_text", "payload_version", "worker_text")


class JobPage(HidesErrors, ConsoleAdmin):
    """Shows a whole job. Reads JSON columns separately, because they may be large or invalid."""

    change_form_template = "admin/django_jobs/job/change_form.html"
    words = ("gate", "lease")
    hide = staticmethod(hide_in_job)
    scoped_by: ClassVar[Any] = {"queue": "queue", "job_type": "job_type"}
    unread = COLUMNS
    exported = (
        *("id", "job_type", "queue", "status", "priority", "tags", "tenant", "idempotency_key"),
        *("created_at", "available_at", "started_at", "finished_at", "attempt", "failures"),
        *("reason", "last_error", "fingerprint", "workflow_run_id", "payload", "result"),
    )
    fieldsets = (section(None, *FACTS, *INTERNALS),)
    titles: ClassVar[dict[str, Any]] = {
        "payload": _("Payload"),
        "result": _("Result"),
        "headers": _("Headers"),
    }

    class Media:
        css: ClassVar[dict[str, tuple[str, ...]]] = {
            "all": ("django_jobs/job.css", "django_jobs/why.css")
        }

    search_fields = ("id",)  # shows the box; get_search_results does the search
    search_help_text = _(
        "Ids, type:name or type:billing., key:order-7, tag:vip, parent:71, error:Timeout, "
        "arguments such as customer_id:42 or order.id:7, or of dead jobs code:503. "
        '"Quotes" are for values with spaces.'
    )

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        may_read = request.user.has_perm(SEE_PAYLOADS)
        columns: tuple[str, ...] = tuple(map(str, self.list_display))
        return tuple(one for one in columns if may_read or one != "arguments_line")

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        from ..fleet.jobs_in_hand import add_running
        from .columns import add_arguments

        changes = super().get_changelist_instance(request)
        if request.method == "GET" and "arguments_line" in changes.list_display:
            add_arguments(changes.result_list)
        if "runs_for" in changes.list_display:
            add_running(changes.result_list)
            allowed = self.get_actions(request)
            for job in changes.result_list:
                stops = [one for one in self.in_rows if one.action in allowed and one.applies(job)]
                job.stops = stops[0] if stops else None
        # A column that says nothing of these rows is left out.
        changes.list_display = [
            name
            for name in changes.list_display
            if name not in SAYS or any(map(SAYS[name], changes.result_list))
        ]
        return changes

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        search = job_search(search_term, request.user)
        if "action" in request.POST:
            ceiling = ceiling_of(request)
            search.up_to = LARGEST_ID if ceiling is None else ceiling
            queryset = queryset.filter(OUTSIDE_HISTORY, pk__lte=search.up_to)
        rows = self.found(request, queryset, search)
        show(self, request, search)
        return rows, False

    def found(self, request: HttpRequest, rows: QuerySet[Any], search: Search) -> QuerySet[Any]:
        raise NotImplementedError

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        facts = tuple(name for name in FACTS if name not in empty_facts(obj))
        internals = {"fields": (INTERNALS,), "classes": ("collapse",)}
        return (section(_("Details"), facts), (_("Internals"), internals))

    has_view_permission = allowed_by("view_job")
    has_cancel_permission = allowed_by("cancel_job")
    has_reprioritize_permission = allowed_by("reprioritize_job")
    has_run_permission = allowed_by("run_job")
    has_inspect_permission = allowed_by("inspect_job")
    has_replay_permission = allowed_by("replay_job")
    has_dismiss_permission = allowed_by("dismiss_job")
    has_enqueue_permission = allowed_by("enqueue_job")
    has_reveal_permission = allowed_by("reveal_job")
    has_edit_permission = allowed_by("edit_job")
    has_payload_permission = allowed_by("view_job_payload")
    has_signal_permission = unlimited("signal_workflowrun")
    has_skip_permission = unlimited("skip_workflowstep")

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        from ..editing.difference import past_edits
        from ..editing.edit import may_edit
        from ..editing.enqueue import like_url
        from ..job_sections.links import children, links_of, parent_of, related_links
        from ..job_sections.progress import inspection_of, progress_of
        from ..job_sections.timeline import timeline
        from ..job_sections.why import fails, hints_of, state_sentence, why_section
        from .files import file_links
        from .reveal import hidden_parts

        columns = obj.json_texts = texts(obj, (*PRIVATE, "backoff"))
        seen = request.user.has_perm("django_jobs.view_job_payload")
        shown = timeline(obj, obj.visible, columns["headers"][0])
        text, length = columns["headers"]
        died_of = None if obj.errors_hidden else without_secrets
        columns["headers"] = deaths(text, died_of), length
        coding = coding_of(obj.job_type)
        headers = columns["headers"][0]
        edits = past_edits(headers, columns["payload"][0], seen, coding)
        others = {name: one for name, one in object_of(headers).items() if name != "edits"}
        documents = columns | ({"headers": (json.dumps(others), length)} if edits else {})
        why = why_section(obj, obj.visible)
        may_reveal = self.has_reveal_permission(request) and hidden_parts(request, obj)
        may_inspect = obj.attempt and self.has_inspect_permission(request)
        context, refused = super().page_context(request, obj), refusal_of(obj)
        offered = context["operator_actions"]
        edit_url, reveal_url = (
            page_url(self.admin_site, f"django_jobs_job_{name}", obj.pk)
            for name in ("edit", "reveal")
        )
        tools = []
        if may_edit(self, request, obj, refused):
            is_dead = obj.status == JobStatus.DEAD
            tools.append((_("Edit and replay") if is_dead else _("Edit"), edit_url, "jobs-edit"))
        if url := like_url(self, request, obj):
            tools.append((_("Enqueue another like it"), url, ""))
        return {
            **context,
            "operator_actions": [one for one in offered if not (refused and one.restarts)],
            "state": self.state(obj),
            "tools": tools,
            "reveal_url": reveal_url if may_reveal else "",
            "sentence": state_sentence(obj, shown["worker"], why, refused),
            "hints": hints_of(obj, why, refused),
            "why": why,
            "timeline": shown,
            "shows_error": fails(obj),
            "hidden_error": hidden_error() if obj.errors_hidden else "",
            "failed": shown["last"] if fails(obj) else None,
            "refresh_seconds": None if obj.is_final else REFRESH_SECONDS,
            "links": links_of(obj, columns["payload"][0] if seen else None, headers),
            "related": [
                *filter(None, [parent_of(obj, headers, obj.visible)]),
                *related_links(obj, obj.visible),
            ],
            "children": children(obj, obj.visible),
            "documents": [
                document(str(title), *documents[name], coding) if seen else hidden(str(title))
                for name, title in self.titles.items()
                if name == "payload" or documents[name][0] not in EMPTY
            ],
            "files": file_links(self, obj) if seen and conf().storage is not None else (),
            "progress": progress_of(obj, seen),
            "edits": edits,
            "inspection": inspection_of(obj) if may_inspect else None,
        }

    state = column(_("status"), lambda job: choice_badge(job, "status"))

    job_name = column(_("job type"), lambda job: name_and_tags(job, job.visible.site))
    tags_text = column(_("tags"), lambda job: tag_links(job.tags, job.visible.site))
    arguments_line = column(
        _("arguments"), lambda job: one_line(getattr(job, "arguments", "")) or NOTHING
    )
    queue_name = text_column("queue", _("queue"), one_line)

    @admin.display(description=_("queue"))
    def queue_link(self, job: Any) -> str:
        from ..job_sections.why import queue_of

        queue = queue_of(job)
        return job.queue if queue is None else str(job.visible.link(Queue, queue.pk, job.queue))

    @admin.display(description=_("schedule"))
    def schedule_text(self, job: Any) -> str:
        from ..job_sections.links import origin

        return origin(job, job.visible)

    @admin.display(description=_("workflow"))
    def workflow_text(self, job: Any) -> str:
        from ..job_sections.links import workflow_of

        return workflow_of(job, job.visible)

    concurrency_key_text = text_column("concurrency_key", _("concurrency key"))

    tenant_text = column(
        _("tenant"), lambda job: _links(job, Tenant, [] if job.tenant is None else [job.tenant])
    )
    key_text = column(_("idempotency key"), lambda job: key_parts(job.idempotency_key or "")[1])

    key_scope_text = column(
        _("key is unique within"),
        lambda job: _("tenant %(name)s") % {"name": key_parts(job.idempotency_key or "")[0]},
    )
    resources_text = column(_("resources"), lambda job: _links(job, Resource, job.resources or []))
    error_line = column(
        _("last error"),
        lambda job: NOTHING if job.status == JobStatus.SUCCEEDED else one_line(job.last_error),
    )
    failures_of = column(_("failures"), lambda job: f"{job.failures} / {job.max_attempts}")
    crashes_of = column(_("crashes in a row"), lambda job: f"{job.crashes} / {job.max_crashes}")

    @admin.display(description=_("time-out"))
    def timeout_text(self, job: Any) -> str:
        return str(_("none")) if job.timeout is None else f"{number_text(job.timeout, ',g')} s"

    @admin.display(description=_("backoff"))
    def backoff_text(self, job: Any) -> str:
        stored, _length = job.json_texts["backoff"]
        rule = Backoff.from_json(object_of(stored))
        delays = ", ".join(number_text(rule.longest(failure), ",.4g") for failure in range(1, 5))
        return f"{CURVES[rule.curve]}: {delays}, … s"

    worker_text = column(
        _("worker"), lambda job: NOTHING if job.worker_id is None else f"#{job.worker_id}"
    )
    delivery_text = column(_("delivery"), lambda job: str(_("at most once")))
    rank_text = column(_("rank"), lambda job: number_text(job.rank, ".3f"))
    created = moment_column("created_at", _("created"))
    due = moment_column("available_at", _("due"))
    ready = moment_column("ready_at", _("let go by its gates"))
    claimed = moment_column("claimed_at", _("claimed"))
    started = moment_column("started_at", _("started"))
    finished = moment_column("finished_at", _("finished"))
    cancel_requested = moment_column("cancel_requested_at", _("cancel requested"))
    force_requested = moment_column("force_requested_at", _("stop by force requested"))
    expires = moment_column("expires_at", _("expires"))
    retried_until = moment_column("retry_until", _("retried until"))


def empty_facts(job: Any) -> set[str]:
    """The facts that say nothing about this job, or that the page shows elsewhere."""
    is_retried = job.max_attempts > 1 and not job.at_most_once
    says_something = {
        "priority": job.priority,
        "workflow_text": job.workflow_run_id,
        "schedule_text": job.scheduled_for,
        "tags_text": job.tags,
        "tenant_text": job.tenant,
        "concurrency_key_text": job.concurrency_key,
        "resources_text": job.resources,
        "key_text": job.idempotency_key,
        "key_scope_text": key_parts(job.idempotency_key or "")[0],
        "due": not job.is_final,
        "ready": job.ready_at and job.status in (JobStatus.READY, JobStatus.RUNNING),
        "started": job.started_at,
        "finished": job.finished_at,
        "expires": job.expires_at,
        "retried_until": job.retry_until and not job.is_final,
        "cancel_requested": job.cancel_requested_at,
        "force_requested": job.force_requested_at,
        "failures_of": job.failures or (is_retried and not job.is_final),
        "replays": job.replays,
        "timeout_text": job.timeout or not job.is_final,
        "backoff_text": is_retried and not job.is_final,
        "delivery_text": job.at_most_once,
    }
    return {name for name, said in says_something.items() if not said}


def _links(job: Any, model: type[Resource | Tenant], names: list[str]) -> str:
    ids = {name: pk for kind, name, pk in _limit_rows(job) if kind == model.__name__}
    shown = (job.visible.link(model, ids.get(name), name) for name in names)
    return joined(", ", shown) or NOTHING


def _limit_rows(job: Any) -> list[tuple[str, str, int]]:
    """The kind, the name and the id of the rows of its tenant and its resources."""
    if not hasattr(job, "limit_rows"):
        named = ((Tenant, [job.tenant]), (Resource, job.resources or []))
        tenants, resources = (
            model._default_manager.using(conf().database)
            .filter(name__in=names)
            .order_by()
            .annotate(kind=Value(model.__name__))
            .values_list("kind", "name", "pk")
            for model, names in named
        )
        # Of one that is left, Django 6.1 would write the default order of the rows twice.
        job.limit_rows = list(tenants.union(resources, all=True).order_by())
    return list(job.limit_rows)
