"""The state of a schedule is one, wherever it is read."""

from __future__ import annotations

import json
import re
from collections import Counter
from io import StringIO
from itertools import product

import pytest
from django.core.management import call_command
from django.db.models.functions import Now

from django_jobs.domain.policies import ON_TIME_SECONDS
from django_jobs.metrics.snapshot import take_snapshot
from django_jobs.models import Schedule
from django_jobs.models.querysets import CONDITIONS, ScheduleState
from tests.admin.conftest import page, superuser
from tests.admin.walking import Page, list_url
from tests.factories import run_sql

__all__ = ["page", "superuser"]

pytestmark = pytest.mark.django_db

DUE_IN = (None, "infinity", 3600, 5 - ON_TIME_SECONDS, -30 - ON_TIME_SECONDS)
"""Seconds; the last is beyond the one number from which on a schedule is overdue."""
BADGE = r'field-name.*?>([^<]+)</a>.*?field-state"><span class="jobs-badge jobs-(\w+)'


def expected(error: bool, enabled: bool, paused: bool, stale: bool, due_in: object) -> str:
    if error or not enabled or paused:
        return "error" if error else "paused" if enabled else "disabled"
    if stale or due_in not in (None, DUE_IN[-1]):
        return "on"
    return "ended" if due_in is None else "overdue"


@pytest.fixture
def states() -> dict[str, str]:
    """The state by name of a schedule with each combination of what makes a state."""
    Schedule.objects.all().delete()
    found = {}
    for error, enabled, paused, stale, due_in in product(*[(False, True)] * 4, DUE_IN):
        name = f"schedule-{len(found):03}"
        found[name] = expected(error, enabled, paused, stale, due_in)
        Schedule.objects.create(name=name, job_type="app.noop", every=3600, enabled=enabled)
        moment = "%s::timestamptz" if due_in == "infinity" else "now() + make_interval(secs => %s)"
        run_sql(
            f"UPDATE django_jobs_schedule SET stale = %s, next_due_at = {moment}, error = %s,"
            " paused_at = CASE WHEN %s THEN now() END WHERE name = %s",
            [stale, due_in, "why" if error else "", paused, name],
        )
    return found


def set_due_times() -> None:
    """Again, from now on: a busy machine takes several seconds to write all states, after which one
    that is on for five is overdue."""
    for place, due_in in enumerate(DUE_IN):
        if isinstance(due_in, float):
            run_sql(
                "UPDATE django_jobs_schedule"
                " SET next_due_at = clock_timestamp() + make_interval(secs => %s)"
                " WHERE right(name, 3)::integer %% %s = %s",
                [due_in, len(DUE_IN), place],
            )


def test_python_and_the_database_name_the_same_state(states: dict[str, str]) -> None:
    set_due_times()
    rows = Schedule.objects.annotate(read_at=Now())
    assert {row.name: row.state_at(row.read_at).value for row in rows} == states
    for state in ScheduleState:
        named = Schedule.objects.in_state(state).values_list("name", flat=True)
        assert set(named) == {name for name, known in states.items() if known == state}


def test_the_console_and_its_filter_name_the_same_state(states: dict[str, str], page: Page) -> None:
    for state in ScheduleState:
        of_state = [name for name, known in states.items() if known == state]
        set_due_times()
        text = page.read(f"{list_url(Schedule)}?state={state}")
        badges = dict(re.findall(BADGE, text, re.DOTALL))
        assert set(badges) == set(of_state[:50])
        assert set(badges.values()) == {state}


def test_the_commands_and_the_metrics_name_the_same_state(states: dict[str, str]) -> None:
    set_due_times()
    out = StringIO()
    call_command("jobschedule", "list", "--json", "--limit", "1000", stdout=out)
    listed = json.loads(out.getvalue())["schedules"]
    assert {row["name"]: row["state"] for row in listed} == states
    out = StringIO()
    call_command("jobschedule", "list", "--json", "--limit", "1000", "--failing", stdout=out)
    failing = {row["name"] for row in json.loads(out.getvalue())["schedules"]}
    assert failing == {name for name, known in states.items() if known in ("error", "overdue")}
    set_due_times()
    counted = take_snapshot().schedules
    assert {state: getattr(counted, state) for state in ScheduleState} == Counter(states.values())
    assert counted.most_overdue in {name for name, known in states.items() if known == "overdue"}


def test_each_state_has_its_condition() -> None:
    assert set(CONDITIONS) == set(ScheduleState)
