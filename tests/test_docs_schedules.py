"""What the documentation says of schedules is true of the code."""

from __future__ import annotations

import inspect
import re
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

import django_jobs
from django_jobs.domain.cron import DST_POLICIES, BrokenCron, check_cron, times

from .test_docs import code_in_first_cells, page, section

PARIS = ZoneInfo("Europe/Paris")
DAYS = datetime(2026, 3, 29, tzinfo=PARIS), datetime(2026, 10, 25, tzinfo=PARIS)


def due_before_five(cron: str, day: datetime, dst: str) -> list[str]:
    found = islice(times(cron, "Europe/Paris", day - timedelta(seconds=1), dst), 20)
    return [f"{at.astimezone(PARIS):%H:%M%z}" for at in found if at < day.replace(hour=5)]


def test_the_table_of_clock_changes_agrees_with_the_rules() -> None:
    text = section(page("schedules.md"), "## The two days a year")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert len(rows) == 6
    for cron, policy, *documented in rows:
        for dst in DST_POLICIES if policy == "any" else [policy.strip("`")]:
            for day, expected in zip(DAYS, documented, strict=True):
                shown = due_before_five(cron, day, dst)
                assert shown == ([] if expected == "none" else expected.split()), (cron, dst)


def test_cron_expressions_are_accepted_and_refused_as_the_page_says() -> None:
    accepted, refused = section(page("schedules.md"), "### Cron").split("These are refused")
    examples = re.findall(r"^\| .+? \| `(.+?)` \| .+ \|$", accepted, re.MULTILINE)
    assert len(examples) == 9
    for cron in examples:
        check_cron(cron, "a name")
    misread = [code for code in code_in_first_cells(refused) if code not in {"R", "H", "22-4"}]
    assert len(misread) == 16
    for cron in misread:
        with pytest.raises(BrokenCron):
            check_cron(cron, "a name")


def test_every_argument_of_a_schedule_is_documented_and_nothing_else() -> None:
    table = section(page("reference/api.md"), "## Schedules")
    parameters = inspect.signature(django_jobs.schedule).parameters
    known = {name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD}
    assert set(code_in_first_cells(table)) == known


def test_every_outcome_of_a_tick_has_its_line() -> None:
    table = section(page("schedules.md"), "## What happened")
    assert set(code_in_first_cells(table)) == set(django_jobs.models.TickOutcome)
