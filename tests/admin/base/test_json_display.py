"""JSON columns are shown with any content, with secrets masked."""

from __future__ import annotations

import pytest

from django_jobs.admin.base.json_display import DEEPEST, masked
from django_jobs.domain.payload import MAX_DEPTH
from django_jobs.domain.run_log import MASK
from django_jobs.models import DeadLetter, Job
from tests.admin.walking import Page, change_url
from tests.app.jobs import add
from tests.factories import make_dead, run_sql

TOO_DEEP = f"not shown: nested deeper than {DEEPEST} levels"


@pytest.mark.django_db
@pytest.mark.parametrize("levels", [600, 900, 6_000])
@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a": [', "]}")])
def test_a_payload_of_any_depth_breaks_no_page(
    page: Page, levels: int, opening: str, closing: str
) -> None:
    dead = make_dead(add, 1)
    times = levels // opening.count("[") // len(closing)
    value = f"{opening * times}7{closing * times}"
    run_sql(
        "UPDATE django_jobs_job SET payload = %s::jsonb, result = %s::jsonb",
        [f'{{"first": {value}}}', value],
    )
    text = page.read(change_url(Job, dead.pk))
    assert TOO_DEEP in text or "Python cannot read this JSON" in text
    page.text(change_url(DeadLetter, dead.pk))
    edit = change_url(Job, dead.pk).replace("change", "edit")
    page.text(edit)
    answer = page.client.post(edit, {"queue": "default", "priority": "3", "argument_first": "7"})
    assert answer.status_code == 200


def test_all_that_enqueue_allows_is_shown_and_masked() -> None:
    value: object = {"token": "t-secret", "other": 1}
    for _ in range(MAX_DEPTH):
        value = [value]
    shown = str(masked({"first": value}))
    assert "'other': 1" in shown
    assert MASK in shown
    assert "t-secret" not in shown
