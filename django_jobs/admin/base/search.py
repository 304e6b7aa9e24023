"""The search boxes over jobs and over runs: what a text asks for, and what its user may search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from django.contrib import messages
from django.db.models import Q
from django.utils.translation import gettext as _

from ... import registry
from ...conf import conf
from ...domain.hints import nearest
from ...domain.search_terms import FINGERPRINT, MOST_TERMS, Terms, parsed, term, words
from ...lifecycle.scope import scope_of

LARGEST_ID = 2**63 - 1
KINDS = ("type", "key", "tag", "code", "error")
KINDS_OF_RUNS = ("code", "error")
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
    if scope_of(user) is None:
        unknown = set(search.terms.of("type")).difference(registry.names())
        search.unknown += map(_unknown_type, sorted(unknown))
        if user.has_perm(SEE_PAYLOADS):
            _suggest(search, text)
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
            found = nearest(name, names, cutoff=CLOSE)
            near = [term(".".join([one, *rest]), value) for one in found]
            search.unknown.append(_meant(note, near))
    bare = [word for word in words(text) if not word.kind]
    for word, value in pairwise(bare):
        if word.text in search.terms.unknown and word.text.isidentifier():
            longer = sorted(name for name in names if f"{name}_".startswith(f"{word.text}_"))
            near = [term(one, value.value) for one in longer[:1] or nearest(word.text, names)]
            search.problems[-1] = _meant(search.problems[-1], near)


def _unknown_type(name: str) -> str:
    longer = sorted(one for one in registry.names() if one.startswith(name))
    near = [term("type", one) for one in longer[:1] or nearest(name, registry.names())]
    return _meant(_("This process knows no job type %(name)s.") % {"name": name}, near)


def _meant(text: str, near: list[str]) -> str:
    return f"{text} {_('Did you mean %(term)s?') % {'term': near[0]}}" if near else text


def run_search(text: str, user: Any) -> Search:
    """What ``text`` asks for on the list of runs."""
    search = Search(parsed(text, KINDS_OF_RUNS), user)
    search.problems += _unknown(search.terms)
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


def _unknown(terms: Terms, *others: str) -> Iterator[str]:
    yield from _too_many(terms)
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


def show(page: Any, request: Any, search: Search) -> None:
    """Tell the user why a search finds nothing, or what it searched. The question of an action
    reads it from the request."""
    request.search = search
    if request.method == "GET":
        for problem in search.problems:
            page.message_user(request, problem, messages.ERROR)
        for note in () if search.problems else search.notes:
            page.message_user(request, note, messages.INFO)
