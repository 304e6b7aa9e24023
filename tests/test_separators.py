"""Numbers have the separators of the reader's language."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import translation

from django_jobs.admin.base.formatting import duration, moment
from django_jobs.separators import localized, number_text


@pytest.mark.parametrize(
    "language, whole, share, length",
    [("en", "1,204,000", "7.5%", "3.2 s"), ("de", "1.204.000", "7,5%", "3,2 s")],
)
def test_numbers_have_the_separators_of_the_language(
    language: str, whole: str, share: str, length: str
) -> None:
    with translation.override(language):
        assert number_text(1_204_000) == whole
        assert number_text(0.075, ".1%") == share
        assert duration(timedelta(seconds=3.2)) == length
        assert localized("3.2 s") == length


def test_a_count_that_stopped_says_so() -> None:
    assert number_text(10_000, more=True) == "10,000+"


def test_a_time_is_written_as_the_language_does() -> None:
    at = datetime(datetime.now(UTC).year, 11, 23, 13, 5, 9, tzinfo=UTC)
    assert "Nov 23, 13:05:09<" in moment(at)
    with translation.override("de"):
        assert "23. Nov, 13:05:09<" in moment(at)
