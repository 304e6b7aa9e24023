"""What the page of a long job shows."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.admin.job_sections import progress
from django_jobs.domain.outcomes import Succeeded
from django_jobs.lifecycle.job_columns import ClaimedJob
from django_jobs.lifecycle.progress import ProgressReport, look_up, report, store
from django_jobs.models import DeadLetter, Job
from tests.admin.walking import BROKEN_PAYLOADS, Live, Page, change_url, statements_of
from tests.factories import (
    analyze,
    enqueue_and_claim,
    failure,
    plan_nodes,
    rows_read,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

HIDDEN = "Hidden: requires the permission"
RECEIPTS = """
INSERT INTO django_jobs_receipt (job_id, key, attempt, answer, made_at)
SELECT %s, 'charge ' || n, 1, '1', now() FROM generate_series(1, 5000) AS n
"""


def reported(**fields: Any) -> ClaimedJob:
    """A running job that has reported."""
    held = enqueue_and_claim()
    report([ProgressReport(job=held, **fields)])
    return held


def test_progress_is_a_bar_with_its_share_in_words_and_its_note(page: Page) -> None:
    held = reported(fraction=0.5249, note="page 52 of 99")
    text = page.read(change_url(Job, held.id))
    assert '<progress value="0.5249" max="1"' in text
    assert "<strong>52 %</strong>" in text
    assert "page 52 of 99" in text
    assert "ago</time>), attempt 1" in text


def test_a_share_is_a_number_of_html_in_every_language(page: Page, settings: Any) -> None:
    settings.LANGUAGE_CODE = "de"
    held = reported(fraction=0.5)
    assert '<progress value="0.5" max="1"' in page.text(change_url(Job, held.id))


def test_a_checkpoint_is_masked_and_needs_the_payload_permission(page: Page, page_of: Any) -> None:
    held = reported(checkpoint='{"row": 520, "api_token": "s3cret"}')
    text = page.read(change_url(Job, held.id))
    assert '"row": 520' in text
    assert "s3cret" not in text
    other = page_of("view_job").read(change_url(Job, held.id))
    assert HIDDEN in other
    assert '"row": 520' not in other


def test_receipts_are_listed_with_the_duplicates_that_they_prevented(
    page: Page, page_of: Any
) -> None:
    held = enqueue_and_claim()
    for number in range(52):
        store(held, f"charge {number}", '{"id": "ch_7", "password": "s3cret"}')
    for _ in range(3):
        look_up(held, "charge 51")
    text = page.read(change_url(Job, held.id))
    assert "Calls made once: 52. Duplicates prevented: 3." in " ".join(text.split())
    assert "Only the latest 50 are shown." in " ".join(text.split())
    assert "charge 51" in text
    assert "charge 1<" not in text
    assert '"id": "ch_7"' in text
    assert "s3cret" not in text
    other = page_of("view_job").read(change_url(Job, held.id))
    assert "charge 51" in other
    assert "ch_7" not in other


def test_many_receipts_are_counted_and_searched_in_part(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MOST_COUNTED", 3)
    monkeypatch.setattr(progress, "NEWEST", 4)
    monkeypatch.setattr(progress, "MOST_RECEIPTS", 2)
    held = enqueue_and_claim()
    for number in range(6):
        store(held, f"charge {number}", "1")

    def text() -> str:
        return " ".join(page.read(change_url(Job, held.id)).split())

    assert "Calls made once: 3+. Duplicates prevented: 0+. Only the latest 2 are shown." in text()
    assert [number for number in range(6) if f">charge {number}<" in text()] == [4, 5]
    other = enqueue_and_claim()
    for number in range(4):
        store(other, f"refund {number}", "1")
    note = "Calls made once: 3+. Duplicates prevented: 0+. Only those among the newest 4 of all"
    assert note in text()
    assert "charge 5" not in text()


@pytest.mark.usefixtures("fresh_tables")
def test_the_plans_of_many_receipts_read_a_bounded_part(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MOST_COUNTED", 100)
    monkeypatch.setattr(progress, "NEWEST", 100)
    held = enqueue_and_claim()
    run_sql(RECEIPTS, [held.id])
    analyze("django_jobs_receipt")
    statements = statements_of(page, change_url(Job, held.id))
    for sql in (one for one in statements if "django_jobs_receipt" in one):
        ((plan,),) = run_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.replace('%', '%%')}")
        for node in plan_nodes(plan):
            assert rows_read(node) <= 101


def test_a_job_without_a_report_has_no_progress_section(page: Page) -> None:
    assert "jobs-progress" not in page.text(change_url(Job, enqueue_and_claim().id))


def test_a_success_is_shown_as_100_percent(page: Page) -> None:
    held = reported(fraction=0.98, note="nearly")
    settle_one(held, Succeeded())
    assert "<strong>100 %</strong>" in page.read(change_url(Job, held.id))


def test_a_success_hides_its_stale_note_and_calls_its_checkpoint_the_last(page: Page) -> None:
    held = reported(fraction=0.968, note="968 of 1,000", checkpoint='{"row": 968}')
    before = page.read(change_url(Job, held.id))
    assert "968 of 1,000" in before
    assert "<dt>Checkpoint</dt>" in before
    settle_one(held, Succeeded())
    after = page.read(change_url(Job, held.id))
    assert "968 of 1,000" not in after
    assert "<dt>Last checkpoint</dt>" in after
    assert '"row": 968' in after


def test_any_other_end_keeps_the_last_note(page: Page) -> None:
    held = reported(fraction=0.968, note="968 of 1,000")
    settle_one(held, failure(final=True))
    assert "968 of 1,000" in page.read(change_url(Job, held.id))


def test_the_page_of_a_dead_letter_shows_it_too(page: Page) -> None:
    held = reported(fraction=0.52)
    settle_one(held, failure(final=True))
    assert "<strong>52 %</strong>" in page.read(change_url(DeadLetter, held.id))


@pytest.mark.parametrize("broken", BROKEN_PAYLOADS.values(), ids=BROKEN_PAYLOADS)
def test_an_unreadable_checkpoint_or_answer_breaks_no_page(page: Page, broken: str) -> None:
    held = reported(fraction=0.5)
    store(held, "charge", "1")
    run_sql("UPDATE django_jobs_progress SET checkpoint = %s", [broken])
    run_sql("UPDATE django_jobs_receipt SET answer = %s", [broken])
    text = page.read(change_url(Job, held.id))
    assert "cannot be shown" in text or "too large to show" in text


def test_any_value_is_escaped(page: Page) -> None:
    attack = "<script>alert(1)</script>"
    held = reported(fraction=0.5, note=attack, checkpoint=f'"{attack}"')
    store(held, attack, f'"{attack}"')
    text = page.text(change_url(Job, held.id))
    assert not Live(text).alarms
    assert text.count("&lt;script&gt;alert(1)") == 4


def test_many_receipts_take_no_more_queries_than_one(page: Page) -> None:
    held = reported(fraction=0.5)
    counts = []
    for upto in (1, 40):
        for number in range(upto):
            store(held, f"charge {upto} {number}", "1")
        counts.append(len(statements_of(page, change_url(Job, held.id))))
    assert counts[0] == counts[1]
