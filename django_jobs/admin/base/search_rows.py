"""The rows that a search finds: by an index, or by a bounded read."""

from __future__ import annotations

from typing import Any

from django.db.models import F, Func, Q, QuerySet, TextField, Value
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.states import LIVE, JobState
from ...lifecycle.history import JOBS, LIVE_TABLE, ends_of_newest
from ...models import Job, Queue
from ...models.database import fetch
from ...models.run import by_last_run
from ...separators import number_text
from ..lists.newest_list import NEWEST
from .history_list import all_of, older, searched
from .search import SEE_ERRORS, Search

HISTORY = (JobState.SUCCEEDED, JobState.CANCELLED)
ENDED, DEAD = Q(status__in=HISTORY), Q(status=JobState.DEAD)
OUTSIDE_HISTORY = Q(status__in=sorted({*LIVE, JobState.DEAD}))
MOST_FOUND = 1_000
ERROR_CLASS = Func(
    F("last_error"), Value(": "), Value(1), function="split_part", output_field=TextField()
)
# An index that a project made. ``indpred``: one of a part of the rows serves no search.
PAYLOAD_INDEXES = """
SELECT part.relid = 'django_jobs_job_live'::regclass AS is_live, bool_and(EXISTS (
    SELECT 1 FROM pg_index AS index
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_am AS method ON method.oid = class.relam AND method.amname = 'gin'
    JOIN pg_attribute AS attribute
        ON attribute.attrelid = index.indrelid AND attribute.attnum = index.indkey[0]
    WHERE index.indrelid = part.relid AND index.indisvalid AND index.indpred IS NULL
      AND attribute.attname = 'payload'))
FROM pg_partition_tree('django_jobs_job') AS part
WHERE part.isleaf
GROUP BY 1
"""


def search_jobs(
    jobs: QuerySet[Any], search: Search, *, in_one_partition: bool, bounded: bool = True
) -> QuerySet[Any]:
    """The jobs among ``jobs`` that match every term; none if there is a problem.

    Without numbers it finds the newest of them, in the live table and among the newest of the
    history; ``in_one_partition``, ``jobs`` are of one partition, and it finds them all. So it does
    for an action, whose ``jobs`` are outside of the history. Payloads and errors are read of the
    newest jobs, if they are ``bounded`` and no index serves them. A term of the last run finds dead
    jobs.
    """
    if search.problems:
        return jobs.none()
    for column, values in search.of_run.items():
        for value in values:
            jobs = by_last_run(jobs.filter(status=JobState.DEAD), **{column: value})
    if search.terms.numbers:
        jobs = jobs.filter(pk__in=search.numbers)
    condition, contents, errors = search.columns(), search.contents(), _with_errors(search)
    if search.terms.numbers or not (condition or contents or errors):
        return _matching(jobs, condition & contents, errors)
    if in_one_partition or search.is_of_run:
        if (contents or errors) and bounded:
            jobs = _newest_of(jobs, _end_of(jobs), search)
        return _matching(jobs, condition & contents, errors)
    indexed = dict(fetch(PAYLOAD_INDEXES, {})) if contents else {}
    if search.up_to is not None:
        everything: QuerySet[Any] = Job.objects.using(conf().database)
        end = _end_of(everything.filter(OUTSIDE_HISTORY, pk__lte=search.up_to))
        jobs = _read(jobs, search, end, indexed.get(True))
        return _matching(jobs.filter(_live(search) | DEAD), condition & contents, errors)
    found = _found(jobs, search, condition & contents, errors, indexed)
    search.found = sorted(found, reverse=True)
    return jobs.filter(pk__in=found)


def search_runs(runs: QuerySet[Any], search: Search) -> QuerySet[Any]:
    """The runs among ``runs`` that match every term; none if there is a problem."""
    if search.problems:
        return runs.none()
    for column, values in search.of_run.items():
        for value in values:
            runs = runs.filter(**{column: value})
    for text in search.errors:
        condition = Q(error_type__icontains=text)
        if search.user.has_perm(SEE_ERRORS):
            condition |= Q(error_message__icontains=text)
        runs = runs.filter(condition)
    return runs.filter(job_id__in=search.numbers) if search.terms.numbers else runs


Errors = list[tuple[dict[str, Any], Q]]


def _with_errors(search: Search) -> Errors:
    """The conditions on the last error. Without the permission to see it, only on its class."""
    if search.user.has_perm(SEE_ERRORS):
        # Most are empty, which is compared in a tenth of the time.
        return [({}, ~Q(last_error="") & Q(last_error__icontains=text)) for text in search.errors]
    if not search.errors:
        return []
    return [
        ({"error_class": ERROR_CLASS}, Q(error_class__icontains=text)) for text in search.errors
    ]


def _matching(jobs: QuerySet[Any], condition: Q, errors: Errors) -> QuerySet[Any]:
    for names, error in errors:
        jobs = jobs.alias(**names).filter(error)
    return jobs.filter(condition)


def _end_of(jobs: QuerySet[Any]) -> int | None:
    """The id of the job that follows the newest; None if these are all."""
    return jobs.order_by("-pk").values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()


def _newest_of(jobs: QuerySet[Any], end: int | None, search: Search) -> QuerySet[Any]:
    if end is None:
        return jobs
    note = _("Payloads and errors were searched in the newest %(number)s jobs only.")
    search.note(note % {"number": number_text(NEWEST)})
    return jobs.filter(pk__gt=end)


def _found(
    jobs: QuerySet[Any], search: Search, condition: Q, errors: Errors, indexed: dict[bool, bool]
) -> set[int]:
    """The ids. Read once, for the count and for the page."""
    end_of_live, end_of_ended = ends_of_newest([LIVE_TABLE, JOBS.name], NEWEST)
    outside = _read(jobs.filter(OUTSIDE_HISTORY), search, end_of_live, indexed.get(True))
    ended = _read(jobs.filter(ENDED), search, end_of_ended, indexed.get(False))
    by_columns = not (search.by_index or search.errors or search.terms.arguments)
    if by_columns and end_of_ended is not None:
        ended = ended.filter(pk__gt=end_of_ended)
        search.note(f"{searched(_('jobs'), _('succeeded or cancelled'))} {older()}")
    parts = (outside.filter(_live(search)), outside.filter(DEAD), ended)
    rows = all_of(
        [
            _matching(part, condition, errors)
            .order_by("-pk")
            .annotate(part=Value(number))
            .values_list("part", "pk")[: MOST_FOUND + 1]
            for number, part in enumerate(parts)
        ]
    )
    found: set[int] = set()
    for number in range(len(parts)):
        ids = sorted((pk for part, pk in rows if part == number), reverse=True)
        if len(ids) > MOST_FOUND:
            search.is_cut = True
            note = _("More match: the newest %(number)s live, dead and ended ones are listed.")
            search.note(note % {"number": number_text(MOST_FOUND)})
        found.update(ids[:MOST_FOUND])
    return found


def _read(
    rows: QuerySet[Any], search: Search, end: int | None, is_indexed: bool | None
) -> QuerySet[Any]:
    """Those of the rows that are read, if payloads or errors are: the newest, behind ``end``,
    unless an index or a rare tag finds them."""
    if not (search.errors or (search.terms.arguments and not is_indexed)):
        return rows
    tagged = _tagged(rows, search)
    return _newest_of(rows, end, search) if tagged is None else tagged


def _tagged(rows: QuerySet[Any], search: Search) -> QuerySet[Any] | None:
    """Those that have the tags; None if they are many, or no tag is asked for."""
    if not (tags := search.terms.of("tag")):
        return None
    ids = list(rows.filter(tags__contains=tags).values_list("pk", flat=True)[: MOST_FOUND + 1])
    return rows.filter(pk__in=ids) if len(ids) <= MOST_FOUND else None


def _live(search: Search) -> Q:
    """The live jobs. For a key the queues are named, so that its unique index is used."""
    live = Q(status__in=LIVE)
    return live & Q(queue__in=list(Queue.objects.names())) if search.terms.of("key") else live
