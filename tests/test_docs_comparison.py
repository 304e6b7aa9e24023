"""docs/comparison.md does not deny what the package has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_jobs.conf import KEYS as SETTINGS

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "comparison.md").read_text()
COMMANDS = {path.stem for path in (ROOT / "django_jobs/management/commands").glob("job*.py")}

WORDS = {
    "HOOKS": r"\bhooks?\b|middleware for jobs",
    "IMMEDIATE": r"eager",
    "METRICS_TOKEN": r"metrics|Prometheus",
    "QUEUES": r"several queues|\bpriorit",
    "RESOURCES": r"rate limit|breaker",
    "RUN_LOGS": r"\blog(s|ging)?\b",
    "docs/admin/editing.md": r"\bedit",
    "docs/async.md": r"async handlers|coroutines",
    "docs/sql.md": r"producers in|enqueue by SQL",
    "docs/workflows.md": r"\bchains?\b|\bgraphs? of jobs",
    "jobarchive": r"archiv",
    "jobdoctor": r"health checks?",
    "jobinspect": r"running (job|handler)|diagnos|stack",
    "jobquarantine": r"quarantine",
    "jobreplay": r"\breplay",
    "jobschedule": r"periodic|recurring",
}
"""What the package has, by the setting, command or page that shows it, and words for it."""


def denied() -> list[str]:
    """The sentences and the list that say what this project has not."""
    sentences = re.findall(
        r"has, and this has not:\*\*(.+?)\.(?:\s|$)", PAGE, re.IGNORECASE | re.DOTALL
    )
    (items,) = re.findall(r"\n## What this has not at all\n(.+)", PAGE, re.DOTALL)
    return [*sentences, *items.strip().split("\n- ")]


def test_the_page_says_what_this_has_not() -> None:
    assert len(denied()) > 12


@pytest.mark.parametrize("name", WORDS)
def test_nothing_that_exists_is_denied(name: str) -> None:
    assert name in COMMANDS or name in SETTINGS or (ROOT / name).is_file(), "what shows it is gone"
    assert [text for text in denied() if re.search(WORDS[name], text, re.IGNORECASE)] == []
