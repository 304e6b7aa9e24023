"""The soak runs and measures. Whether anything grows takes an hour: that is asked by hand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.verdict import BOUNDS, compare

ROOT = Path(__file__).resolve().parent.parent


def test_half_a_minute_of_soak_measures_everything(tmp_path: Path) -> None:
    report = tmp_path / "soak.md"
    environment = {key: value for key, value in os.environ.items() if "DATABASE" not in key}
    # In under a minute caches still fill: that something grew is no failure here.
    command = [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--rate", "50"]
    done = subprocess.run(
        [*command, "--every", "2", "--report", str(report)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    lines = dict(re.findall(r"^\| (.+?) \| [\d.,]+ \| ([\d.,]+) \|", report.read_text(), re.M))
    assert set(lines) == set(BOUNDS)
    for name in ("memory (MB)", "file descriptors", "processes", "connections", "indexes (MB)"):
        assert float(lines[name].replace(",", "")) > 0, name
    (attempts,) = re.findall(r"([\d,]+) attempts", report.read_text())
    assert int(attempts.replace(",", "")) > 500


def samples(**last: float) -> list[dict[str, float]]:
    flat = dict.fromkeys(BOUNDS, 100.0)
    return [flat] * 6 + [{**flat, **last}] * 2


def test_a_constant_value_passes() -> None:
    assert all(line.is_kept for line in compare(samples()))


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_growth_in_the_last_quarter_is_reported(name: str) -> None:
    documented = [line.name for line in compare(samples(**{name: 1_000_000.0})) if not line.is_kept]
    assert documented == [name]


def test_the_page_names_the_bounds() -> None:
    page = (ROOT / "docs" / "soak.md").read_text().partition("## A run of an hour")[0]
    documented = dict(re.findall(r"^\| ([\w ,]+) \| (.+) \|$", page, re.M))
    for name, bound in BOUNDS.items():
        (text,) = [
            text for names, text in documented.items() if name.split(" (")[0] in names.split(", ")
        ]
        assert f"{bound.amount:,g}" in text
        assert not bound.share or f"{bound.share:.0%}".replace("%", " %") in text
