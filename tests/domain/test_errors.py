"""Errors: readable, bounded and storable, whatever the exception is."""

from __future__ import annotations

import errno
import ssl
from http import HTTPStatus
from smtplib import SMTPDataError
from typing import Any, NoReturn
from urllib.error import HTTPError

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import DataError, IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st

from django_jobs.domain.errors import (
    MAX_CODE,
    MAX_MESSAGE,
    MAX_TRACEBACK,
    ErrorReport,
    clean,
    cut,
    without_detail,
)
from django_jobs.models import Queue
from tests.factories import run_sql
from tests.growth import growth


class Unspeakable(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def caught(error: BaseException) -> BaseException:
    """``error``, raised here and caught."""
    try:
        raise error
    except BaseException as same:
        return same


def test_a_report_names_the_class_the_message_and_the_place() -> None:
    report = ErrorReport.of(caught(ValueError("no such order")))
    assert report.type == "ValueError"
    assert report.message == "no such order"
    assert "in caught" in report.traceback
    assert report.summary == "ValueError: no such order"


def test_a_class_outside_builtins_is_named_with_its_module() -> None:
    assert ErrorReport.of(Unspeakable()).type == "tests.domain.test_errors.Unspeakable"


def test_a_note_is_added_to_the_first_line_of_a_message() -> None:
    report = ErrorReport.plain("Retry", "first\nsecond").noted("but\x00")
    assert report.message == "first (but\\x00)\nsecond"
    assert ErrorReport.plain("Retry", "").noted("but").summary == "Retry: but"
    assert len(ErrorReport.plain("Retry", "x" * 9000).noted("y" * 9000).message) == MAX_MESSAGE


def test_an_error_without_readable_text_is_still_reported() -> None:
    report = ErrorReport.of(caught(Unspeakable()))
    assert report.message == "(the error's own text is unreadable: RuntimeError)"
    assert report.fingerprint


def test_cyclic_exception_chains_and_groups_are_reported() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "second" in ErrorReport.of(first).traceback
    assert "inner" in ErrorReport.of(ExceptionGroup("outer", [KeyError("inner")])).traceback


def test_a_huge_message_is_cut_quickly_to_its_head_and_tail() -> None:
    def of(length: int) -> ErrorReport:
        return ErrorReport.of(caught(ValueError("head" + "x" * length + "tail")))

    assert growth(lambda: of(200_000), lambda: of(2_000_000)) < 40  # 11; of its square, 100
    report = of(20_000_000)
    assert len(report.message) <= MAX_MESSAGE
    assert len(report.traceback) <= MAX_TRACEBACK
    assert report.message.startswith("head")
    assert report.message.endswith("tail")
    assert "characters left out" in report.message


@given(st.text(st.characters(), max_size=500))
def test_a_summary_is_one_line_of_at_most_300_characters(message: str) -> None:
    summary = ErrorReport.plain("Strange", message).summary
    assert len(summary) <= 300
    assert len(summary.splitlines()) == 1


def test_the_summary_of_a_long_line_is_one_line_too() -> None:
    summary = ErrorReport.plain("Strange", "x" * 5000).summary
    assert "\n" not in summary
    assert len(summary) == 300


@given(st.text(st.characters(), max_size=200))
def test_cleaned_text_can_be_stored(text: str) -> None:
    stored = clean(text)
    assert "\x00" not in stored
    stored.encode()


@pytest.mark.django_db
def test_nul_and_surrogates_are_shown_escaped_and_stored() -> None:
    report = ErrorReport.of(caught(ValueError("a\x00b\udcff")))
    assert report.message == "a\\x00b\\xdcff"
    assert run_sql("SELECT %s", [report.traceback]) == [(report.traceback,)]


@given(st.text(max_size=500), st.integers(1, 300))
def test_cut_text_is_never_longer_than_the_limit(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit
    if len(text) <= limit:
        assert cut(text, limit) == text


@pytest.mark.django_db
def test_the_values_that_postgresql_quotes_in_its_detail_are_left_out() -> None:
    Queue.objects.create(name="bob-at-example.org")
    with pytest.raises(IntegrityError) as error, transaction.atomic():
        Queue.objects.create(name="bob-at-example.org")
    report = ErrorReport.of(error.value)
    assert "unique constraint" in report.message
    assert "bob-at-example.org" not in report.message
    assert "already exists" not in report.traceback


def test_a_detail_of_several_lines_is_removed_completely() -> None:
    text = (
        "psycopg.errors.UniqueViolation: duplicate key\nDETAIL:  Key (e)=(bob\n@x.org) exists.\n"
        "CONTEXT:  SQL statement\n\nThe above exception was the direct cause"
    )
    kept = without_detail(text)
    assert "bob" not in kept
    assert "@x.org" not in kept
    assert "CONTEXT:  SQL statement" in kept
    assert "The above exception" in kept


def fails_here(message: str) -> NoReturn:
    raise LookupError(message)


def fails_there(message: str) -> NoReturn:
    raise LookupError(message)


def report_of(place: object, message: str) -> ErrorReport:
    with pytest.raises(LookupError) as error:
        place(message)  # type: ignore[operator]
    return ErrorReport.of(error.value)


def test_a_fingerprint_does_not_depend_on_the_message() -> None:
    assert report_of(fails_here, "1").fingerprint == report_of(fails_here, "2").fingerprint


def test_fingerprints_differ_by_place_and_by_class() -> None:
    here, there = report_of(fails_here, "1"), report_of(fails_there, "1")
    assert here.fingerprint != there.fingerprint
    assert ErrorReport.of(KeyError()).fingerprint != ErrorReport.of(ValueError()).fingerprint


def test_the_place_is_the_projects_own_code_and_not_the_librarys() -> None:
    def broken_query() -> None:
        Queue.objects.filter(no_such_field=1)  # type: ignore[misc]

    def other_broken_query() -> None:
        Queue.objects.filter(no_such_field=1)  # type: ignore[misc]

    reports = []
    for query in (broken_query, other_broken_query):
        with pytest.raises(Exception, match="no_such_field") as error:
            query()
        reports.append(ErrorReport.of(error.value))
    assert reports[0].fingerprint != reports[1].fingerprint


class Reply:
    def __init__(self, status: Any) -> None:
        self.status_code = status


class Coded(Exception):
    """Has the attributes that it is given."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Hostile(Exception):
    """Its attributes cannot be read."""

    @property
    def response(self) -> NoReturn:
        raise SystemExit

    def __getattr__(self, name: str) -> NoReturn:
        raise KeyboardInterrupt


def raised_from(cause: BaseException, error: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, code",
    [
        (psycopg.errors.UniqueViolation(), "23505"),
        (Coded(response=Reply(503)), "503"),
        (Coded(response=Reply(HTTPStatus.TOO_MANY_REQUESTS)), "429"),
        (Coded(status_code=404), "404"),
        (Coded(status=502, code="bad_gateway"), "502"),
        (HTTPError("https://x.org", 410, "Gone", {}, None), "410"),  # type: ignore[arg-type]
        (SMTPDataError(550, b"no such user"), "550"),
        (Coded(code="card_declined"), "card_declined"),
        (ValidationError("no", code="invalid"), "invalid"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "ECONNREFUSED"),
        (FileNotFoundError(errno.ENOENT, "no such file"), "ENOENT"),
        (raised_from(Coded(status_code=503), ValueError("no rates")), "503"),
        (raised_from(Coded(status_code=503), Coded(code="no_rates")), "no_rates"),
    ],
)
def test_a_report_has_the_code_of_the_error_or_of_its_cause(
    error: BaseException, code: str
) -> None:
    assert ErrorReport.of(error).code == code


@pytest.mark.parametrize(
    "error",
    [
        ValueError("503"),
        Coded(status_code=True, code=False),
        Coded(status_code=7, code=0),
        Coded(status_code=10**6000, code=10**6000),
        Coded(response=Reply("503"), code=lambda: 503),
        Coded(code="x" * (MAX_CODE + 1)),
        Coded(code="a\x00b"),
        Coded(code="two words"),
        Coded(code=""),
        Coded(sqlstate="unknown"),
        psycopg.OperationalError("the server closed the connection"),
        OSError("without a number"),
        ssl.SSLError(1, "certificate verify failed"),  # 1 is EPERM elsewhere
    ],
)
def test_an_error_without_a_certain_code_has_none(error: BaseException) -> None:
    assert ErrorReport.of(error).code == ""


def test_an_error_whose_attributes_cannot_be_read_has_no_code() -> None:
    for error in (Hostile(), raised_from(Hostile(), ValueError())):
        assert ErrorReport.of(error).code == ""


def test_a_circular_chain_of_causes_is_searched_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert ErrorReport.of(first).code == ""


@pytest.mark.django_db
def test_an_error_of_django_has_the_sqlstate_of_its_cause() -> None:
    with pytest.raises(DataError) as error, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")
    assert ErrorReport.of(error.value).code == "22012"


@given(st.text(st.characters(), max_size=40) | st.integers() | st.floats() | st.binary())
def test_any_code_is_stored_as_a_short_text_or_left_out(code: Any) -> None:
    stored = ErrorReport.of(Coded(code=code)).code
    assert len(stored) <= MAX_CODE
    assert stored in ("", str(code))
    assert clean(stored) == stored
