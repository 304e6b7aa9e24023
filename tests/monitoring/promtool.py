"""promtool evaluates the alert rules and the board's queries on scrapes of known minutes.

A scrape is real, and so are its values; only its time is given. So a test has a history of hours
without waiting for it, and ``for:`` counts as in Prometheus.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

DOCS = Path(__file__).resolve().parents[2] / "docs"
RULES = DOCS / "monitoring" / "alerts.yml"
BOARD = DOCS / "monitoring" / "board.json"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: apt-get install prometheus"
)

TARGETS = ("web:8000", "worker:8001")
"""Each shows the numbers of the whole fleet. A sum over them is wrong by a factor of 2."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What each scrape of these minutes shows, one a minute. The text of none is empty. With an
    ``end``, the values grow evenly to those of this scrape."""

    scrape: str
    minutes: int
    end: str = ""


def rules() -> list[dict[str, Any]]:
    """Alerts, and the recorded expressions that these use, as they are written."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """The alerts alone."""
    return [rule for rule in rules() if "alert" in rule]


def labels_by_name(scrape: str) -> dict[str, set[str]]:
    """The labels of the series of each name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(scrape):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def notation(name: str, labels: Mapping[str, str]) -> str:
    """``up{job="x"}``."""
    pairs = ",".join(f"{label}={json.dumps(value)}" for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"


def assert_alerts(
    history: Sequence[Phase], *firing: Mapping[str, Mapping[str, str]], every: int = 1
) -> None:
    """In the last minute of each phase these alerts fire, with these labels, and no others. The
    rules are evaluated ``every`` so many minutes; an alert is seen for five minutes after that."""
    fire = 'group without (alertstate, severity) (ALERTS{alertstate="firing"})'
    values = [
        {notation("", {"alertname": name, **labels}): 1.0 for name, labels in alerts.items()}
        for alerts in firing
    ]
    assert_values(history, fire, *values, every=every)


def assert_values(
    history: Sequence[Phase], expression: str, *values: Mapping[str, float], every: int = 1
) -> None:
    """In the last minute of each phase the expression has these values by labels, and no others."""
    ends = accumulate(phase.minutes for phase in history)
    tests = [_test(expression, end, wanted) for end, wanted in zip(ends, values, strict=True)]
    _run(history, tests, every)


def assert_each(
    history: Sequence[Phase], wanted: Iterable[tuple[str, Mapping[str, float]]]
) -> None:
    """At the end each expression has its values by labels, and no others. One process, which takes
    half a second of a CPU, looks at all of them."""
    end = sum(phase.minutes for phase in history)
    _run(history, [_test(expression, end, values) for expression, values in wanted])


def assert_have_data(history: Sequence[Phase], expressions: Iterable[str]) -> None:
    """At the end each expression has a value."""
    assert_each(history, [(f"count({each}) > bool 0", {"{}": 1}) for each in expressions])


def _test(expression: str, end: int, values: Mapping[str, float]) -> dict[str, Any]:
    samples = [{"labels": labels, "value": value} for labels, value in values.items()]
    return {"expr": expression, "eval_time": f"{end - 1}m", "exp_samples": samples}


def _run(history: Sequence[Phase], tests: list[dict[str, Any]], every: int = 1) -> None:
    test = {"interval": "1m", "input_series": _series(history), "promql_expr_test": tests}
    whole = {"rule_files": [str(RULES)], "evaluation_interval": f"{every}m", "tests": [test]}
    with TemporaryDirectory() as directory:
        file = Path(directory) / "test.yml"
        file.write_text(json.dumps(whole))  # JSON is YAML
        promtool("test", "rules", str(file))


def _series(history: Sequence[Phase]) -> list[dict[str, str]]:
    phases = [(_values(phase.scrape), _values(phase.end), phase.minutes) for phase in history]
    names = sorted(set(chain.from_iterable(first for first, _, _ in phases)))
    return [
        {"series": name, "values": " ".join(_points(name, *phase) for phase in phases)}
        for name in names
    ]


def _points(name: str, first: Mapping[str, float], last: Mapping[str, float], minutes: int) -> str:
    if name not in first:
        return f"stale _x{minutes - 1}"
    step = (last.get(name, first[name]) - first[name]) / (minutes - 1) if minutes > 1 else 0.0
    return (
        f"{first[name]!r}{step:+.12g}x{minutes - 1}" if step else f"{first[name]!r}x{minutes - 1}"
    )


def _values(scrape: str) -> dict[str, float]:
    return {
        notation(sample.name, {**sample.labels, "instance": target}): sample.value
        for family in text_string_to_metric_families(scrape)
        for sample in family.samples
        for target in TARGETS
    }


def promtool(*arguments: str, input: str = "") -> str:
    """Run it; returns what it printed. It has to succeed."""
    done = subprocess.run(
        ["promtool", *arguments],
        input=input,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"promtool {' '.join(arguments)}:\n{done.stdout}"
    return done.stdout
