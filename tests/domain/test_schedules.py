"""The rule of a schedule, and what a due time does while its jobs are live."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_jobs.domain.schedules import Admission, Rule, admit

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
YEAR = timedelta(days=365)
HOURLY = Rule(every=3600.0)

# The rule


@pytest.mark.parametrize(
    "rule, problem",
    [
        (Rule(), "either a cron expression or"),
        (Rule(cron="* * * * *", every=60.0), "either a cron expression or"),
        (Rule(cron="* * *"), "fields"),
        (Rule(cron="0 0 30 2 *"), "can never occur"),
        (Rule(every=0.5), "from 1 second to 366 days"),
        (Rule(every=float("nan")), "a number of seconds"),
        (Rule(every=60.0, timezone="Europe/Pari"), "no time zone is called 'Europe/Pari'"),
        (Rule(every=60.0, starts_at=NOON, ends_at=NOON - YEAR), "ends before it starts"),
        (
            Rule(cron="0 0 1 7 *", starts_at=NOON, ends_at=NOON + timedelta(days=90)),
            "never comes due between its start and its end",
        ),
    ],
)
def test_an_invalid_rule_is_refused_with_the_reason(rule: Rule, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        rule.check()


def test_both_bounds_of_a_rule_may_be_due_times() -> None:
    rule = Rule(every=60.0, starts_at=NOON, ends_at=NOON + timedelta(seconds=120))
    rule.check()
    assert list(rule.due_times(NOON - YEAR)) == [
        NOON,
        NOON + timedelta(seconds=60),
        NOON + timedelta(seconds=120),
    ]
    Rule(cron="0 12 2 3 *", starts_at=NOON, ends_at=NOON).check()


def test_an_interval_counts_from_its_start_and_without_one_from_1970() -> None:
    start = NOON + timedelta(minutes=7)
    assert Rule(every=3600.0, starts_at=start).next(NOON + timedelta(hours=2)) == (
        start + timedelta(hours=2)
    )
    assert HOURLY.next(NOON + timedelta(minutes=7)) == NOON + timedelta(hours=1)


def test_only_h_depends_on_the_name() -> None:
    def minute(name: str, cron: str) -> int:
        found = Rule(name=name, cron=cron).next(NOON)
        assert found is not None
        return found.minute

    assert len({minute(f"schedule {n}", "H * * * *") for n in range(20)}) > 5
    assert minute("one", "H * * * *") == minute("one", "H * * * *")
    assert minute("one", "5 * * * THU") == minute("other", "5 * * * THU")


# Overlap


@pytest.mark.parametrize(
    "policy, limit, live, waiting, expected",
    [
        *[(policy, None, 0, 0, "start") for policy in ("skip", "queue_one", "queue_all")],
        *[(policy, 1, 0, 0, "start") for policy in ("allow", "cancel", "unheard of")],
        ("skip", None, 1, 0, "skip"),
        ("queue_one", None, 1, 0, "wait"),
        ("queue_one", 5, 2, 1, "skip"),
        ("queue_all", None, 50, 49, "wait"),
        ("queue_all", 2, 2, 1, "wait"),
        ("queue_all", 2, 3, 2, "skip"),
        ("allow", None, 50, 0, "start"),
        ("allow", 2, 1, 0, "start"),
        ("allow", 2, 2, 0, "skip"),
        ("cancel", None, 3, 0, "replace"),
        ("unheard of", None, 1, 0, "skip"),
    ],
)
def test_live_jobs_decide_the_admission_of_the_next(
    policy: str, limit: int | None, live: int, waiting: int, expected: str
) -> None:
    assert admit(policy, limit, live, waiting) is Admission(expected)
