"""The lists: their titles, their filters as a row of fields, their counts, and what is cut."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin import ModelAdmin, site
from django.contrib.admin.views.main import ChangeList
from django.test.html import parse_html
from django.utils.translation import override

from django_jobs import registry
from django_jobs.admin.base import history_list
from django_jobs.admin.base.formatting import choice_badge
from django_jobs.admin.base.model_admin import CappedPaginator
from django_jobs.admin.jobs.job_admin import JobAdmin
from django_jobs.admin.lists import filters
from django_jobs.domain.outcomes import Succeeded
from django_jobs.models import (
    Backfill,
    DeadLetter,
    Job,
    JobStatus,
    Quarantine,
    Queue,
    Resource,
    Run,
    Schedule,
    Tenant,
    Tick,
    Worker,
    WorkflowDefinition,
    WorkflowRun,
)
from django_jobs.testing import run_jobs
from tests.app.jobs import add, noop
from tests.factories import (
    due_schedule,
    enqueue_and_claim,
    look,
    make_dead,
    register_worker,
    run_sql,
    settle_one,
)

from ..walking import Page, list_url, listed
from ..workflows.graphs import definition_of, order

pytestmark = pytest.mark.django_db

TITLES = {
    Backfill: "Backfills",
    DeadLetter: "Dead letters",
    Job: "Jobs",
    Quarantine: "Quarantines",
    Queue: "Queues",
    Resource: "Resources",
    Run: "Runs",
    Schedule: "Schedules",
    Tenant: "Tenants",
    Tick: "Ticks",
    Worker: "Workers",
    WorkflowDefinition: "Workflows",
    WorkflowRun: "Workflow runs",
}


def offered(text: str, name: str) -> list[str]:
    """The choices of a filter."""
    (field,) = re.findall(
        rf'<(?:select name="{name}"|datalist id="choices-{name}").*?</(?:select|datalist)>',
        text,
        re.DOTALL,
    )
    return [html.unescape(value) for value in re.findall(r'<option value="([^"]+)"', field)]


@pytest.mark.parametrize("model", TITLES)
def test_a_list_has_the_name_of_its_rows_as_its_title(page: Page, model: Any) -> None:
    text = page.read(list_url(model))
    assert f"<h1>{TITLES[model]}</h1>" in text
    assert not re.search(r"Select .* to (view|change)", text)
    assert "changelist-filter" not in text


@pytest.mark.parametrize("model", [model for model in TITLES if model is not Queue])
def test_an_empty_list_says_which_rows_it_would_have(page: Page, model: Any) -> None:
    assert re.search(r'<div class="jobs-empty">\s*<p>\w[^<]{20,}</p>', page.text(list_url(model)))


def test_a_list_in_which_nothing_matches_offers_to_clear_the_filters(page: Page) -> None:
    noop.enqueue()
    assert "No jobs match." not in page.read(list_url(Job))
    text = page.read(f"{list_url(Job)}?queue=emails")
    assert 'No jobs match. <a href="?">Clear search and filters</a>' in text


def offers(page: Page, query: str) -> list[str]:
    """The buttons above the list of jobs, for all that match."""
    forms = re.findall(r'class="jobs-for-all">.*?</form>', page.read(list_url(Job) + query), re.S)
    return [" ".join(re.sub(r"<[^>]*>", "", one.split(">", 1)[1]).split()) for one in forms]


def test_an_action_on_all_that_match_is_offered_only_if_it_can_change_some(page: Page) -> None:
    noop.enqueue()
    run_jobs()
    assert offers(page, "?queue=default") == []
    noop.enqueue_many([{}, {}])
    assert offers(page, "?queue=default") == ["Cancel all 2 that match…"]
    make_dead()
    assert offers(page, "?status=dead") == []


def test_of_more_than_a_page_the_offer_has_a_number_only_if_it_is_known(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    for status, count in (("succeeded", 3), ("ready", 3)):
        noop.enqueue_many([{}] * count)
        if status == "succeeded":
            run_jobs()
    assert offers(page, "?queue=default") == ["Cancel all that match…"]
    assert offers(page, "?status=succeeded") == []
    assert offers(page, "?status=ready") == ["Cancel all 3 that match…"]


def test_a_filter_is_a_field_that_keeps_what_is_chosen_and_the_other_parameters(
    page: Page,
) -> None:
    text = page.text(f"{list_url(Run)}?outcome=failed&job=7&q=%2312&finished=1h")
    form = re.findall(r'<form id="changelist-search".*?</form>', text, re.DOTALL)[0]
    assert '<option value="failed" selected>' in form
    assert '<option value="1h" selected>' in form
    assert '<input type="hidden" name="job" value="7">' in form
    assert re.search(r'name="q" value="#12"', form)
    assert 'type="hidden" name="outcome"' not in form
    assert set(re.findall(r'<label for="([^"]+)"', form)) >= {"searchbar", "filter-outcome"}


def test_a_value_that_is_not_offered_stays_chosen(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MOST_CHOICES", 10_000)
    text = page.text(f"{list_url(Job)}?job_type=gone.type")
    assert '<option value="gone.type" selected>' in text


def test_fields_that_are_not_used_leave_the_address(page: Page) -> None:
    response = page.client.get(f"{list_url(Job)}?q=&status=dead&queue=&job_type=&p=2")
    assert response.status_code == 302
    assert response.url == f"{list_url(Job)}?status=dead&p=2"
    assert page.client.get(f"{list_url(Job)}?q=").status_code == 200


def test_the_types_of_rows_that_this_code_does_not_know_are_offered(page: Page) -> None:
    add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET job_type = 'crm.push_deal'")
    known = offered(page.text(list_url(Job)), "job_type")
    assert "crm.push_deal" in known
    assert set(registry.names()) < set(known)


def test_many_choices_are_suggested_to_a_text_field(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MOST_CHOICES", 10_000)
    assert '<select name="job_type"' in page.text(list_url(Job))
    monkeypatch.setattr(filters, "MOST_CHOICES", 10)
    text = page.text(f"{list_url(Job)}?job_type=app.add")
    assert re.search(r'<input type="text" name="job_type"[^>]* value="app.add"', text)
    assert "app.add" in offered(text, "job_type")
    assert "<select" in text  # the others have few choices


def test_filters_that_are_seldom_used_are_folded_until_they_are_used(page: Page) -> None:
    assert re.search(
        r'<details class="jobs-more">\s*<summary>More filters</summary>', page.text(list_url(Job))
    )
    text = page.text(f"{list_url(Job)}?tenant=acme&schedule=nightly")
    assert re.search(r'<details class="jobs-more" open>\s*<summary>More filters \(2\)', text)


def test_jobs_are_filtered_by_the_worker_that_holds_them(page: Page) -> None:
    worker, second, other = register_worker("w"), register_worker("w"), register_worker("o")
    held = enqueue_and_claim(add, 1, worker=worker)
    of_second = enqueue_and_claim(add, 3, worker=second)
    enqueue_and_claim(add, 2, worker=other)
    assert listed(page, worker=worker) == listed(page, worker=f"#{worker}") == [held.id]
    assert listed(page, worker="w") == [of_second.id, held.id]
    assert listed(page, worker="x") == listed(page, worker="9" * 5000) == []
    assert {"w", "o"} <= set(offered(page.text(list_url(Job)), "worker"))
    settle_one(held, Succeeded())
    assert listed(page, worker=worker) == []


def test_runs_are_filtered_by_their_worker_in_a_bounded_part_of_the_history(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, other = register_worker("w"), register_worker("o")
    held, of_other = (enqueue_and_claim(add, 1, worker=one) for one in (worker, other))
    for one in (held, of_other):
        settle_one(one, Succeeded())
    assert listed(page, Run, worker=worker) == listed(page, Run, worker=f"#{worker}") == [held.id]
    assert listed(page, Run, worker="x") == []
    run_sql("UPDATE django_jobs_run SET finished_at = finished_at - interval '40 days'")
    assert listed(page, Run, worker=worker) == [held.id]
    monkeypatch.setattr(history_list, "NEWEST", 1)
    assert listed(page, Run, worker=worker) == []
    assert "only those among the newest 1 were searched" in page.text(
        f"{list_url(Run)}?worker={worker}"
    )


@pytest.mark.parametrize(
    "query, note",
    [
        ("worker=web-9", "There is no worker “web-9”. Check the spelling."),
        ("worker=99999", "There is no worker “99999”."),
        ("schedule=nightly2", "There is no schedule “nightly2”."),
        ("workflow=orders", "There is no workflow “orders”."),
        ("workflow_run=x", "There is no workflow run “x”."),
        ("workflow_run=99999", "There is no workflow run “99999”."),
        ("queue=nope", "There is no queue “nope”."),
        ("job_type=app.nope", "There is no job type “app.nope”."),
        ("status=broken", "There is no status “broken”."),
        ("tenant=acme2", "No row of a tenant is called “acme2”."),
        ("tenant=" + "a" * 500, "a" * 98 + "…”. Check"),
    ],
)
def test_a_filter_that_names_nothing_says_so(page: Page, query: str, note: str) -> None:
    noop.enqueue()
    assert note in page.read(f"{list_url(Job)}?{query}")


def test_what_may_be_meant_by_a_name_that_finds_nothing_is_said(page: Page) -> None:
    register_worker("web-1")
    due_schedule(name="nightly")
    Resource.objects.create(name="stripe")
    for model, query, meant in (
        (Job, "queue=defualt", "default"),
        (Job, "job_type=app.nop", "app.noop"),
        (Job, "worker=web1", "web-1"),
        (Job, "schedule=nighly", "nightly"),
        (Schedule, "q=nighly", "nightly"),
        (Schedule, "q=type:ap.noop", "type:app.noop"),
        (Schedule, "q=typ:app.noop", "type:app.noop"),
        (Schedule, "q=name:nightly", "nightly"),
        (Resource, "q=strpe", "stripe"),
    ):
        text = page.read(f"{list_url(model)}?{query}")
        assert f"Did you mean {meant}?" in text, query
    for model, query in (
        *((Schedule, "q=zebra"), (Resource, "q=stri"), (Job, "queue=zebra")),
        (Worker, "status=lost&q=web1"),  # has no search
    ):
        assert "Did you mean" not in page.read(f"{list_url(model)}?{query}"), query


def test_a_filter_that_names_something_is_silent_although_the_list_is_empty(page: Page) -> None:
    worker = register_worker("w")
    schedule = due_schedule()
    run = order(definition=definition_of("orders.fulfil"))
    for query in (
        *("worker=w", f"worker={worker}", "queue=bulk", "tag=vip", "job_type=app.noop"),
        *(f"schedule={schedule.name}", f"workflow_run={run.pk}", f"workflow={run.name}"),
    ):
        text = page.read(f"{list_url(Job)}?{query}&q=key:nothing")
        assert "No jobs match." in text, query
        assert "Check the spelling" not in text


def test_a_time_that_is_not_offered_narrows_nothing_and_says_so(page: Page) -> None:
    noop.enqueue()
    text = page.read(f"{list_url(Job)}?created=5m")
    assert "1 job" in text
    assert "“5m” is not a time that can be chosen, so it narrows nothing." in text
    assert "so it narrows nothing" not in page.read(f"{list_url(Job)}?created=1h")
    text = page.read(f"{list_url(Job)}?created=5y&q=key:nothing")
    assert "“5y” is not a time that can be chosen" in text
    assert "Check the spelling" not in text


def test_jobs_are_filtered_by_schedule_and_tenant(page: Page) -> None:
    schedule = due_schedule()
    look()
    job = Job.objects.get()
    other = add.using(tenant="acme").enqueue(1)
    assert listed(page, schedule=schedule.name) == [job.pk]
    assert listed(page, tenant="acme") == [other.pk]
    assert listed(page, tenant="nobody") == listed(page, schedule="nothing") == []
    assert schedule.name in offered(page.text(list_url(Job)), "schedule")


def test_jobs_are_filtered_by_the_name_of_their_workflow(page: Page) -> None:
    definition = definition_of("orders.fulfil")
    run = order(definition=definition)
    noop.enqueue()
    steps = sorted(Job.objects.filter(workflow_run=run.pk).values_list("pk", flat=True))
    assert sorted(listed(page, workflow=run.name)) == steps != []
    assert listed(page, workflow="another") == []
    assert run.name in offered(page.text(list_url(Job)), "workflow")


def test_a_filter_by_workflow_says_that_older_runs_are_left_out(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "MOST_RUNS", 2)
    note = "Only the steps of the newest 2 runs of the workflow are listed."
    definition = definition_of("orders.fulfil")
    oldest, *newer = [order(definition=definition) for _ in range(3)]
    steps = Job.objects.filter(workflow_run__in=[run.pk for run in newer])
    assert sorted(listed(page, workflow=oldest.name)) == sorted(steps.values_list("pk", flat=True))
    url = f"{list_url(Job)}?workflow={oldest.name}"
    assert note in page.text(url)
    asked = page.ask(Job, "cancel_jobs", 0, query=url[len(list_url(Job)) :], select_across=1)
    assert note in asked.content.decode()
    WorkflowRun.objects.filter(pk=oldest.pk).delete()
    assert note not in page.text(url)
    assert note not in page.text(list_url(Job))


@pytest.mark.parametrize("model", [Job, Run])
def test_a_count_that_stops_says_so_at_each_place(
    page: Page, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CappedPaginator, "cap", 1_200)
    monkeypatch.setattr("django_jobs.admin.base.model_admin.ConsoleAdmin.list_per_page", 1)
    job = make_dead()
    if model is Job:
        noop.enqueue_many([{}] * 1_300)
    else:
        run_sql(
            "INSERT INTO django_jobs_run (job_id, attempt, outcome, available_at, claimed_at,"
            " finished_at, error_type, error_message, traceback, fingerprint)"
            " SELECT %s, n, 'succeeded', now(), now(), now(), '', '', '', ''"
            " FROM generate_series(2, 1301) n",
            [job.pk],
        )
    text = page.read(list_url(model))
    name = model._meta.verbose_name_plural
    assert f"<span>1,200+ {name}</span>" in text
    assert "Show all" not in text
    if model is Job:
        assert "Select all 1,200+ jobs" in text
        assert "All 1,200+ selected" in text
    assert not re.search(rf"1,?200 {name}", text)


def test_a_long_value_is_whole_in_its_title(page: Page) -> None:
    job = make_dead()
    error = "first line " * 20 + "\nsecond line"
    run_sql("UPDATE django_jobs_job SET last_error = %s WHERE id = %s", [error, job.pk])
    (cell,) = re.findall(r'field-why">(.*?)</td>', page.text(list_url(DeadLetter)), re.DOTALL)
    assert cell.startswith(f'<span title="{job.reason}')
    assert "second line" in cell
    shown = re.sub(r"<.*?>", "", cell, flags=re.DOTALL)
    assert shown.startswith("first line first line")
    assert "second line" not in shown
    assert len(shown) == 200


def test_the_list_of_workers_names_the_first_queues(page: Page) -> None:
    register_worker(queues=["emails", "default", "media", "bulk"])
    cell = re.findall(r'field-served_line">(.*?)</td>', page.text(list_url(Worker)))[0]
    assert cell == '<span title="emails, default, media, bulk">emails, default +2</span>'


@pytest.mark.parametrize("language", ["en", "de"])
@pytest.mark.parametrize("name", ["plain", 'with "quotes" & <tags>', "with {braces}"])
def test_the_box_of_a_row_is_that_of_django(language: str, name: str) -> None:
    page = site.get_model_admin(Queue)
    row = Queue(pk=7, name=name)
    with override(language):
        ours, of_django = page.action_checkbox(row), ModelAdmin.action_checkbox(page, row)
    assert parse_html(ours) == parse_html(of_django)


def test_the_link_of_a_row_is_that_of_django(page: Page) -> None:
    jobs = [noop.enqueue().pk for _ in range(11)]
    changes = page.client.get(list_url(Job)).context["cl"]
    assert {row.pk for row in changes.result_list} == {*jobs}
    for row in changes.result_list:
        assert changes.url_for_result(row) == ChangeList.url_for_result(changes, row)


def test_the_link_of_a_row_keeps_the_filters_of_its_list(page: Page) -> None:
    job, query = noop.enqueue().pk, "queue=default&job_type=app.noop"
    text = page.client.get(f"{list_url(Job)}?{query}").content.decode()
    kept = urlencode({"_changelist_filters": query})
    assert f'<a href="{list_url(Job)}{job}/change/?{kept}">' in text


@pytest.mark.parametrize("language", ["en", "de"])
def test_a_badge_has_the_label_of_its_choice(language: str) -> None:
    with override(language):
        for status in (*JobStatus, "of a later release"):
            job = Job(status=status)
            assert f"</span>{job.get_status_display()}</span>" in choice_badge(job, "status")
