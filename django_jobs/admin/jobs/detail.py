"""The page of one job, for the list of all jobs and for the dead letters."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.backoff import Backoff
from ...models import JobStatus, Queue, Resource, Tenant
from ..base.formatting import (
    NOTHING,
    badge,
    link,
    moment_column,
    preformatted,
    shortened,
    text_column,
)
from ..base.json_display import document, hidden, object_of, texts
from ..base.model_admin import ConsoleAdmin, allowed_by, section
from .inspection import inspection_of
from .progress import progress_of
from .schedule_origin import origin
from .timeline import timeline
from .workflow_step import workflow_of

PRIVATE = ("payload", "result", "headers")
COLUMNS = (*PRIVATE, "backoff", "signals")
HEAD = (("state", "queue_link", "job_type", "priority"), "reason_text", "error_text")


class JobPage(ConsoleAdmin):
    """Shows a whole job. Reads JSON columns separately, because they may be large or invalid."""

    change_form_template = "admin/django_jobs/job/change_form.html"
    unread = COLUMNS
    fieldsets = (
        section(None, *HEAD),
        section(
            _("Attempts"),
            ("attempt", "failures_of", "crashes_of", "replays"),
            ("backoff_text", "timeout_text", "worker_text"),
        ),
        section(
            _("Times"),
            ("created", "due", "claimed", "started"),
            ("finished", "expires", "cancel_requested"),
        ),
        section(_("Identity"), ("id", "idempotency_key", "rank_text", "payload_version")),
    )
    titles: ClassVar[dict[str, Any]] = {
        "payload": _("Payload"),
        "result": _("Result"),
        "headers": _("Headers"),
    }

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        head: list[Any] = list(HEAD)
        if obj.status == JobStatus.SUCCEEDED:
            # The error of an earlier attempt stays on the row, but the job succeeded.
            head[head.index("error_text")] = "earlier_error_text"
        if obj.workflow_run_id is not None:
            head.insert(1, "workflow_text")
        if obj.scheduled_for is not None:
            head.insert(1, "schedule_text")
        if obj.gates is not None:
            head.insert(1, ("tenant_text", "concurrency_key_text", "resources_text"))
        return (section(None, *head), *self.fieldsets[1:])

    has_view_permission = allowed_by("view_job")
    has_cancel_permission = allowed_by("cancel_job")
    has_reprioritize_permission = allowed_by("reprioritize_job")
    has_run_permission = allowed_by("run_job")
    has_inspect_permission = allowed_by("inspect_job")
    has_replay_permission = allowed_by("replay_job")
    has_signal_permission = allowed_by("signal_workflowrun")
    has_skip_permission = allowed_by("skip_workflowstep")

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        columns = texts(obj, PRIVATE)
        seen = request.user.has_perm("django_jobs.view_job_payload")
        return {
            **super().page_context(request, obj),
            "timeline": timeline(obj, self.admin_site, columns["headers"][0], request),
            "documents": [
                document(str(title), *columns[name]) if seen else hidden(str(title))
                for name, title in self.titles.items()
            ],
            "progress": progress_of(obj, seen),
            "inspection": inspection_of(obj) if self.has_inspect_permission(request) else None,
        }

    @admin.display(description=_("status"))
    def state(self, job: Any) -> str:
        return badge(job.status, job.get_status_display())

    job_name = text_column("job_type", _("job type"))
    queue_name = text_column("queue", _("queue"))

    @admin.display(description=_("queue"))
    def queue_link(self, job: Any) -> str:
        # One extra query. The lists show the name without a link.
        queue = Queue.objects.using(conf().database).filter(name=job.queue).first()
        return job.queue if queue is None else link(self.admin_site, Queue, queue.pk, job.queue)

    @admin.display(description=_("schedule"))
    def schedule_text(self, job: Any) -> str:
        return origin(job, self.admin_site)

    @admin.display(description=_("workflow"))
    def workflow_text(self, job: Any) -> str:
        return workflow_of(job, self.admin_site)

    concurrency_key_text = text_column("concurrency_key", _("concurrency key"))

    @admin.display(description=_("tenant"))
    def tenant_text(self, job: Any) -> str:
        return self._links(Tenant, [] if job.tenant is None else [job.tenant])

    @admin.display(description=_("resources"))
    def resources_text(self, job: Any) -> str:
        return self._links(Resource, job.resources or [])

    def _links(self, model: type[Resource | Tenant], names: list[str]) -> str:
        """The names, as links to those that have a row."""
        rows: Any = model._default_manager.using(conf().database).filter(name__in=names)
        ids = dict(rows.values_list("name", "pk"))
        shown = (
            link(self.admin_site, model, ids[name], name) if name in ids else name for name in names
        )
        return format_html_join(", ", "{}", ((one,) for one in shown)) or NOTHING

    reason_text = text_column("reason", _("reason"), preformatted)
    error_text = text_column("last_error", _("last error"), preformatted)
    earlier_error_text = text_column(
        "last_error", _("last error of an earlier attempt"), preformatted
    )

    @admin.display(description=_("last error"))
    def error_line(self, job: Any) -> str:
        return NOTHING if job.status == JobStatus.SUCCEEDED else shortened(job.last_error)

    @admin.display(description=_("failures"))
    def failures_of(self, job: Any) -> str:
        return f"{job.failures} / {job.max_attempts}"

    @admin.display(description=_("crashes in a row"))
    def crashes_of(self, job: Any) -> str:
        return f"{job.crashes} / {job.max_crashes}"

    @admin.display(description=_("time-out"))
    def timeout_text(self, job: Any) -> str:
        return NOTHING if job.timeout is None else f"{job.timeout:g} s"

    @admin.display(description=_("backoff"))
    def backoff_text(self, job: Any) -> str:
        stored, _length = texts(job, ["backoff"])["backoff"]
        rule = Backoff.from_json(object_of(stored))
        delays = ", ".join(f"{rule.longest(failure):,.4g}" for failure in range(1, 5))
        return f"{rule.curve}: {delays}, … s"

    @admin.display(description=_("worker"))
    def worker_text(self, job: Any) -> str:
        return NOTHING if job.worker_id is None else f"#{job.worker_id}"

    @admin.display(description=_("rank"))
    def rank_text(self, job: Any) -> str:
        return f"{job.rank:.3f}"

    created = moment_column("created_at", _("created"))
    due = moment_column("available_at", _("due"))
    claimed = moment_column("claimed_at", _("claimed"))
    started = moment_column("started_at", _("started"))
    finished = moment_column("finished_at", _("finished"))
    cancel_requested = moment_column("cancel_requested_at", _("cancel requested"))
    expires = moment_column("expires_at", _("expires"))
