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
    assert (retry.after, snooze.seconds) == (None, 0.0)
    kind = type(given).__name__
    assert kind in str(retry)
    assert str(retry).startswith("not yet (a")
    assert str(retry).endswith(" is not a number of seconds: its backoff decides)")
    assert "it runs again at once" in snooze.reason


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
