"""What each reader says of each scene, and that no finding, problem or alert is without a scene."""

from __future__ import annotations

import ast
import inspect
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_jobs import registry
from django_jobs.admin.overview import problems
from django_jobs.doctor.findings import KINDS
from django_jobs.metrics import gauges
from tests.admin.overview.looking import words
from tests.monitoring.promtool import alerts

from .catalogue import SCENES, set_up, words_of
from .readers import Samples, assert_firing, read, read_overview, read_samples

BASELINE: Samples = {}
"""The scrape of a worker without jobs, of the first test that needs it."""


@pytest.fixture(autouse=True)
def _nothing_else_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_schedules", {})
    monkeypatch.setitem(gauges.BOUNDS, "whole", 1_000_000)  # all live jobs are counted


@pytest.fixture(scope="module")
def scrapes() -> Iterator[dict[str, tuple[Samples, str]]]:
    """The scrapes of the scenes, and their alerts. When all scenes are read, one process of
    promtool looks whether these fire, and no others."""
    scrapes: dict[str, tuple[Samples, str]] = {}
    yield scrapes
    if shutil.which("promtool"):
        assert_firing(scrapes)


@pytest.mark.django_db
@pytest.mark.parametrize("name", SCENES)
def test_a_scene(name: str, scrapes: dict[str, tuple[Samples, str]]) -> None:
    set_up()
    if not BASELINE:
        read_overview()
        BASELINE.update(read_samples())
    said, samples = read(SCENES[name](), BASELINE)
    wanted, _, firing = "\n".join(words_of(name)).partition("alerts ")
    scrapes[name] = samples, firing
    assert said == wanted.splitlines()


SAID = "\n".join(line for name in SCENES for line in words_of(name))

PAGE = Path(__file__).resolve().parents[2] / "docs" / "playbook.md"


def row_of(name: str) -> str:
    """Who says that something is wrong in a scene, as a row of the page; empty if nobody does."""
    said = [tuple(line.split(" ", 2)) for line in words_of(name)]
    states = sorted({one[1].rstrip(":") for one in said if one[0] == "overview"}, reverse=True)
    numbers = {f"`{one[1]}`" for one in said if one[0] == "doctor"}
    fired = words_of(name)[-1].removeprefix("alerts ").split() if said[-1][0] == "alerts" else []
    alerts = [f"[{one.removeprefix('DjangoJobs')}](#{one.lower()})" for one in fired]
    cells = [
        ", ".join(states).replace("caution", "warning"),
        ", ".join(sorted(numbers)),
        "fails" if any(one[0] == "status" for one in said) else "",
        ", ".join(alerts),
    ]
    return f"| {name.replace('_', ' ')} | {' | '.join(cells)} |" if any(cells) else ""


def test_the_page_says_who_names_what() -> None:
    table = PAGE.read_text().split("## Who says what")[1].split("\n## ")[0]
    rows = [re.sub(r"\|  (?=\|)", "| ", row_of(name)) for name in SCENES]
    there = [line for line in table.splitlines() if line.startswith("| ")]
    assert there[1:] == [row for row in rows if row]


UNRAISED = {
    "D311": "of declarations, as D310: tests/doctor/test_schedules.py",
    "D312": "of declarations, as D310: tests/doctor/test_schedules.py",
    "D313": "of a clock that was ahead: tests/doctor/test_schedules.py",
    "D315": "of the time zone tables of the host: tests/doctor/test_zones.py",
    "DjangoJobsMetricsMissing": "of no scrape at all: tests/monitoring/test_alerts.py",
    "DjangoJobsMetricsStale": "of a locked row: tests/monitoring/test_alerts.py",
    "DjangoJobsFailureSpike": "of counters that grow: tests/monitoring/test_alerts.py",
    "DjangoJobsCrashLoop": "of counters that grow: tests/monitoring/test_alerts.py",
    "{count} more run of a workflow failed in the last hour.": "of more than are named",
    "{name}: its only async slot is busy{types}; {jobs}, the first for {time}.": "as of threads",
}
"""The findings about work, alerts and problems that no scene raises, and of what they are."""


def templates() -> Iterator[list[str]]:
    """The sentences of the overview's problems, as they are in the source: of one, or of many."""
    for node in ast.walk(ast.parse(inspect.getsource(problems))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_", "ngettext"):
            texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
            if re.search(r"\{\w+\}.*\.$|strong", str(texts[0])):
                yield [re.sub(r" (?=[:,.])", "", words(str(one))) for one in texts]


def is_said(template: str) -> bool:
    text = re.sub(r"\\\{\w+\\\}", ".*", re.escape(template))
    return re.search(rf"overview \w+: {text}", SAID) is not None


def test_each_finding_alert_and_problem_has_a_scene() -> None:
    findings = {id_.removeprefix("django_jobs.") for id_ in KINDS}
    unraised = {one for one in findings if one >= "D3" and f"doctor {one} " not in SAID}
    unraised |= {alert["alert"] for alert in alerts()} - set(SAID.split())
    unraised |= {one[0] for one in templates() if not any(map(is_said, one))}
    assert unraised == set(UNRAISED)
