"""The page of failures: what it counts, what it finds, and how few steps a replay takes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.urls import reverse

from django_jobs.admin.operations.background import terms_of_list
from django_jobs.admin.operator_actions import BY_PLAN
from django_jobs.lifecycle.operations.bulk import count, newest
from django_jobs.models import BulkAction, DeadLetter, Job, Run, Worker
from tests.admin.walking import Live, Page, list_url
from tests.app.jobs import add, noop
from tests.factories import (
    enqueue_and_claim,
    failure,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)

pytestmark = pytest.mark.django_db

FAILURES = "/admin/django_jobs/deadletter/failures/"


def dead(kind: str = "KeyError", **options: Any) -> Job:
    held = enqueue_and_claim(noop, **options)
    settle_one(held, failure(f"{kind} happened", kind=kind, final=True))
    return Job.objects.get(pk=held.id)


def rows_in(text: str) -> list[str]:
    body = text.partition("<tbody>")[2].partition("</tbody>")[0]
    return [re.sub(r"<[^>]+>|\s+", " ", row) for row in body.split("<tr>")[1:]]


def test_one_line_for_each_failure_the_largest_first(page: Page) -> None:
    dead("ValueError")
    for _ in range(2):
        dead("KeyError")
    text = page.read(FAILURES)
    first, second = rows_in(text)
    assert "KeyError: KeyError happened" in first
    assert "app.noop · default" in " ".join(first.split())
    assert first.split()[0] == "2"
    assert "ValueError" in second
    assert "3 dead jobs of 2 kinds" in text
    assert Live(page.text(FAILURES)).alarms == []


def test_a_heading_sorts_the_failures_and_the_headline_follows_the_search(page: Page) -> None:
    dead("ValueError")
    for _ in range(2):
        dead("KeyError")
    for order, first in (("dead", "ValueError"), ("what", "KeyError"), ("-last", "KeyError"),
                         ("-what", "ValueError"), ("x", "KeyError")):  # fmt: skip
        assert first in rows_in(page.read(f"{FAILURES}?o={order}"))[0], order
    text = page.text(f"{FAILURES}?o=-what&q=happened")
    assert 'href="?o=what&amp;q=happened"' in text
    assert text.count("aria-sort") == 1
    assert "2 dead jobs of one kind" in page.read(f"{FAILURES}?q=KeyError")


def test_the_version_is_that_of_the_oldest_job_of_all_queues(page: Page) -> None:
    for queue, version in (("emails", "old-1"), ("bulk", "new-2")):
        worker = register_worker()
        Worker.objects.filter(pk=worker).update(code_version=version)
        held = enqueue_and_claim(noop, worker=worker, queue=queue)
        settle_one(held, failure("gone", kind="KeyError", final=True))
    (row,) = rows_in(page.read(FAILURES))
    assert "since code old-1" in row
    for value, number in (("old-1", 1), ("old*", 1), ("old-", 0), ("new-2", 0), ("", 0)):
        assert len(rows_in(page.read(f"{FAILURES}?q=type:app.* since:{value}"))) == number


def test_one_line_of_code_is_one_group_over_job_types_and_errors(
    page: Page, page_of: Callable[..., Page]
) -> None:
    for line, kind in ((41, "KeyError"), (41, "OSError"), (412, "ValueError")):
        frame = f'  File "/srv/crm/jobs.py", line {line}, in push\n'
        Run.objects.filter(job=dead(kind)).update(traceback=frame)
    text = page.read(FAILURES)
    address = re.findall(r'href="([^"]+)">crm/jobs.py:41 in push \(2 kinds\)', text)[0]
    assert "2 dead jobs of 2 kinds" in page.text(address)
    for searched, number in (("jobs.py:41", 2), ("JOBS.PY", 3), ("jobs.py:4", 0), ("push", 3)):
        assert len(rows_in(page.text(f"{FAILURES}?q=at:{searched}"))) == number, searched
    one = page.text(re.findall(r'<a href="([^"]+/one/[^"]+)"', text)[0])
    assert re.search(r'href="[^"]+at%3A%22crm[^"]+" title="All kinds that failed at this', one)
    blind = page_of("view_job", name="vera")
    assert "jobs.py" not in blind.text(FAILURES).partition("<tbody>")[2]
    assert "Not understood: at:jobs.py" in blind.text(f"{FAILURES}?q=at:jobs.py")


def failure_query(job: Job) -> str:
    return f"job_type={job.job_type}&fingerprint={job.fingerprint}"


def failure_key(job: Job) -> str:
    return f"type={job.job_type}&fingerprint={job.fingerprint}"


def test_one_failure_is_replayed_from_the_index_with_four_clicks(page: Page) -> None:
    """Dead letters, the tab Failures, Replay…, Replay."""
    wanted, other = dead("KeyError"), dead("ValueError")
    index = page.read(reverse("admin:index"))
    assert f'href="{list_url(DeadLetter)}"' in index
    assert f'href="{FAILURES}"' in page.read(list_url(DeadLetter))
    row = next(one for one in page.read(FAILURES).split("<tr>") if "KeyError happened" in one)
    (address,) = re.findall(r'<form method="post" action="([^"]+)"', row)
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', row))
    hidden.pop("csrfmiddlewaretoken")
    asked = page.client.post(address, hidden).content.decode()
    assert "This changes 1 dead letter" in asked
    again = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', asked))
    again.pop("csrfmiddlewaretoken")
    done = page.client.post(address, again)
    (message,) = [html.unescape(str(one)) for one in get_messages(done.wsgi_request)]
    failure = f"{reverse('admin:django_jobs_failure_group')}?{failure_key(wanted)}"
    assert message == (
        f'1 job was sent back to its queue. <a href="{list_url(Job)}?q={wanted.pk}">Show the job'
        f'</a> · <a href="{failure}">Show their failure</a>'
    )
    emptied = page.read(done.url)
    assert "Those that did may have been replayed, dismissed or deleted." in emptied
    assert f'<a href="{failure}">Show their failure</a>' in emptied
    assert f"#{wanted.pk}" in page.read(f"{list_url(Job)}?q={wanted.pk}")
    assert Job.objects.get(pk=wanted.pk).status == "ready"
    assert Job.objects.get(pk=other.pk).status == "dead"
    assert LogEntry.objects.get().object_id == str(wanted.pk)


@pytest.mark.parametrize(
    ("chosen", "narrowed"), [("queue=emails", "queue=emails"), ("span=1h", "finished=1h")]
)
def test_a_line_leads_to_the_jobs_that_it_counts(page: Page, chosen: str, narrowed: str) -> None:
    other, wanted = dead(), dead(queue="emails")
    run_sql(
        "UPDATE django_jobs_job SET finished_at = now() - interval '2 h' WHERE id = %s", [other.pk]
    )
    text = page.read(f"{FAILURES}?{chosen}")
    (row,) = rows_in(text)
    assert row.split()[0] == "1"
    (address,) = re.findall(r'<form method="post" action="([^"]+)"', text)
    assert address.endswith(f"{failure_query(wanted)}&{narrowed}")
    assert f'<a href="{address}"><strong>1<' in text
    asked = page.client.post(
        address, {"action": "replay_jobs", "select_across": 1, "_selected_action": 0}
    )
    assert "This changes 1 dead letter." in asked.content.decode()
    group = f"{reverse('admin:django_jobs_failure_group')}?{failure_key(wanted)}"
    assert f'href="{group}&{chosen}"' in text
    assert f'href="{group}"' not in text


def test_the_plan_of_a_replay_is_for_this_failure_alone(page: Page) -> None:
    wanted, _other = dead("KeyError"), dead("ValueError")
    query = f"?job_type=app.noop&fingerprint={wanted.fingerprint}"
    asked = page.ask(DeadLetter, "replay_jobs", 0, query=query, select_across=1)
    assert str(BY_PLAN.label) in asked.content.decode()
    terms = terms_of_list(site.get_model_admin(DeadLetter), asked.wsgi_request)
    assert terms is not None
    assert terms == {"status": "dead", "job_type": "app.noop", "error": wanted.fingerprint}
    assert count(BulkAction.REPLAY, terms, newest()).jobs == 1


def test_dead_letters_of_one_failure_are_dismissed_with_a_reason_and_a_log(page: Page) -> None:
    wanted, other = dead("KeyError"), dead("ValueError")
    query = f"?job_type=app.noop&fingerprint={wanted.fingerprint}"
    asked = page.ask(DeadLetter, "dismiss_jobs", 0, query=query, select_across=1)
    assert "Dead jobs that nobody will replay are cancelled." in asked.content.decode()
    page.confirm(
        DeadLetter,
        "dismiss_jobs",
        0,
        query=query,
        **{"select_across": 1, "max_id": other.pk, "reason": "it is over"},
    )
    assert Job.objects.get(pk=wanted.pk).reason.startswith("dismissed by ada: it is over")
    assert Job.objects.get(pk=other.pk).status == "dead"
    assert LogEntry.objects.get().change_message == "dismissed: it is over"


def test_the_list_of_a_failure_without_an_error_has_its_jobs_only(page: Page) -> None:
    plain, _other = dead(), dead("ValueError")
    run_sql(
        "UPDATE django_jobs_job SET fingerprint = '', last_error = '' WHERE id = %s", [plain.pk]
    )
    address = next(
        one
        for one in re.findall(r'href="([^"]+)"', page.read(FAILURES))
        if one.endswith("fingerprint=none")
    )
    assert "1 dead letter" in page.read(address)
    assert f"/{plain.pk}/change/" in page.read(address)


def test_filters_and_the_search_choose_the_failures(page: Page) -> None:
    dead("KeyError", queue="bulk")
    dead("ValueError")
    make_dead(add, 1)
    settle_one(enqueue_and_claim(noop), failure(kind="OSError"))

    def found(query: str) -> int:
        return len(rows_in(page.text(FAILURES + query)))

    assert found("") == 3
    assert found("?queue=bulk") == 1
    assert found("?q=type:noop") == 2
    assert found("?q=type:app.noop*") == 2
    assert found("?q=type:app.+error:key") == 1
    assert found('?q=error:"keyerror: keyerror happened"') == 1
    assert found('?q="KeyError happened" type:app.noop') == 1
    assert found('?q=error:"happened keyerror"') == 0
    assert found("?q=add") == 1
    assert found("?retried=1") == 4
    assert "1 more is being retried" in page.read(FAILURES)
    run_sql("UPDATE django_jobs_job SET finished_at = now() - interval '2 h' WHERE status = 'dead'")
    assert found("?span=24h") == 3
    assert found("?span=1h") == 0
    assert "No job died in this time" in page.read(FAILURES + "?span=1h")


def test_a_search_that_is_not_understood_is_said(page: Page) -> None:
    dead()
    text = page.read(FAILURES + "?q=colour:red")
    assert "Not understood: colour:red." in text
    text = page.read(FAILURES + "?q=zebra")
    assert "No failure matches the search. Show all" in " ".join(
        re.sub(r"<[^>]+>", "", text).split()
    )
    assert "1 dead job of one kind" in text


def test_what_may_be_meant_by_a_term_that_finds_nothing_is_said(page: Page) -> None:
    worker = register_worker()
    Worker.objects.filter(pk=worker).update(code_version="2026.40")
    job = dead("myapp.KeyError", worker=worker)
    Run.objects.filter(job=job).update(traceback='  File "/srv/crm/jobs.py", line 41, in push\n')
    for searched, meant in (
        ("type:ap.nop", "type:app.noop"),
        ("type:app. error:KeyErorr", "error:KeyError"),
        ("since:2026.4", "since:2026.40"),
        ("at:job.py:41", "at:jobs.py:41"),
        ("typ:app.noop", "type:app.noop"),
        ("nop", "noop"),
    ):
        assert f"Did you mean {meant}?" in page.read(f"{FAILURES}?q={searched}"), searched
    for searched in ("zebra", "typ:", "at:zebra", "app.noop"):
        assert "Did you mean" not in page.read(f"{FAILURES}?q={searched}"), searched


def test_without_failures_the_page_says_what_would_be_there(page: Page) -> None:
    text = page.read(FAILURES)
    assert "No job is dead" in text
    assert "A job whose last attempt failed is dead and is listed here" in text


def test_a_job_that_runs_at_most_once_is_marked(page: Page) -> None:
    job = dead()
    assert "a replay may do it twice" not in page.read(FAILURES)
    run_sql("UPDATE django_jobs_job SET at_most_once = true WHERE id = %s", [job.pk])
    assert "at most once: a replay may do it twice" in page.read(FAILURES)


def test_texts_of_rows_are_escaped(page: Page) -> None:
    job = dead()
    run_sql(
        "UPDATE django_jobs_job SET job_type = %s, last_error = %s WHERE id = %s",
        ["<script>a()</script>", "<img src=x onerror=b()>: c", job.pk],
    )
    assert Live(page.text(FAILURES)).alarms == []
    assert "<script>a()" not in page.text(FAILURES)
    (one,) = {
        address
        for address in re.findall(r'href="([^"]+)"', page.read(FAILURES))
        if "/one/" in address
    }
    assert Live(page.text(one)).alarms == []


def test_what_each_user_may_do_there(page_of: Callable[..., Page]) -> None:
    dead()
    assert "Replay…" not in page_of("view_job", name="vera").text(FAILURES)
    assert "Replay…" in page_of("view_job", "replay_job", name="rosa").text(FAILURES)
    page_of("view_run", name="nina").text(FAILURES, status=403)


@pytest.mark.parametrize(
    "query", ["?p=99", "?p=x", "?span=9y", "?queue=%00a", "?q=%00", "?retried=2"]
)
def test_odd_addresses_are_answered(page: Page, query: str) -> None:
    dead()
    page.text(FAILURES + query)


@pytest.mark.usefixtures("no_time_limit")
def test_the_queries_of_the_page_do_not_grow_with_the_failures(
    page: Page, django_assert_max_num_queries: Any
) -> None:
    for number in range(60):
        run_sql(
            "UPDATE django_jobs_job SET fingerprint = %s WHERE id = %s", [f"{number}", dead().pk]
        )
    with django_assert_max_num_queries(9):
        text = page.read(FAILURES)
    assert "Page 1 of 2" in text
    assert len(rows_in(page.text(FAILURES + "?p=2"))) == 10
