"""The search boxes over jobs and over runs: what a text asks for, what its user may search, and the
rows that are found, by an index or by a bounded read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise, starmap
from typing import Any

from django.contrib import messages
from django.db.models import F, Func, Q, QuerySet, TextField, Value
from django.utils.translation import gettext as _

from ... import registry
from ...conf import conf
from ...domain.hints import nearest
from ...domain.payload import KEY_SEPARATOR
from ...domain.search_terms import FINGERPRINT, MOST_TERMS, Terms, near_terms, parsed, term, words
from ...domain.states import LIVE, JobState
from ...lifecycle.history import JOBS, ends_of_newest
from ...lifecycle.job_columns import LIVE_TABLE
from ...lifecycle.scope import scope_of
from ...models import Job, Queue
from ...models.database import fetch
from ...models.run import by_last_run
from ...separators import number_text
from ..lists.change_list import NEWEST
from ..lists.choices import near_types, types_of, with_meant
from .history_list import all_of, older, searched

LARGEST_ID = 2**63 - 1
OF_RUNS = {"code": "503", "error": "Timeout"}
OF_JOBS = {"type": "shop.send_receipt", "key": "order-7", "tag": "vip", "parent": "71", **OF_RUNS}
"""The kinds of terms, each with an example."""
FILTERS = {"status", "state", "queue", "worker", "tenant", "schedule", "workflow"}
"""What the list of jobs is filtered by, and operators type instead; ``state`` for the status."""
CLOSE = 0.7
"""How like two names of arguments are, of which one is suggested for the other."""
SEE_PAYLOADS, SEE_ERRORS = "django_jobs.view_job_payload", "django_jobs.view_job_error"


@dataclass(slots=True)
class Search:
    """What a text asks for on a page, and what its user may search. ``problems`` say why nothing
    is found, ``notes`` what was searched."""

    terms: Terms
    user: Any
    up_to: int | None = None
    """For an action, which changes all that it finds up to this id. None is a list."""
    found: list[int] | None = None
    """The ids that a list has, the newest first, if they were read once."""
    is_cut: bool = False
    """Whether more match than the list has."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    """What to say if nothing is found: names that no job type has."""

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def mark_cut(self) -> None:
        self.is_cut = True
        note = _("More match: the newest %(number)s live, dead and ended ones are listed.")
        self.note(note % {"number": number_text(MOST_FOUND)})

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
        """Whether an index on all jobs of any age finds them: by ids or by a tag."""
        return bool(self.terms.numbers or self.terms.of("tag") or self.terms.of("parent"))

    @property
    def is_of_run(self) -> bool:
        return any(self.of_run.values())

    def columns(self) -> Q:
        """The conditions on columns of a job that are short."""
        condition = Q()
        for value in self.terms.of("type"):
            condition &= Q(job_type__in=types_of(value) or [value])
        for value in self.terms.of("key"):  # a tenant and its key have a slash between them
            condition &= Q(idempotency_key__in=[value, value.replace("/", KEY_SEPARATOR, 1)])
        if tags := self.terms.of("tag"):
            condition &= Q(tags__contains=tags)
        for value in self.terms.of("parent"):
            from .children import found_children

            most = MOST_FOUND + 1 if self.up_to is None else NEWEST
            found = found_children(value, most)
            condition &= Q(pk__in=found)
            if len(found) == most:
                self.mark_cut()
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
    return Search(parsed(text, OF_JOBS, arguments=True), None)


def job_search(text: str, user: Any) -> Search:
    search = Search(unchecked(text).terms, user)
    arguments = _("arguments of the handler such as customer_id:42")
    search.problems += _unknown(search.terms, text, OF_JOBS, arguments)
    if scope_of(user) is None:
        unknown = {one for one in search.terms.of("type") if not types_of(one)}
        search.unknown += map(_unknown_type, sorted(unknown))
        if user.has_perm(SEE_PAYLOADS):
            _suggest(search, text)
    if search.terms.arguments and not user.has_perm(SEE_PAYLOADS):
        problem = _(
            "To search in payloads you need the permission to see payloads and results in full."
        )
        search.problems.append(with_meant(problem, near_terms(text, dict.fromkeys(OF_JOBS, ()))))
    for argument in search.terms.arguments:
        if argument.is_secret(conf().redact_keys):
            name = ".".join(argument.path)
            search.problems.append(
                _("%(name)s is masked, so it cannot be searched.") % {"name": name}
            )
    if search.errors and not user.has_perm(SEE_ERRORS):
        search.notes.append(_only_classes())
    return search


def _suggest(search: Search, text: str) -> None:
    """Name the arguments that may be meant by those that no job type has, and by bare words."""
    if not (search.terms.arguments or search.terms.unknown):
        return
    names = {name for one in registry.names() for name in registry.get(one).signature.parameters}
    for argument in search.terms.arguments:
        if (name := argument.path[0]) not in names:
            note = _("No job type declares an argument %(name)s.") % {"name": name}
            if name in FILTERS:
                note += " " + _("Use the filter of the list instead.")
            rest, value = argument.path[1:], argument.values[-1]
            found = nearest(name, names.union(OF_JOBS), cutoff=CLOSE)
            near = [term(".".join([one, *rest]), value) for one in found]
            search.unknown.append(with_meant(note, near))
    near = []
    for word, value in pairwise(word for word in words(text) if not word.kind):
        if word.text in search.terms.unknown and word.text.isidentifier():
            longer = sorted(name for name in names if f"{name}_".startswith(f"{word.text}_"))
            near += [term(one, value.value) for one in longer[:1] or nearest(word.text, names)]
    for bare in search.terms.unknown[:5]:
        near += near_types(bare)
    if near:
        search.problems[-1] = with_meant(search.problems[-1], near)


def _unknown_type(name: str) -> str:
    text = _("This process knows no job type %(name)s.") % {"name": name}
    return with_meant(text, near_types(name))


def run_search(text: str, user: Any) -> Search:
    search = Search(parsed(text, OF_RUNS), user)
    search.problems += _unknown(search.terms, text, OF_RUNS)
    if search.errors and not user.has_perm(SEE_ERRORS):
        search.notes.append(_only_classes())
    return search


def workflow_run_search(text: str, user: Any) -> Search:
    """What ``text`` asks for on the list of workflow runs, which are found by their ids."""
    search = Search(parsed(text, ()), user)
    search.problems += _too_many(search.terms)
    if search.terms.unknown:
        problem = _(
            "Not understood: %(terms)s. A search has ids of workflow runs; the filters have the "
            "status and the workflow."
        )
        search.problems.append(problem % {"terms": ", ".join(search.terms.unknown[:5])})
    return search


def _only_classes() -> str:
    return _("Only the classes of errors were searched. Their texts need a permission.")


def _too_many(terms: Terms) -> Iterator[str]:
    if terms.too_many:
        yield _("A search has at most %(number)s terms besides ids.") % {"number": MOST_TERMS}


def _unknown(terms: Terms, text: str, kinds: dict[str, str], *others: str) -> Iterator[str]:
    yield from _too_many(terms)
    if not terms.unknown:
        return
    problem = _("Not understood: %(terms)s. A search has ids of jobs, %(kinds)s.") % {
        "terms": ", ".join(terms.unknown[:5]),
        "kinds": ", ".join((*starmap(term, kinds.items()), *others)),
    }
    yield with_meant(problem, near_terms(text, dict.fromkeys(kinds, ())))


def show(page: Any, request: Any, search: Search) -> None:
    """Tell the user why a search finds nothing, or what it searched. The question of an action
    reads it from the request."""
    request.search = search
    if request.method == "GET":
        for problem in search.problems:
            page.message_user(request, problem, messages.ERROR)
        for note in () if search.problems else search.notes:
            page.message_user(request, note, messages.INFO)


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
            search.mark_cut()
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
