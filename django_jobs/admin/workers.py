"""Workers: their state, queues and job types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import OuterRef
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..conf import conf
from ..models import Job, Worker
from ..models.worker import in_hand_text, pools_text
from ..separators import number_text
from .base.formatting import (
    NOTHING,
    ago,
    badge,
    choice_badge,
    column,
    moment_column,
    one_line,
    page_url,
    text_column,
)
from .base.model_admin import REFRESH_SECONDS, CappedCount, ConsoleAdmin, allowed_by, section
from .doctor import DOCTOR
from .fleet.jobs_in_hand import jobs_in_hand
from .layout.console_page import ConsoleView
from .lists.filters import StatusFilter
from .operator_actions import STOP, STOP_COMMAND, STOP_HOST

DEPLOYS = "django_jobs_worker_deploys"
NAMED = 2
"""Queues of a worker that the list names."""


@admin.register(Worker)
class WorkerAdmin(ConsoleAdmin):
    list_display = (
        "name",
        "state",
        "heartbeat",
        "served_line",
        "busy",
        "prefetched",
        "version_line",
        "place_line",
    )
    ordering = ("-started_at", "-id")
    sortable_by = ("name", "state", "heartbeat", "busy", "version_line", "place_line")
    list_filter = (StatusFilter,)
    empty = _("No worker has started yet. Start one: manage.py jobworker.")
    operator_actions = (STOP, STOP_COMMAND, STOP_HOST)
    views = (
        ConsoleView("deploys/", "fleet.deploys_page.deploys_view", DEPLOYS),
        ConsoleView("doctor/", "doctor.doctor_view", DOCTOR, ("doctor",)),
    )
    change_form_template = "admin/django_jobs/worker/change_form.html"
    list_words = ("prefetched",)
    words = ("lease", "prefetched")
    fieldsets = (
        section(
            None,
            ("name", "state", "heartbeat", "lease"),
            ("busy", "prefetched", "attempts", "place", "memory", "code_version"),
        ),
        section(_("Process"), "served", "known", ("id", "supervisor_pid")),
        section(
            _("Times"),
            ("started", "drain_requested", "draining", "stopped", "stop_reason"),
            "schedules_seen",
        ),
    )

    def annotations(self) -> dict[str, Any]:
        jobs = Job.objects.using(conf().database)
        return {"claimed": CappedCount(jobs.filter(status="running", worker_id=OuterRef("pk")))}

    has_stop_permission = allowed_by("stop_worker")
    has_doctor_permission = allowed_by("run_doctor")

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        context = super().page_context(request, obj)
        context.get("operator_actions", []).reverse()  # the narrowest first
        if obj is None or obj.has_ended:
            return context
        sees_jobs = request.user.has_perm("django_jobs.view_job")
        shown = {"in_hand": jobs_in_hand(obj, self.admin_site)} if sees_jobs else {}
        return {**context, **shown, "refresh_seconds": REFRESH_SECONDS}

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        tools = [(_("Deploys"), page_url(self.admin_site, DEPLOYS), "")]
        if self.has_doctor_permission(request):
            tools.append((_("Doctor"), page_url(self.admin_site, DOCTOR), ""))
        return {"tools": tools}

    @admin.display(description=_("status"), ordering="status")
    def state(self, worker: Any) -> str:
        if not worker.has_ended and worker.lease_expires_at < worker.read_at:
            return badge("expired", gettext("lease expired"))
        if not worker.has_ended and worker.drain_requested_at and worker.status == "running":
            return badge("draining", gettext("asked to drain"))
        return choice_badge(worker, "status")

    heartbeat = moment_column("heartbeat_at", _("last heartbeat"), ago)

    lease = column(
        _("lease ends"),
        lambda row: NOTHING if row.has_ended else ago(row.lease_expires_at, row.read_at),
    )
    served = column(_("queues"), lambda worker: pools_text(worker.pools) or _listed(worker.queues))

    @admin.display(description=_("queues"))
    def served_line(self, worker: Any) -> str:
        whole = self.served(worker)
        if worker.pools or not isinstance(worker.queues, list) or len(worker.queues) <= NAMED:
            return one_line(whole)
        named = ", ".join(map(str, worker.queues[:NAMED]))
        return one_line(f"{named} +{len(worker.queues) - NAMED}", whole)

    # A host that is too long is cut, and the process is not.
    place_line = column(
        _("process and host"), lambda worker: one_line(f"{worker.pid} · {worker.host}"), "host"
    )
    known = column(
        _("known job types"), lambda worker: _listed(worker.job_types, worker.payload_versions)
    )

    @admin.display(description=_("running / threads"), ordering="claimed")
    def busy(self, worker: Any) -> str:
        text: str = in_hand_text((worker.claimed, worker.threads, worker.async_slots))[0]
        if not worker.claimed:
            return text
        return str(worker.visible.list_link(Job, text, worker=worker.pk))

    version_line = text_column(
        "code_version", _("code version"), lambda text: one_line(text) if text else NOTHING
    )

    @admin.display(description=_("prefetched"))
    def prefetched(self, worker: Any) -> str:
        return in_hand_text((worker.claimed, worker.threads, worker.async_slots))[1]

    @admin.display(description=_("attempts"))
    def attempts(self, worker: Any) -> str:
        ended, failed = map(number_text, (worker.ended_runs, worker.failed_runs))
        return gettext("%(ended)s ended, %(failed)s failed") % {"ended": ended, "failed": failed}

    memory = column(
        _("memory"), lambda worker: f"{number_text(worker.rss_mb)} MB" if worker.rss_mb else NOTHING
    )

    place = column(_("host and process"), lambda worker: worker.place)
    started = moment_column("started_at", _("started"))
    schedules_seen = moment_column("schedules_seen_at", _("last check of the schedules"))
    drain_requested = moment_column("drain_requested_at", _("drain requested"))
    draining = moment_column("draining_at", _("draining since"))
    stopped = moment_column("stopped_at", _("stopped"))


def _listed(names: Any, versions: Mapping[str, int] | None = None) -> str:
    """The names, each followed by its version if it has one."""
    if not isinstance(names, list):
        return NOTHING
    by_name = versions or {}
    texts = map(str, names)
    return ", ".join(f"{text} ({by_name[text]})" if text in by_name else text for text in texts)
