"""Backoff and retention as fields of the form of a queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings

from django_jobs.domain.backoff import LONGEST_DELAY, Backoff
from django_jobs.domain.retention import Kept, kept_by_status
from django_jobs.models import Queue
from tests.admin.walking import Page, change_url

from .filled_in import as_shown, errors, filled_in, saved

pytestmark = pytest.mark.django_db

EVERY_CURVE = [
    Backoff.exponential(),
    Backoff.exponential(base=0.5, factor=3, cap=60, jitter=0),
    Backoff.polynomial(1, exponent=4, cap=900, jitter=0.1),
    Backoff.linear(15, cap=LONGEST_DELAY),
    Backoff.fixed(5),
    Backoff.fixed(0, jitter=1),
]
SHORT = [{"curve": "fixed", "base": 5}, {"curve": "exponential", "base": 1, "factor": 2}]
RETENTIONS = [
    {"succeeded": "7d"},
    {"succeeded": 0, "cancelled": "90s", "dead": None},
    {"succeeded": 86400, "cancelled": 0.5},
    {"dead": {"age": "180d", "number": 10000}},
    {"dead": {"number": 5}},
    {"dead": {"age": None, "number": 5}},
    {"dead": {"age": 60}},
    {"dead": {}},
    {"dead": {"number": None}},
    {},
]
RIGHT: dict[str, Any] = {"backoff": SHORT[0], "retention": RETENTIONS[0]}
ODD_BACKOFFS = [
    {"curve": "cubic", "base": 1}, {"base": 2}, {}, [1], 5, "fixed",
    {"curve": "fixed", "base": 5, "cap": 3}, {"curve": "linear", "base": 5, "factor": 7},
    {"curve": "fixed", "base": "5"}, {"curve": "fixed", "base": 5, "more": "<script>"},
]  # fmt: skip
ODD_RETENTIONS = [
    {"ready": "1d"}, {"succeeded": {"number": 5}}, {"dead": {"number": 0}}, {"succeeded": "soon"},
    {"succeeded": True}, {"succeeded": f"{10**30}d"}, {"dead": {"age": "1d", "most": 3}}, [1], "7d",
    {"succeeded": 1e30}, 0,
]  # fmt: skip


def queue_with(**values: Any) -> Queue:
    Queue.objects.filter(name="bulk").update(**values)
    return Queue.objects.get(name="bulk")


def test_the_page_shows_the_form_that_these_tests_send(page: Page) -> None:
    queue = queue_with(backoff=SHORT[0], retention=RETENTIONS[1], max_attempts=3)
    shown = page.client.get(change_url(Queue, queue.pk)).context["adminform"].form
    assert filled_in(shown, max_attempts=7) == as_shown(page, queue, max_attempts=7)


def test_what_few_queues_have_is_closed_until_a_queue_has_it(page: Page) -> None:
    def closed(queue: Queue) -> list[str]:
        fieldsets = page.client.get(change_url(Queue, queue.pk)).context["adminform"]
        return [str(one.name).split()[0] for one in fieldsets if one.is_collapsible]

    assert closed(queue_with(retention=None)) == ["Backoff", "Retention", "Objective"]
    queue = queue_with(backoff=SHORT[0], retention=RETENTIONS[1], slo_seconds=5)
    assert closed(queue) == []


@pytest.mark.parametrize("stored", [*(rule.as_json() for rule in EVERY_CURVE), *SHORT, None])
def test_a_backoff_comes_out_of_its_fields_as_it_went_in(page: Page, stored: Any) -> None:
    queue = queue_with(backoff=stored)
    assert "backoff" not in as_shown(page, queue)
    assert saved(page, queue, max_attempts="7").backoff == stored
    # Also if one field is changed and changed back.
    jitter = as_shown(page, queue)["backoff_jitter"]
    if stored is not None:
        assert saved(page, queue, backoff_jitter="0.25").backoff["jitter"] == 0.25
        again = saved(page, queue, backoff_jitter=jitter).backoff
        assert Backoff(**again) == Backoff(**stored)
        assert again == Backoff(**stored).as_json()


@pytest.mark.parametrize("stored", [*RETENTIONS, None])
def test_a_retention_comes_out_of_its_fields_as_it_went_in(page: Page, stored: Any) -> None:
    queue = queue_with(retention=stored)
    assert "retention" not in as_shown(page, queue)
    assert saved(page, queue, max_attempts="7").retention == stored
    cancelled = as_shown(page, queue)["retention_cancelled"]
    assert saved(page, queue, retention_cancelled="3w").retention["cancelled"] == "3w"
    again = saved(page, queue, retention_cancelled=cancelled).retention
    assert kept_by_status(again or {}) == kept_by_status(stored or {})
    assert again or not stored


@pytest.mark.parametrize("column, stored", [
    *(("backoff", value) for value in ODD_BACKOFFS),
    *(("retention", value) for value in ODD_RETENTIONS),
])  # fmt: skip
def test_what_the_fields_cannot_show_is_shown_as_text_and_kept(
    page: Page, column: str, stored: Any
) -> None:
    queue = queue_with(**{column: stored})
    stored = getattr(queue, column)
    shown = as_shown(page, queue)
    assert json.loads(shown[column]) == stored
    assert not [name for name in shown if name.startswith(f"{column}_")]
    assert '<script>"' not in page.text(change_url(Queue, queue.pk))
    queue = saved(page, queue, max_attempts="7")
    assert (getattr(queue, column), queue.max_attempts) == (stored, 7)
    queue = saved(page, queue, **{column: json.dumps(RIGHT[column])})
    assert column not in as_shown(page, queue)
    assert saved(page, queue_with(**{column: stored}), **{column: ""}).retention is None


@pytest.mark.parametrize(
    "column, stored", [("backoff", ODD_BACKOFFS[0]), ("retention", ODD_RETENTIONS[0])]
)
def test_an_error_loses_neither_what_the_fields_cannot_show_nor_its_text(
    page: Page, column: str, stored: Any
) -> None:
    queue = queue_with(**{column: stored})
    right = json.dumps(RIGHT[column])
    assert set(errors(page, queue, max_attempts="-1")) == {"max_attempts"}
    assert set(errors(page, queue, max_attempts="-1", **{column: right})) == {"max_attempts"}
    (problem,) = errors(page, queue, **{column: '{"nonsense": 1}'})[column]
    assert "Enter an object such as" in problem
    assert "__init__" not in problem


def test_a_chosen_curve_is_stored_as_its_function_makes_it(page: Page) -> None:
    queue = queue_with(backoff=None)
    made = {
        "exponential": Backoff.exponential(),
        "polynomial": Backoff.polynomial(3),
        "linear": Backoff.linear(3),
        "fixed": Backoff.fixed(3),
    }
    for curve, rule in made.items():
        base = "" if curve == "exponential" else "3"
        blank = dict.fromkeys(
            ("backoff_factor", "backoff_exponent", "backoff_cap", "backoff_jitter"), ""
        )
        values = {**blank, "backoff_curve": curve, "backoff_base": base}
        assert saved(page, queue, **values).backoff == rule.as_json()
    assert saved(page, queue, backoff_curve="").backoff is None


def test_the_text_of_an_age_is_stored_as_the_setting_writes_it(page: Page) -> None:
    queue = saved(
        page, queue_with(retention=None), retention_succeeded="0", retention_cancelled="12h",
        retention_dead="none",
    )  # fmt: skip
    assert queue.retention == {"succeeded": 0, "cancelled": "12h", "dead": None}
    queue = saved(page, queue, retention_dead=" 180d ", retention_number="10000")
    assert queue.retention["dead"] == {"age": "180d", "number": 10000}
    queue = saved(page, queue, retention_dead="")
    assert kept_by_status(queue.retention)["dead"] == Kept(number=10000)
    blank = dict.fromkeys(("succeeded", "cancelled", "number"), "")
    queue = saved(page, queue, **{f"retention_{name}": "" for name in blank})
    assert queue.retention is None


@pytest.mark.parametrize(
    "values, field, problem",
    [
        ({"backoff_curve": "linear"}, "base", "needs a number of seconds"),
        ({"backoff_curve": "fixed", "backoff_base": "-1"}, "base", "between 0 and one year"),
        ({"backoff_curve": "fixed", "backoff_base": "nan"}, "base", "Enter a number"),
        ({"backoff_curve": "fixed", "backoff_base": "1e300"}, "base", "between 0 and one year"),
        ({"backoff_curve": "exponential", "backoff_factor": "0.5"}, "factor", "at least 1"),
        ({"backoff_curve": "exponential", "backoff_cap": "-1"}, "cap", "between 0 and one year"),
        ({"backoff_curve": "exponential", "backoff_jitter": "2"}, "jitter", "share from 0 to 1"),
        ({"backoff_curve": "cubic"}, "curve", "not one of the available choices"),
        ({"backoff_base": "5"}, "base", "does not use this"),
        ({"backoff_curve": "linear", "backoff_base": "5", "backoff_factor": "2"}, "factor", "use"),
    ],
)
def test_a_wrong_number_of_a_backoff_is_refused_at_its_field(
    page: Page, values: dict[str, str], field: str, problem: str
) -> None:
    found = errors(page, queue_with(backoff=None), **values)
    assert list(found) == [f"backoff_{field}"]
    assert problem in found[f"backoff_{field}"][0]


@pytest.mark.parametrize(
    "values, problem",
    [
        ({"retention_succeeded": "soon"}, "'soon' is not a duration; write it as 90s"),
        ({"retention_cancelled": "-1"}, "'-1' is not a duration"),
        ({"retention_dead": "7 days"}, "'7 days' is not a duration"),
        ({"retention_dead": "9" * 400}, "at most 20 characters"),
        ({"retention_number": "0"}, '"number" must be a whole number from 1 to 2,147,483,647'),
        ({"retention_number": str(2**31)}, '"number" must be a whole number from 1'),
        ({"retention_number": "many"}, "Enter a whole number"),
    ],
)
def test_a_wrong_retention_is_refused_at_its_field(
    page: Page, values: dict[str, str], problem: str
) -> None:
    found = errors(page, queue_with(retention=None), **values)
    assert list(found) == list(values)
    assert problem in next(iter(found.values()))[0]


def test_a_rule_that_changed_meanwhile_is_not_undone(page: Page) -> None:
    queue = queue_with(retention=None)
    shown = as_shown(page, queue, max_attempts="7")
    queue_with(retention={"succeeded": 0})
    answer = page.client.post(change_url(Queue, queue.pk), shown)
    assert "Attempts, Keep succeeded jobs" in answer.content.decode()
    assert Queue.objects.get(pk=queue.pk).retention == {"succeeded": 0}


def test_the_history_names_the_fields_that_changed(page: Page) -> None:
    saved(page, queue_with(backoff=None), backoff_curve="fixed", backoff_base="5")
    assert LogEntry.objects.get().get_change_message() == "Changed Backoff and First wait."


@override_settings(DJANGO_JOBS={"RETENTION": {"succeeded": "3d", "dead": {"number": 9}}})
def test_the_help_says_what_an_empty_field_means(page: Page) -> None:
    text = page.read(change_url(Queue, queue_with(retention=None).pk))
    for value in ("3d", "7d", '{"number": 9}'):
        assert f"Empty: {value}, by the setting." in text


def test_who_may_only_look_sees_the_rules_in_words(page_of: Callable[..., Page]) -> None:
    queue = queue_with(backoff=Backoff.fixed(5).as_json(), retention={"succeeded": "7d"})
    page = page_of("view_queue")
    text = page.read(change_url(Queue, queue.pk))
    assert "Backoff: fixed; First wait: 5; Jitter: 0.0" in text
    assert "Keep succeeded jobs: 7d" in text
    queue_with(backoff=["<script>"], retention=None)
    assert "[&quot;&lt;script&gt;&quot;]" in page.text(change_url(Queue, queue.pk))
