"""The account of the chaos test about alerts finds what is sent twice, never, or of nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from django_jobs.models import Alert
from tests.chaos import alerts
from tests.factories import run_sql
from tests.test_chaos_partitions import Here

BEGIN = datetime(2026, 11, 30, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


class Storm:
    """A breaker that opened, closed and opened again, as the table, the ledger and the lines have
    it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.effects = folder / "effects"
        monkeypatch.setenv("CHAOS_EFFECTS", str(self.effects))
        monkeypatch.setattr(alerts, "SLOW", 0.0)
        run_sql("CREATE SCHEMA accounts")
        run_sql(alerts.MAKE)
        self.first = self.begin(0)
        self.send(self.first, 1)
        Alert.objects.filter(pk=self.first).update(ended_at=at(20))
        self.send(self.first, 21)
        self.second = self.begin(30)
        self.send(self.second, 31)

    def begin(self, seconds: float) -> int:
        row = {"rule": "storm", "situation": "open_breaker", "subject": alerts.RESOURCE}
        begun = at(seconds)
        return Alert.objects.create(**row, problem="open", began_at=begun, send_after=begun).pk

    def take(self, alert: int, seconds: float) -> None:
        attempts = Alert.objects.get(pk=alert).attempts + 1
        Alert.objects.filter(pk=alert).update(attempts=attempts, tried_at=at(seconds))

    def leave_a_line(self, alert: int, **other: Any) -> None:
        row = Alert.objects.values("situation", "subject", "began_at", "ended_at").get(pk=alert)
        row = {**row, **other}
        times = {name: row[name] and row[name].isoformat() for name in ("began_at", "ended_at")}
        alerts.send({"situations": [{**row, **times}]})

    def note(self, alert: int) -> None:
        row = Alert.objects.get(pk=alert)
        end = row.tried_at if row.ended_at else None
        begun = row.begin_sent_at or row.tried_at
        Alert.objects.filter(pk=alert).update(attempts=0, begin_sent_at=begun, end_sent_at=end)

    def send(self, alert: int, seconds: float) -> None:
        self.take(alert, seconds)
        self.leave_a_line(alert)
        self.note(alert)

    def take_twice(self) -> None:
        Alert.objects.filter(pk=self.second).update(ended_at=at(40))
        for seconds in (41, 42):
            self.take(self.second, seconds)

    def found(self) -> list[str]:
        problems = list(alerts.problems(Here(), self.effects))
        assert {number for number, _ in problems} <= {alerts.ACCOUNT}
        return [problem for _, problem in problems]


@pytest.fixture
def storm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storm:
    return Storm(tmp_path, monkeypatch)


def test_a_begin_and_an_end_that_are_sent_once_balance(storm: Storm) -> None:
    assert storm.found() == []
    assert alerts.counted(Here(), storm.effects) == {
        "situations": 2, "begins and ends sent": 3, "of them again": 0,
    }  # fmt: skip


def test_what_a_killed_worker_did_not_note_is_sent_again(storm: Storm) -> None:
    Alert.objects.filter(pk=storm.second).update(ended_at=at(40))
    storm.take(storm.second, 41)
    storm.leave_a_line(storm.second)
    storm.take(storm.second, 41 + alerts.ALERT_AGAIN)
    storm.leave_a_line(storm.second)
    storm.note(storm.second)
    assert storm.found() == []
    assert alerts.counted(Here(), storm.effects)["of them again"] == 1


@pytest.mark.parametrize(
    "change, problem",
    [
        (lambda storm: storm.leave_a_line(storm.second), "sent (2, 0) times, and taken (1, 0)"),
        (lambda storm: storm.leave_a_line(storm.first), "sent (1, 2) times, and taken (1, 1)"),
        (lambda storm: storm.send(storm.second, 90), "taken again after it was noted as sent"),
        (lambda storm: storm.take_twice(), "taken twice within 1.0 s"),
        (
            lambda storm: Alert.objects.filter(pk=storm.first).update(ended_at=at(35)),
            "began before the one before it had ended",
        ),
        (
            lambda storm: Alert.objects.filter(pk=storm.first).update(end_sent_at=None),
            "what was noted as sent is so no more",
        ),
        (lambda storm: storm.leave_a_line(storm.first, began_at=at(5)), "sent of no situation"),
        (
            lambda storm: Path(f"{storm.effects}.alerts").write_text(""),
            "noted as sent, and was not",
        ),
        (lambda storm: Alert.objects.all().delete(), "so nothing was tried"),
    ],
)
def test_what_is_sent_too_often_or_never_fails_the_account(
    storm: Storm, change: Callable[[Storm], object], problem: str
) -> None:
    change(storm)
    assert any(problem in found for found in storm.found()), storm.found()


def test_the_storm_opens_and_closes_in_turns_and_ends_closed() -> None:
    for seed in (1, 2, 3):
        made = alerts.events(seed, 42)
        assert [one.is_open for one in made] == [True, False] * (len(made) // 2)
        assert len(made) >= 4
    assert alerts.events(1, 42) == alerts.events(1, 42) != alerts.events(2, 42)
