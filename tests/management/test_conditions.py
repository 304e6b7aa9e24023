"""The conditions of ``jobstatus --check``."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_jobs.domain.pressure import level_of
from django_jobs.lifecycle.backlog import MOST_COUNTED
from django_jobs.management.status_check import (
    LEVELS,
    OF_A_QUEUE,
    OPERATORS,
    QUANTITIES,
    Condition,
    Unit,
    parse,
)
from django_jobs.metrics.unclaimable import MOST_LOOKED_AT

QUEUES = ("mail", "mail.eu-1", "7", "age")


@st.composite
def conditions(draw: st.DrawFn) -> Condition:
    queue = draw(st.sampled_from(("", *QUEUES)))
    quantity = draw(st.sampled_from(sorted(OF_A_QUEUE if queue else QUANTITIES)))
    number: st.SearchStrategy[float]
    match QUANTITIES[quantity]:
        case Unit.LEVEL:
            number = st.integers(0, len(LEVELS) - 1)
        case Unit.SECONDS:
            number = st.integers(0, 10**9).map(lambda milliseconds: milliseconds / 1000)
        case Unit.JOBS | Unit.WORKERS:
            most = MOST_LOOKED_AT if quantity == "unclaimable" else MOST_COUNTED
            number = st.integers(0, most - 1)
    return Condition(
        queue=queue,
        quantity=quantity,
        operator=draw(st.sampled_from(sorted(OPERATORS))),
        number=draw(number),
    )


@given(st.lists(conditions(), min_size=1, max_size=5), st.sampled_from([",", " , ", ",\n"]))
def test_what_is_written_is_read_back(written: list[Condition], comma: str) -> None:
    assert parse(comma.join(map(str, written)), QUEUES) == tuple(written)


@given(conditions(), st.integers(0, MOST_COUNTED - 1))
def test_a_condition_compares_like_python(condition: Condition, value: int) -> None:
    if condition.quantity == "pressure":
        value %= len(LEVELS)
    symbol = {"=": "=="}.get(condition.operator, condition.operator)
    is_true = bool(eval(f"{value} {symbol} {condition.number!r}"))
    values = {(condition.queue, condition.quantity): value}
    assert condition.holds(values) is is_true
    assert condition.explain(values).startswith(f"{condition}, but it is ")


@given(st.text(max_size=30) | st.from_regex(r"[a-z.]*[<>=!]*[0-9a-z.]*", fullmatch=True))
@example("age<60,")
@example("age<\N{ARABIC-INDIC DIGIT ONE}")
def test_any_other_text_is_refused(text: str) -> None:
    """No error but a ValueError, and nothing that cannot be written."""
    with contextlib.suppress(ValueError):
        found = parse(text, QUEUES)
        assert parse(",".join(map(str, found)), QUEUES) == found


@pytest.mark.parametrize(
    "text, number",
    [("age<90", 90), ("age<90s", 90), ("age<1.5m", 90), ("lag<2h", 7200), ("age<0.25", 0.25)],
)
def test_times_are_seconds_or_durations(text: str, number: float) -> None:
    assert parse(text, ())[0].number == number


def test_the_part_before_the_last_dot_is_the_queue() -> None:
    assert parse("mail.eu-1.age<1", QUEUES)[0].queue == "mail.eu-1"
    assert parse("age.age<1", QUEUES)[0].queue == "age"
    assert parse("age<1", QUEUES)[0].queue == ""


def test_levels_are_compared_in_their_order() -> None:
    assert [level_of(ready, 10) for ready in (0, 8, 10)] == list(LEVELS)
    (below_full,) = parse("pressure<full", ())
    assert below_full.holds({("", "pressure"): 1})
    assert not below_full.holds({("", "pressure"): 2})
    assert below_full.explain({("", "pressure"): 2}) == "pressure<full, but it is full"


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "'' is not a condition such as age<60 or mail.dead=0"),
        ("age<60,,dead=0", "'' is not a condition"),
        ("age", "'age' is not a condition"),
        ("age<", "'age<' is not a condition"),
        ("age<-1", "'age<-1' is not a condition"),
        ("age=<60", "'age=<60' is not a condition"),
        ("ages<60", "'ages<60': no number is named 'ages'; they are age, dead, lag, pressure, "),
        ("mail.lag<60", "no number of a queue is named 'lag'; they are age, dead, pressure, ready"),
        ("mial.age<60", "'mial.age<60': no queue is named 'mial'; did you mean 'mail'?"),
        ("bulk.age<60", "no queue is named 'bulk'; known are: 7, age, mail, mail.eu-1"),
        ("age<soon", "'age<soon': 'soon' is not a duration; write it as 90s"),
        ("dead<1.5", "'dead<1.5': '1.5' is not a whole number"),
        ("dead<5m", "'dead<5m': '5m' is not a whole number"),
        ("ready<100000", "jobs are counted up to 100,000, so compare with less"),
        ("unclaimable<5000", "jobs are counted up to 5,000, so compare with less"),
        ("pressure<2", "'2' is not a level; they are ok, high, full"),
    ],
)
def test_a_mistake_is_named(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        parse(text, QUEUES)
