"""The filter of dead letters by the fingerprint of their last error."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.sites import AdminSite
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...lifecycle.scope import Scope, scope_of
from ...models import Job
from ..access.errors import class_alone, may_see_errors, without_secrets
from ..base.formatting import shortened
from ..lists.filters import TypedFilter

NO_ERROR = "none"
"""The value for dead jobs without an error."""


class FingerprintFilter(TypedFilter):
    """The dead letters of one failure. It is chosen by a link on the page of failures."""

    title = _("failure")
    parameter_name = column = "fingerprint"

    def named(self, value: str, request: HttpRequest) -> str:
        """The error, as the user may see it."""
        return error_of("" if value == NO_ERROR else value, request.user)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        from ...lifecycle.dead_letters import queues_with_dead

        value = self.value()
        if value is None:
            return queryset
        # Names the queues, so that the index of failures is used.
        fingerprint = "" if value == NO_ERROR else value
        return queryset.filter(queue__in=queues_with_dead(), fingerprint=fingerprint)


def error_of(fingerprint: str, user: Any) -> str:
    """An error with this fingerprint, as ``user`` may see it. The fingerprint, if no dead job in
    the user's scope has it."""
    if not fingerprint:
        return gettext("no error")
    from ...lifecycle.dead_letters import queues_with_dead

    dead = Job.objects.using(conf().database).dead().filter(queue__in=queues_with_dead())
    seen = dead.filter((scope_of(user) or Scope()).of(queue="queue", job_type="job_type"))
    errors = seen.filter(fingerprint=fingerprint).values_list("last_error", flat=True)
    error = "".join(errors[:1])
    shown = without_secrets if may_see_errors(user) else class_alone
    return shortened(shown(error)) if error else fingerprint


def failure_links(site: AdminSite, request: HttpRequest) -> list[tuple[str, str]]:
    """The page of the failure by which a list of dead letters was narrowed."""
    from .group_rows import failure_url

    job_type, fingerprint = (request.GET.get(name) for name in ("job_type", "fingerprint"))
    if not (job_type and fingerprint):
        return []
    fingerprint = "" if fingerprint == NO_ERROR else fingerprint
    return [(gettext("Show their failure"), failure_url(site, job_type, fingerprint))]
