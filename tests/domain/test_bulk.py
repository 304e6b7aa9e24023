"""Which jobs an operation is about, and why it left some."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.domain.bulk import MOST_REASONS, OTHER_REASONS, Reasons, are_same, checked_terms


@pytest.mark.parametrize(
    "terms",
    [
        {"ids": [1, 2**63 - 1]},
        {"status": "dead", "queue": "emails"},
        {"created_since": "2026-11-23T10:00:00+00:00"},
        {"schedule": 7, "workflow_run": 8},
        {"error": "a" * 16, "code": "503", "tenant": "acme", "key": "k", "job_type": "app.x"},
    ],
)
def test_terms_are_kept_as_they_are(terms: dict[str, Any]) -> None:
    assert checked_terms(terms) == terms


@pytest.mark.parametrize(
    "terms, text",
    [
        (None, "at least one"),
        ([], "at least one"),
        ({"payload": "x"}, "not 'payload'"),
        ({1: 2}, "not 1"),
        ({"status": "lost"}, "'status' cannot be 'lost'"),
        ({"status": ["dead"]}, "cannot"),
        ({"queue": ""}, "cannot"),
        ({"queue": "x" * 201}, "cannot"),
        ({"queue": "a\0b"}, "cannot"),
        ({"queue": {"$ne": 1}}, "cannot"),
        ({"ids": "1"}, "cannot"),
        ({"ids": [True]}, "cannot"),
        ({"ids": [2**63]}, "cannot"),
        ({"ids": list(range(10_001))}, "cannot"),
        ({"schedule": -1}, "cannot"),
        ({"created_since": "yesterday"}, "cannot"),
        ({"created_since": "0001-01-01T00:00:00+23:59"}, "cannot"),
        ({"tenant": "\ud800"}, "cannot"),
        ({"created_since": "2026-11-23T10:00:00"}, "cannot"),
    ],
)
def test_anything_else_is_no_term(terms: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        checked_terms(terms)


@pytest.mark.parametrize(
    "others, same",
    [
        ({"created_since": "2026-11-23T10:01:00+00:00", "queue": "emails"}, True),
        ({"created_since": "2026-11-23T12:59:00+03:00", "queue": "emails"}, True),
        ({"created_since": "2026-11-23T10:01:00.000001+00:00", "queue": "emails"}, False),
        ({"created_since": "2026-11-23T10:00:00+00:00", "queue": "bulk"}, False),
        ({"created_since": "2026-11-23T10:00:00+00:00"}, False),
    ],
)
def test_terms_whose_times_differ_by_up_to_a_minute_ask_for_the_same_jobs(
    others: dict[str, Any], same: bool
) -> None:
    terms = {"created_since": "2026-11-23T10:00:00+00:00", "queue": "emails"}
    assert are_same(terms, others) is same
    assert are_same(others, terms) is same


def test_reasons_are_counted_without_their_numbers_and_quotes() -> None:
    reasons = Reasons()
    reasons.add({n: f"job {n} (ready) holds its idempotency key 'secret-{n}'" for n in range(12)})
    assert reasons.counts == {
        "job … (ready) holds its idempotency key …": {"count": 12, "jobs": list(range(10))}
    }


def test_a_report_lists_a_bounded_number_of_reasons() -> None:
    reasons = Reasons()
    reasons.add({n: "x" * (n + 1) for n in range(MOST_REASONS + 5)})
    assert len(reasons.counts) == MOST_REASONS + 1
    assert reasons.counts[OTHER_REASONS]["count"] == 5


def test_a_time_is_written_as_postgresql_reads_it() -> None:
    for given in ("2026-W01-1T02:00:00+02:00", "2025-12-29T00:00:00Z"):
        assert checked_terms({"created_since": given}) == {
            "created_since": "2025-12-29T00:00:00+00:00"
        }
