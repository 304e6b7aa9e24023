"""Cron rules in plain English."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_jobs.domain.cron import BrokenCron, check_cron
from django_jobs.domain.cron_text import describe, needs_both_elsewhere
from tests.calls import calls_of


@pytest.mark.parametrize(
    "cron, words",
    [
        ("* * * * *", "every minute"),
        ("*/1 * * * *", "every minute"),
        ("*/15 * * * *", "every 15 minutes"),
        ("0/15 * * * *", "every 15 minutes"),
        ("*/7 * * * *", "every 7 minutes from the start of every hour"),
        ("0 * * * *", "every hour"),
        ("@hourly", "every hour"),
        ("5 * * * *", "at minute 5 of every hour"),
        ("5,35 * * * *", "at minutes 5 and 35 of every hour"),
        ("0-10,*/20 * * * *", "at minute 0 to 10 and every 20th minute of every hour"),
        ("30 2 * * *", "at 02:30 every day"),
        ("30 2 * * 1-5", "at 02:30 on weekdays"),
        ("30 2 ? * MON-FRI", "at 02:30 on weekdays"),
        ("0 9,17 * * 1,5", "at 09:00 and 17:00 on Monday and Friday"),
        ("0,30 17,9 * * *", "at 09:00, 09:30, 17:00 and 17:30 every day"),
        ("0 10 * * sat,sun", "at 10:00 on weekends"),
        ("0 10 * * 1-4", "at 10:00 from Monday to Thursday"),
        ("0 10 * * 7", "at 10:00 on Sunday"),
        ("0 0 1 * *", "at 00:00 on day 1 of every month"),
        ("@monthly", "at 00:00 on day 1 of every month"),
        ("0 0 1,15 * *", "at 00:00 on days 1 and 15 of every month"),
        ("0 0 1-7 * *", "at 00:00 on days 1 to 7 of every month"),
        ("0 0 L * *", "at 00:00 on the last day of every month"),
        ("0 0 15W * *", "at 00:00 on the weekday nearest to day 15 of every month"),
        ("0 0 */2 * *", "at 00:00 on every 2nd day of every month"),
        ("0 0 1 1 *", "at 00:00 on day 1 of January"),
        ("0 0 1 jan,jul *", "at 00:00 on day 1 of January and July"),
        ("0 12 * 7 *", "at 12:00 every day in July"),
        ("*/5 * * 7 *", "every 5 minutes in July"),
        ("0 0 13 * 5", "at 00:00 on day 13 of every month or on Friday"),
        ("0 9 * * 1#1", "at 09:00 on the first Monday of every month"),
        ("0 9 * 3 L5", "at 09:00 on the last Friday of March"),
        ("*/15 9-17 * * *", "every 15 minutes between 09:00 and 17:59"),
        ("* 22-2 * * *", "every minute between 22:00 and 02:59"),
        ("*/10 3 * * *", "every 10 minutes between 03:00 and 03:59"),
        ("0 9-17 * * 1-5", "every hour from 09:00 to 17:00 on weekdays"),
        ("0 */2 * * *", "every 2 hours"),
        ("30 */2 * * *", "every 2 hours from 00:30"),
        ("0 */5 * * *", "every 5 hours from 00:00"),
        ("*/10 9,17 * * *", "every 10 minutes of hours 9 and 17"),
        ("1,2,3,4 5,6 * * *", "at minutes 1, 2, 3 and 4 of hours 5 and 6 every day"),
        ("H H * * *", "at a time derived from its name every day"),
        ("H * * * *", "every hour at a minute derived from its name"),
        ("H/15 * * * *", "at every 15th minute (offset derived from its name) of every hour"),
        ("H 3 * * *", "at a minute derived from its name of hour 3 every day"),
        ("nonsense", "nonsense"),
        ("@reboot", "@reboot"),
        ("", ""),
    ],
)
def test_a_rule_in_words(cron: str, words: str) -> None:
    assert describe(cron) == words


words = st.sampled_from(
    [*"*?,-/#LWHR0159", "59", "12", "999999999", "MON", "dec", "@", "_", "(", "L5"]
)
fields = st.lists(words, min_size=1, max_size=5).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300) | st.lists(fields, min_size=5, max_size=5).map(" ".join))
def test_any_text_has_words_of_bounded_length(cron: str) -> None:
    assert len(describe(cron)) < 5000


items = st.sampled_from(
    [
        *"*?123456",
        "1-5",
        "*/2",
        "*/3",
        "1,3",
        "5-2",
        "2/2",
        "mon",
        "dec-feb",
        "L",
        "3W",
        "L5",
        "2#2",
        "H",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(items, min_size=5, max_size=5).map(" ".join))
def test_the_description_of_an_accepted_rule_is_complete(cron: str) -> None:
    try:
        check_cron(cron)
    except BrokenCron:
        return
    said = describe(cron)
    assert said.startswith(("every", "at"))
    assert "  " not in said
    assert "*" not in said
    assert "?" not in said


@pytest.mark.parametrize(
    "cron",
    [
        "0-99999999999999999999 * * * *",
        "0-999999999/1 0-999999999 * * *",
        "* * * 1-999999999 0-999999999",
        "0-" + "9" * 5000 + " * * * *",
        ",".join(["0-9"] * 100_000) + " * * * *",
    ],
)
def test_hostile_ranges_cost_nothing(cron: str) -> None:
    tracemalloc.start()
    describe(cron)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000
    assert calls_of(lambda: describe(cron)) < 10_000


@pytest.mark.parametrize(
    ("cron", "both"),
    [
        ("0 0 */2 * 1", True),
        ("0 0 1 * */2", True),
        ("0 0 */2 * */3", True),
        ("0 0 */2 * *", False),
        ("0 0 1-31/2 * 1", False),
        ("0 0 13 * fri", False),
        ("0 0 */1 * 1", False),
        ("0 0 ? * 1", False),
        ("*/5 * 1 * 1", False),
        ("not a rule", False),
    ],
)
def test_a_star_in_one_of_two_day_fields_is_noted(cron: str, both: bool) -> None:
    assert needs_both_elsewhere(cron) is both
