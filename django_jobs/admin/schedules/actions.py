"""The actions on schedules and backfills. Each calls ``lifecycle.operations.schedules``."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ...conf import conf
from ...exceptions import JobsError
from ...lifecycle.operations import OperationResult, later
from ...models import Backfill, Schedule
from ..base.actions import OperatorAction, by_id
from ..forms.edit_form import NUMBER, number_field
from ..operator_actions import pause_action, resume_action


class RunForm(forms.Form):
    """Makes one job, also if its button is clicked twice."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields[NUMBER] = number_field()


def _run(ids: list[int], actor: Any, **given: str) -> OperationResult:
    """Run each schedule separately, so that one that cannot run does not stop the others."""
    from ...api.schedules import request_of
    from ...lifecycle.operations.schedules import run_now

    form = given[NUMBER]
    there = Schedule.objects.using(conf().database).filter(pk__in=ids)
    known = set(there.values_list("pk", flat=True))
    result = OperationResult()
    for pk in ids:
        try:
            made = run_now([pk], request_of, actor=actor, form=form)
        except JobsError as error:
            result.refused[pk] = str(error)
        else:
            if made:
                result.done.append(pk)
                result.made += made
            elif pk in known:
                result.refused[pk] = gettext("this form was sent twice, and has made one job")
            else:
                result.refused[pk] = gettext("it no longer exists")
    return result


def _cancel_backfills(ids: list[int], actor: Any) -> list[int]:
    from ...lifecycle.operations.schedules import cancel_backfill

    rows = list(Backfill.objects.using(conf().database).filter(pk__in=ids, cancelled_at=None))
    for row in rows:
        cancel_backfill(row, actor=actor)
    return [row.pk for row in rows]


PAUSE = pause_action(
    Schedule,
    later("schedules.pause"),
    question=_("Pause schedules?"),
    explanation=_(
        "The schedules fire no jobs until they are resumed. Existing jobs still run. Due times "
        "during the pause are skipped."
    ),
    done=lambda n: ngettext(
        "%(count)s schedule was paused.", "%(count)s schedules were paused.", n
    ),
)
RESUME = resume_action(
    Schedule,
    later("schedules.resume"),
    question=_("Resume schedules?"),
    explanation=_(
        "The schedules fire again from now on, including those with an error. Due times during the "
        "pause are skipped; a backfill makes their jobs."
    ),
    done=lambda n: ngettext(
        "%(count)s schedule was resumed.", "%(count)s schedules were resumed.", n
    ),
)
RUN_NOW = OperatorAction(
    action="run_schedules_now",
    permission="run",
    label=_("Run now"),
    question=_("Run schedules now?"),
    explanation=_(
        "Each schedule makes one job at once, even if it is paused or its last job has not ended. "
        "Its next due time does not change."
    ),
    execute=_run,
    done=lambda n: ngettext(
        "%(count)s schedule made a job.", "%(count)s schedules made a job each.", n
    ),
    logged="run now",
    named_by="name",
    applies=lambda schedule: True,
    form=RunForm,
    unlogged=frozenset({NUMBER}),
)
CANCEL_BACKFILL = OperatorAction(
    action="cancel_backfills",
    permission="backfill",
    label=_("Cancel"),
    question=_("Cancel backfills?"),
    explanation=_(
        "Jobs of these backfills that have not started are cancelled at once, and running ones are "
        "asked to stop. Jobs that have ended are not changed."
    ),
    execute=by_id(_cancel_backfills, _("it is already cancelled")),
    done=lambda n: ngettext(
        "%(count)s backfill was cancelled.", "%(count)s backfills were cancelled.", n
    ),
    logged="cancelled",
    named_by="schedule",
    applies=lambda backfill: backfill.cancelled_at is None and backfill.is_live,
)
