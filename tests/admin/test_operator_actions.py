"""The actions of an operator: what they ask, warn of and answer."""

from __future__ import annotations

import html

import pytest
from django.urls import reverse

from django_jobs.models import DeadLetter, Job
from tests.admin.walking import Live, Page, change_url, list_url
from tests.factories import make_dead, run_sql

pytestmark = pytest.mark.django_db


def make_dead_once() -> Job:
    """A dead job of which the failed attempt may have done something."""
    dead = make_dead()
    run_sql("UPDATE django_jobs_job SET at_most_once = true WHERE id = %s", [dead.pk])
    return dead


def question(page: Page, action: str, *ids: int, across: int = 0) -> str:
    asked = page.ask(DeadLetter, action, *ids, select_across=across)
    return html.unescape(asked.content.decode())


@pytest.mark.parametrize("across", [0, 1])
def test_a_replay_of_jobs_that_run_at_most_once_is_warned_of(page: Page, across: int) -> None:
    jobs = [make_dead_once(), make_dead()]
    text = question(page, "replay_jobs", *(job.pk for job in jobs), across=across)
    assert "1 job runs at most once: what its failed attempt has done is not known." in text
    jobs.append(make_dead_once())
    text = question(page, "replay_jobs", *(job.pk for job in jobs), across=across)
    assert "2 jobs run at most once" in text


def test_what_repeats_nothing_is_not_warned_of(page: Page) -> None:
    dead = make_dead_once()
    assert "at most once" not in question(page, "dismiss_jobs", dead.pk)
    assert "at most once" not in question(page, "replay_jobs", make_dead().pk)


def test_an_edit_that_replays_is_warned_of_before_and_in_its_question(page: Page) -> None:
    dead = make_dead_once()
    url = reverse("admin:django_jobs_job_edit", args=[dead.pk])
    assert "Edit and replay" in page.text(change_url(Job, dead.pk))
    assert "may do it twice, such as charge a card" in page.text(url)
    asked = page.client.post(url, {"queue": "bulk", "priority": "0"}).content.decode()
    assert 'name="confirmed"' in asked
    assert "may do it twice, such as charge a card" in asked


def test_the_list_of_dead_letters_marks_them(page: Page) -> None:
    make_dead()
    assert "at most once" not in page.text(list_url(DeadLetter))
    make_dead_once()
    assert page.text(list_url(DeadLetter)).count('jobs-caution-text">at most once') == 1


def test_the_title_of_a_question_names_the_row_if_it_is_one(page: Page) -> None:
    jobs = [make_dead(), make_dead()]
    assert f"<title>Replay: app.noop #{jobs[0].pk}?" in question(page, "replay_jobs", jobs[0].pk)
    assert "<title>Replay dead jobs?" in question(page, "replay_jobs", *(job.pk for job in jobs))
    run_sql("UPDATE django_jobs_job SET job_type = %s", ["<script>alert(1)</script>"])
    asked = page.ask(DeadLetter, "replay_jobs", jobs[0].pk).content.decode()
    assert not Live(asked).alarms
