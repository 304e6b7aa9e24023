"""The page of one job, for the list of all jobs and for the dead letters."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...domain.backoff import Backoff
from ...models import JobStatus, Queue
from ..base.formatting import NOTHING, badge, link, moment_column, preformatted, shortened
from ..base.json_display import Document, document, object_of, texts
from ..base.model_admin import ConsoleAdmin
from .progress import hidden, progress_of
from .schedule_origin import origin
from .timeline import timeline

PRIVATE = ("payload", "result", "headers")
COLUMNS = (*PRIVATE, "backoff")
HEAD = (("state", "queue_link", "job_type", "priority"), "reason_text", "error_text")


class JobPage(ConsoleAdmin):
    """Shows a whole job. Reads JSON columns separately, because they may be large or invalid."""

    change_form_template = "admin/django_jobs/job/change_form.html"
    unread = COLUMNS
    fieldsets = (
        (
            None,
            {"fields": HEAD},
        ),
        (
            _("Attempts"),
            {
                "fields": (
                    ("attempt", "failures_of", "crashes_of", "replays"),
                    ("backoff_text", "timeout_text", "worker_text"),
                )
            },
        ),
        (
            _("Times"),
            {
                "fields": (
                    ("created", "due", "claimed", "started"),
                    ("finished", "expires", "cancel_requested"),
                )
            },
        ),
        (
            _("Identity"),
            {"fields": (("id", "idempotency_key", "rank_text", "payload_version"),)},
        ),
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
        if obj.scheduled_for is not None:
            head.insert(1, "schedule_text")
        return ((None, {"fields": tuple(head)}), *self.fieldsets[1:])

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_jobs.view_job")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.cancel_job")

    def has_reprioritize_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.reprioritize_job")

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.run_job")

    def has_replay_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("django_jobs.replay_job")

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            columns = texts(obj, PRIVATE)
            seen = request.user.has_perm("django_jobs.view_job_payload")
            context = {
                **context,
                "timeline": timeline(obj, self.admin_site, columns["headers"][0], request),
                "documents": self._documents(seen, columns),
                "progress": progress_of(obj, seen),
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _documents(self, seen: bool, columns: dict[str, Any]) -> list[Document]:
        if seen:
            return [document(str(self.titles[name]), *columns[name]) for name in PRIVATE]
        return [hidden(str(self.titles[name])) for name in PRIVATE]

    @admin.display(description=_("status"))
    def state(self, job: Any) -> str:
        return badge(job.status, job.get_status_display())

    @admin.display(description=_("job type"))
    def job_name(self, job: Any) -> str:
        return str(job.job_type)

    @admin.display(description=_("queue"))
    def queue_name(self, job: Any) -> str:
        return str(job.queue)

    @admin.display(description=_("queue"))
    def queue_link(self, job: Any) -> str:
        # One extra query. The lists show the name without a link.
        queue = Queue.objects.using(conf().database).filter(name=job.queue).first()
        return job.queue if queue is None else link(self.admin_site, Queue, queue.pk, job.queue)

    @admin.display(description=_("schedule"))
    def schedule_text(self, job: Any) -> str:
        return origin(job, self.admin_site)

    @admin.display(description=_("reason"))
    def reason_text(self, job: Any) -> str:
        return preformatted(job.reason)

    @admin.display(description=_("last error"))
    def error_text(self, job: Any) -> str:
        return preformatted(job.last_error)

    @admin.display(description=_("last error of an earlier attempt"))
    def earlier_error_text(self, job: Any) -> str:
        return preformatted(job.last_error)

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
