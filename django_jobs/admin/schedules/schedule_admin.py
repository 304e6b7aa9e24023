"""The list of schedules and the page of one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import DateTimeField, QuerySet, Subquery
from django.db.models.functions import Least
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from ... import registry
from ...api.job_type import JobType
from ...conf import conf
from ...models import Schedule
from ...models.fields import TimestampSubquery
from ...models.schedule import LONGEST_NAME
from ...models.tick import last_of_schedule, with_changes
from ..base.formatting import page_url
from ..base.model_admin import ConsoleAdmin, allowed_by, section
from ..forms.arguments import MORE, arguments_of, takes_more
from ..forms.fields import MomentField
from ..layout.console_page import ConsoleView, is_unconfirmed
from ..lists.filters import DeclaredFilter, JobTypeFilter, ScheduleQueueFilter, ScheduleStateFilter
from .actions import PAUSE, RESUME, RUN_NOW
from .columns import BACKFILL, OCCURRENCE, RUN_WITH, ScheduleColumns, readonly_reason
from .display import in_words, why_not
from .form import ScheduleForm, form_for, upgraded_payload
from .ticks import deletion_summary

CALENDAR = "django_jobs_schedule_calendar"
WHEN = (
    *(("cron", "every"), ("timezone", "dst"), ("starts_at", "ends_at")),
    *(("excluded_dates", "max_jobs"), "preview_text"),
)
POLICIES = (("overlap", "overlap_limit"), ("catch_up", "catch_up_limit"), "pause_after_dead")
VIEWS = (
    ConsoleView("calendar/", "schedules.calendar.calendar_view", CALENDAR),
    ConsoleView(
        *("preview/", "schedules.views.preview_view", "django_jobs_schedule_preview"),
        *(("preview",), is_unconfirmed),
    ),
    ConsoleView(
        *("<int:pk>/backfill/", "schedules.backfills.backfill_view", BACKFILL),
        *(("view", "backfill"), is_unconfirmed),
    ),
    ConsoleView(
        *("<int:pk>/occurrence/", "schedules.views.occurrence_view", OCCURRENCE),
        *(("view", "move"), is_unconfirmed),
    ),
    ConsoleView(
        *("<int:pk>/run/", "editing.enqueue.run_view", RUN_WITH, ("run_with",), is_unconfirmed),
    ),
)


@admin.register(Schedule)
class ScheduleAdmin(ScheduleColumns, ConsoleAdmin):
    """Schedules. A declared one is read-only here, except for its pause."""

    change_form_template = "admin/django_jobs/schedule/change_form.html"
    form = ScheduleForm
    unread = ("payload",)
    ordering = ("name",)
    list_display = ("name", "state", "runs_of", "when", "coming", "last_tick")
    sortable_by = list_display
    sorted_here: ClassVar[Any] = {
        "state": lambda schedule: str(schedule.state_at(schedule.read_at)),
        "when": lambda schedule: (schedule.every or 0, in_words(schedule.cron, schedule.every)),
    }
    list_filter = (ScheduleStateFilter, JobTypeFilter, ScheduleQueueFilter, DeclaredFilter)
    search_fields = ("name", "job_type")
    search_help_text = _("Parts of names or job types.")
    actions = ("duplicate_schedule",)
    empty = _("No schedules. Declare one in code with schedule(), or add one here.")
    operator_actions = (PAUSE, RESUME, RUN_NOW)
    at_least_one = ("overlap_limit", "pause_after_dead", "max_jobs")
    formfield_overrides: ClassVar[Any] = {DateTimeField: {"form_class": MomentField}}
    views = VIEWS
    readonly_fields = (
        *("runs", "state_text", "why_text", "paused_text", "coming", "last_due_text", "owner"),
        *("created_text", "arguments_text", "arguments_hidden", "no_arguments", "preview_text"),
        *("made_text", "until_text"),
    )

    class Media:
        js = ("django_jobs/schedule_preview.js",)

    def annotations(self) -> dict[str, Any]:
        last = last_of_schedule(conf().database)
        return {
            "last_outcome": Subquery(last.values("outcome")[:1]),
            "last_tick_at": TimestampSubquery(last.values(at=Least("due_at", "created_at"))[:1]),
            **with_changes(payloads=False),
        }

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        text = search_term.replace("type:", "").replace("*", "")  # as the search of jobs has it
        return super().get_search_results(request, queryset, text)

    has_view_permission = allowed_by("view_schedule", "change_schedule")
    has_add_permission = allowed_by("add_schedule")
    has_pause_permission = allowed_by("pause_schedule")
    has_run_permission = allowed_by("run_schedule")
    has_backfill_permission = allowed_by("backfill_schedule")
    has_move_permission = allowed_by("move_schedule")
    _may_change = allowed_by("change_schedule")
    _may_delete = allowed_by("delete_schedule")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._may_change(request, obj) and (obj is None or not readonly_reason(obj))

    # ``obj`` is None for the bulk action, which could not exclude the declared schedules.
    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if obj is None or (obj.declared and obj.name in registry.schedules()):
            return False
        return self._may_delete(request, obj)

    def has_preview_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) or self.has_add_permission(request)

    def has_run_with_permission(self, request: HttpRequest) -> bool:
        """Whether the user may run schedules with other arguments than theirs."""
        may_read = request.user.has_perm("django_jobs.view_job_payload")
        return may_read and self.has_view_permission(request) and self.has_run_permission(request)

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        from .views import list_notes

        tools = [(_("Calendar"), page_url(self.admin_site, CALENDAR), "")]
        return {"notes": list_notes(), "tools": tools}

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not self.has_add_permission(request):
            raise PermissionDenied
        if self._chosen(request) is None:
            from .views import choose_job_type

            return choose_job_type(self, request)
        # Keep the job type that the address names.
        return super().add_view(request, request.get_full_path(), extra_context)

    def page_context(self, request: HttpRequest, obj: Any) -> dict[str, Any]:
        from .views import page_context

        return {**super().page_context(request, obj), **page_context(self, request, obj)}

    # The form

    def _chosen(self, request: HttpRequest) -> JobType[..., Any] | None:
        job_type = registry.find(request.GET.get("job_type", ""))
        return job_type if job_type is not None and job_type.schedulable else None

    def get_form(
        self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any
    ) -> Any:
        job_type = self._chosen(request) if obj is None else registry.find(obj.job_type)
        if job_type is not None and (obj is None or self.has_change_permission(request, obj)):
            options["form"] = form_for(job_type, with_arguments=self._shows_arguments(request, obj))
        return super().get_form(request, obj, change, **options)

    def _shows_arguments(self, request: HttpRequest, obj: Any) -> bool:
        return obj is None or request.user.has_perm("django_jobs.view_job_payload")

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        head: list[Any] = ["name", "runs"]
        times: list[Any] = []
        if obj is not None:
            head = ["name", ("runs", "state_text", "coming", "owner")]
            head += ["made_text"] if obj.max_jobs is not None else []
            head += ["why_text"] if why_not(obj) else []
            until = ["until_text"] if obj.paused_until else []
            row = ("last_due_text", "paused_text", *until, "created_text")
            times = [section(_("Times"), row)]
        return (
            section(None, *head, "enabled"),
            section(_("When"), *WHEN),
            section(_("Arguments"), *self._arguments(request, obj)),
            section(_("Its jobs"), ("queue", "priority", "jitter_seconds")),
            section(_("Overlaps and missed due times"), *POLICIES),
            *times,
        )

    def _arguments(self, request: HttpRequest, obj: Any) -> tuple[str, ...]:
        if not self._shows_arguments(request, obj):
            return ("arguments_hidden",)
        if obj is not None and not self.has_change_permission(request, obj):
            return ("arguments_text",)
        job_type = self._chosen(request) if obj is None else registry.find(obj.job_type)
        if job_type is None:
            return ("arguments_text",)
        names = tuple(argument.key for argument in arguments_of(job_type))
        names += (MORE,) if takes_more(job_type) else ()
        return names or ("no_arguments",)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """The values of the schedule to duplicate."""
        pk = request.GET.get("copy", "")
        if not (pk.isascii() and pk.isdigit() and len(pk) < 19):
            return {}
        original = self.get_queryset(request).filter(pk=pk).first()
        if original is None or not self.has_view_permission(request, original):
            return {}
        from ...api.schedules import FIELDS

        copied = (field for field in FIELDS if field not in ("job_type", "payload"))
        initial = {field: getattr(original, field) for field in copied}
        initial["name"] = f"{original.name[: LONGEST_NAME - 5]} copy"
        may_read = request.user.has_perm("django_jobs.view_job_payload")
        chosen = self._chosen(request)
        if may_read and chosen is not None and original.job_type == request.GET.get("job_type"):
            with suppress(ValueError, RecursionError):  # Python cannot read it
                initial["payload"] = upgraded_payload(chosen, original)
        return initial

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        columns = None
        if change:
            # Saving must not undo what workers and operators wrote while the form was open. It
            # clears the error.
            own = {field.name for field in Schedule._meta.concrete_fields}
            columns = {"error", *(name for name in form.changed_data if name in own)}
            columns |= {"payload", "payload_version"} if form.with_arguments else set()
            obj.error = ""
        obj.save(using=conf().database, update_fields=columns)
        from ...lifecycle.operations import schedules as schedule_operations

        schedule_operations.changed()

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Count the rows to delete up to a limit: there may be millions of ticks."""
        return deletion_summary(objs)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        from ...lifecycle.operations import schedules as schedule_operations

        schedule_operations.delete(obj, actor=request.user)

    # The actions

    @admin.action(permissions=["add"], description=_("Duplicate"))
    def duplicate_schedule(
        self, request: HttpRequest, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        chosen = list(queryset[:2])
        if len(chosen) != 1:
            self.message_user(request, _("Choose one schedule to duplicate."), messages.ERROR)
            return None
        return HttpResponseRedirect(self.duplicate_url(chosen[0]))

    def duplicate_url(self, schedule: Schedule) -> str:
        """The address of the add form with the values of ``schedule``."""
        add = page_url(self.admin_site, "django_jobs_schedule_add")
        return f"{add}?{urlencode({'job_type': schedule.job_type, 'copy': str(schedule.pk)})}"
