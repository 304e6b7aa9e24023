"""The search boxes over jobs and over runs. Each term is found by an index or a bounded read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.db.models import F, Func, Q, QuerySet, TextField, Value
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...conf import conf
from ...domain.search_terms import FINGERPRINT, MOST_TERMS, Terms, parsed
from ...domain.states import LIVE, JobState
from ...lifecycle.history import JOBS, newest_part
from ...models import Job, Queue
from ...models.database import fetch
from ...models.run import by_last_run
from .history_list import MOST_READ

HISTORY = (JobState.SUCCEEDED, JobState.CANCELLED)
OUTSIDE_HISTORY = Q(status__in=sorted({*LIVE, JobState.DEAD}))
MOST_FOUND = 1_000
NEWEST = 100_000
"""Jobs in each of the live table and the history whose payloads and errors are read without an
index: 20 ms each if they are small and cached."""
LARGEST_ID = 2**63 - 1
KINDS = ("type", "key", "tag", "code", "error")
KINDS_OF_RUNS = ("code", "error")
ERROR_CLASS = Func(
    F("last_error"), Value(": "), Value(1), function="split_part", output_field=TextField()
)
SEE_PAYLOADS, SEE_ERRORS = "django_jobs.view_job_payload", "django_jobs.view_job_error"

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


@dataclass(slots=True)
class Search:
    """What a text asks for on a page, and what its user may search. ``problems`` say why nothing
    is found, ``notes`` what was searched."""

    terms: Terms
    user: Any
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    @property
    def numbers(self) -> list[int]:
        """Those that can be the ids of jobs."""
        return [number for number in self.terms.numbers if number <= LARGEST_ID]

    @property
    def of_run(self) -> dict[str, list[str]]:
        """What is asked of the last run of a dead job, or of a run, by column."""
        fingerprints = [one for one in self.terms.of("error") if FINGERPRINT.fullmatch(one)]
        return {"error_code": self.terms.of("code"), "fingerprint": fingerprints}

    @property
    def errors(self) -> list[str]:
        """What is asked of the class or the text of an error."""
        return [one for one in self.terms.of("error") if not FINGERPRINT.fullmatch(one)]

    @property
    def by_index(self) -> bool:
        """Whether an index on all jobs of any age finds them: by their ids or by a tag."""
        return bool(self.terms.numbers or self.terms.of("tag"))

    @property
    def reads_history(self) -> bool:
        """Whether jobs that have ended are searched for without an index."""
        sought = *self.terms.of("type"), *self.terms.of("key"), *self.errors, *self.terms.arguments
        return bool(sought) and not (self.by_index or self.is_of_run or self.problems)

    @property
    def is_of_run(self) -> bool:
        return any(self.of_run.values())

    def columns(self) -> Q:
        """The conditions on columns of a job that are short."""
        condition = Q()
        for column, kind in (("job_type", "type"), ("idempotency_key", "key")):
            for value in self.terms.of(kind):
                condition &= Q(**{column: value})
        if tags := self.terms.of("tag"):
            condition &= Q(tags__contains=tags)
        return condition

    def contents(self) -> Q:
        """The conditions on payloads."""
        condition = Q()
        for argument in self.terms.arguments:
            some = Q()
            for document in argument.documents():
                some |= Q(payload__contains=document)
            condition &= some
        return condition


def unchecked(text: str) -> Search:
    """What ``text`` asks for on a list of jobs, if its user may search it."""
    return Search(parsed(text, KINDS, arguments=True), None)


def job_search(text: str, user: Any) -> Search:
    """What ``text`` asks for on a list of jobs."""
    search = Search(unchecked(text).terms, user)
    search.problems += _unknown(search.terms, _("arguments of the handler such as customer_id:42"))
    if search.terms.arguments and not user.has_perm(SEE_PAYLOADS):
        search.problems.append(
            _("To search in payloads you need the permission to see payloads and results in full.")
        )
    for argument in search.terms.arguments:
        if argument.is_secret(conf().redact_keys):
            name = ".".join(argument.path)
            search.problems.append(
                _("%(name)s is masked, so it cannot be searched.") % {"name": name}
            )
    if search.errors and not user.has_perm(SEE_ERRORS):
        search.notes.append(_only_classes())
    return search


def run_search(text: str, user: Any) -> Search:
    """What ``text`` asks for on the list of runs."""
    search = Search(parsed(text, KINDS_OF_RUNS), user)
    search.problems += _unknown(search.terms)
    if search.errors and not user.has_perm(SEE_ERRORS):
        search.notes.append(_only_classes())
    return search


def _only_classes() -> str:
    return _("Only the classes of errors were searched. Their texts need a permission.")


def _unknown(terms: Terms, *others: str) -> Iterator[str]:
    if terms.too_many:
        yield _("A search has at most %(number)s terms besides ids.") % {"number": MOST_TERMS}
    if not terms.unknown:
        return
    runs = not others
    kinds = (
        ("code:503", "error:Timeout")
        if runs
        else (*("type:shop.send_receipt", "key:order-7", "tag:vip", "code:503", "error:Timeout"),)
    )
    yield _("Not understood: %(terms)s. A search has ids of jobs, %(kinds)s.") % {
        "terms": ", ".join(terms.unknown[:5]),
        "kinds": ", ".join((*kinds, *others)),
    }


def search_jobs(
    jobs: QuerySet[Any], search: Search, *, in_one_partition: bool, bounded: bool = True
) -> QuerySet[Any]:
    """The jobs among ``jobs`` that match every term; none if there is a problem.

    Without numbers it finds the newest of them, in the live table and the newest part of the
    history; ``in_one_partition``, ``jobs`` are of one partition, and it finds them all. Payloads
    and errors are read of the newest jobs, if they are ``bounded`` and no index serves them. A term
    of the last run finds dead jobs.
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
            jobs = _newest_of(jobs, jobs, search)
        return _matching(jobs, condition & contents, errors)
    return jobs.filter(pk__in=_found(jobs, search, condition, contents, errors))


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
        return [({}, Q(last_error__icontains=text)) for text in search.errors]
    if not search.errors:
        return []
    return [
        ({"error_class": ERROR_CLASS}, Q(error_class__icontains=text)) for text in search.errors
    ]


def _matching(jobs: QuerySet[Any], condition: Q, errors: Errors) -> QuerySet[Any]:
    for names, error in errors:
        jobs = jobs.alias(**names).filter(error)
    return jobs.filter(condition)


def _newest_of(jobs: QuerySet[Any], among: QuerySet[Any], search: Search) -> QuerySet[Any]:
    """Only those of the jobs that are the newest ``among`` these."""
    last = among.order_by("-pk").values_list("pk", flat=True)[NEWEST : NEWEST + 1].first()
    if last is None:
        return jobs
    note = _("Payloads and errors were searched in the newest %(number)s jobs only.")
    search.note(note % {"number": f"{NEWEST:,}"})
    return jobs.filter(pk__gt=last)


def _found(
    jobs: QuerySet[Any], search: Search, condition: Q, contents: Q, errors: Errors
) -> set[int]:
    """The ids. Read once, for the count and for the page."""
    outside, ended = jobs.filter(OUTSIDE_HISTORY), jobs.filter(status__in=HISTORY)
    everything: QuerySet[Any] = Job.objects.using(conf().database)
    indexed = dict(fetch(PAYLOAD_INDEXES, {})) if contents else {}
    if not search.by_index and not indexed.get(False, False):
        earliest = newest_part(JOBS, MOST_READ)
        if earliest is not None:
            ended = ended.filter(finished_at__gte=earliest)
    found: set[int] = set()
    for rows, is_live in ((outside, True), (ended, False)):
        if errors or (contents and not indexed[is_live]):
            tagged = _tagged(rows, search)
            part_of_all = everything.filter(OUTSIDE_HISTORY if is_live else Q(status__in=HISTORY))
            rows = _newest_of(rows, part_of_all, search) if tagged is None else tagged
        for part in _parts(rows, search) if is_live else (rows,):
            matching = _matching(part, condition & contents, errors).order_by("-pk")
            ids = list(matching.values_list("pk", flat=True)[: MOST_FOUND + 1])
            if len(ids) > MOST_FOUND:
                note = _("More match: the newest %(number)s live, dead and ended ones are listed.")
                search.note(note % {"number": f"{MOST_FOUND:,}"})
            found.update(ids[:MOST_FOUND])
    return found


def _tagged(rows: QuerySet[Any], search: Search) -> QuerySet[Any] | None:
    """Those that have the tags; None if they are many, or no tag is asked for."""
    if not (tags := search.terms.of("tag")):
        return None
    ids = list(rows.filter(tags__contains=tags).values_list("pk", flat=True)[: MOST_FOUND + 1])
    return rows.filter(pk__in=ids) if len(ids) <= MOST_FOUND else None


def _parts(outside: QuerySet[Any], search: Search) -> Iterator[QuerySet[Any]]:
    """The live and the dead jobs, of which the dead have an index. The queues of the live ones are
    named for a key, so that its unique index is used."""
    live = outside.filter(status__in=LIVE)
    if search.terms.of("key"):
        live = live.filter(queue__in=list(Queue.objects.names()))
    yield live
    yield outside.filter(status=JobState.DEAD)


def show(page: Any, request: HttpRequest, search: Search) -> None:
    """Tell the user why a search finds nothing, or what it searched."""
    if request.method == "GET":
        for problem in search.problems:
            page.message_user(request, problem, messages.ERROR)
        for note in () if search.problems else search.notes:
            page.message_user(request, note, messages.INFO)
