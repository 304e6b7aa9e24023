"""What a handler raises to choose its fate takes whatever it is given."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils.translation import gettext_lazy

from django_jobs import Cancel, Discard, Retry, Snooze


class Mute:
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("given", [90, 90.0, Decimal(90), timedelta(seconds=90)])
def test_seconds_may_be_a_number_or_a_timedelta(given: Any) -> None:
    assert (Retry(given).after, Snooze(given).seconds) == (90.0, 90.0)
    assert str(Snooze(given)) == "snoozed for 90 s"


@pytest.mark.parametrize("given", ["soon", float("nan"), object(), [1]])
def test_invalid_seconds_are_replaced_and_noted_in_the_reason(given: Any) -> None:
    retry, snooze = Retry(given, "not yet"), Snooze(given)
    assert (retry.after, snooze.seconds) == (None, 60.0)
    kind = type(given).__name__
    assert kind in str(retry)
    assert str(retry).startswith("not yet (a")
    assert str(retry).endswith(" is not a number of seconds: its backoff decides)")
    assert "it runs again in a minute" in snooze.reason


def test_text_in_place_of_seconds_is_kept_as_the_reason() -> None:
    retry, snooze = Retry("no answer"), Snooze("no answer", reason="busy")
    assert retry.reason == "no answer (a str is not a number of seconds: its backoff decides)"
    assert Snooze("no answer").reason.startswith("no answer (a str is not a number of seconds")
    assert snooze.reason.startswith("busy (a str is")


def test_a_snooze_without_a_time_is_not_at_once() -> None:
    assert Snooze(None).seconds == 60.0
    assert Snooze(0).seconds == 0.0


def test_a_retry_may_ask_for_a_queue_and_a_priority() -> None:
    retry = Retry(5, queue="slow", priority=-100)
    assert (retry.after, retry.queue, retry.priority, retry.reason) == (5.0, "slow", -100, "")


@pytest.mark.parametrize(
    "options, note",
    [
        ({"queue": 7}, "7 is not the name of a queue: it stays in its own"),
        ({"queue": Mute()}, "a Mute is not the name of a queue: it stays in its own"),
        ({"priority": 101}, "101 is not a whole number from -100 to 100: it keeps its priority"),
        ({"priority": "1"}, "a str is not a whole number from -100 to 100: it keeps its priority"),
        ({"priority": True}, "True is not a whole number from -100 to 100: it keeps its priority"),
        ({"max_attempts": 2.5}, "a float is not a whole number: the job keeps its own"),
    ],
)
def test_an_invalid_option_is_left_out_and_noted(options: dict[str, Any], note: str) -> None:
    retry = Retry(reason="busy", **options)
    assert (retry.queue, retry.priority, retry.max_attempts) == (None, None, None)
    assert str(retry) == f"busy ({note})"
    assert len(str(Retry(priority=10**6000))) < 200  # longer than Python makes texts of


@pytest.mark.parametrize("fate", [Retry(1), Snooze(1), Discard(), Cancel(), Discard(None)])
def test_a_reason_may_be_left_out(fate: Any) -> None:
    assert fate.reason == ""
    assert str(fate)


@pytest.mark.parametrize(
    "reason, text",
    [
        (gettext_lazy("not yet"), "not yet"),
        (ValueError("no such order"), "no such order"),
        (7, "7"),
        (Mute(), "(the value's own text is unreadable: RuntimeError)"),
    ],
)
def test_a_reason_is_anything_with_a_text(reason: Any, text: str) -> None:
    for fate in (Retry(reason=reason), Snooze(1, reason), Discard(reason), Cancel(reason)):
        assert (fate.reason, str(fate), type(fate.reason)) == (text, text, str)
