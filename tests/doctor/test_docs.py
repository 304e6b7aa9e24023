"""docs/doctor.md has all findings, with their severity and title."""

from __future__ import annotations

import re
from pathlib import Path

from django_jobs.doctor.findings import KINDS

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "doctor.md"


def test_the_page_has_a_row_for_each_finding_in_order() -> None:
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \| (.+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE)
    assert [id_ for id_, _, _ in rows] == list(KINDS)
    for id_, severity, meaning in rows:
        assert severity == KINDS[id_].severity
        assert meaning.startswith(KINDS[id_].title), id_
