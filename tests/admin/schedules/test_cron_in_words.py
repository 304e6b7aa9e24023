"""A cron rule in words, in the reader's language."""

from __future__ import annotations

import pytest
from django.utils import translation

from django_jobs.admin.schedules.display import KINDS, cron_in_words


@pytest.mark.parametrize(
    "cron, english, german",
    [
        ("*/5 * * * *", "every 5 minutes", "alle 5 Minuten"),
        ("0 8 * * 1-5", "at 08:00 on weekdays", "montags bis freitags um 08:00"),
        ("0 8,14 * * *", "at 08:00 and 14:00 every day", "täglich um 08:00 und 14:00"),
        ("0 9-17 * * *", "every hour from 09:00 to 17:00", "jede Stunde von 09:00 bis 17:00"),
        ("30 2 * * mon,fri", "at 02:30 on Monday and Friday", "um 02:30 am Montag und Freitag"),
        ("0 0 1 1 *", "at 00:00 on day 1 of January", "um 00:00 am 1. Januar"),
    ],
)
def test_common_rules_are_read_in_the_language(cron: str, english: str, german: str) -> None:
    assert cron_in_words(cron) == english
    with translation.override("de"):
        assert cron_in_words(cron) == german


def test_a_rare_rule_is_shown_as_it_is_where_it_has_no_words() -> None:
    assert cron_in_words("0 0 * * 1#2") == "at 00:00 on the second Monday of every month"
    with translation.override("de"):
        assert cron_in_words("0 0 * * 1#2") == "0 0 * * 1#2"


def test_each_kind_of_rule_has_german_words_with_as_many_values() -> None:
    with translation.override("de"):
        for kind in KINDS:
            words = translation.gettext(kind)
            assert words != kind
            assert words.count("%s") == kind.count("%s")
