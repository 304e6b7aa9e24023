"""A person approves or rejects a step that waits, in the fields that the step declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobs.api.workflows.workflow import Workflow
from django_jobs.models import Job, WorkflowRun
from django_jobs.testing import run_jobs
from tests.admin.overview.looking import links_of_problems, overview, problems, words
from tests.admin.walking import Live, Page, change_url, list_url, message_of
from tests.app.jobs import add
from tests.factories import run_sql

pytestmark = pytest.mark.django_db
Declare = Callable[..., Workflow]
APPROVAL = {"approved": bool, "limit": int, "rate": float, "note": str}


def waiting(flow: Workflow, fields: Mapping[str, type] | None = None, **options: Any) -> Job:
    """The step of a new run of ``flow`` that waits for the signal ``approval``."""
    flow.wait("approval", fields=fields, **options)
    run = flow.start()
    run_jobs()
    job = Job.objects.get(workflow_run=run.pk, step="approval")
    assert (job.status, job.awaits) == ("waiting", "approval")
    return job


def data_of(job: Job) -> Any:
    run_jobs()
    return Job.objects.get(pk=job.pk).result


def buttons(text: str) -> list[str]:
    return re.findall(r'<input type="hidden" name="action" value="(\w+)">', text)


@pytest.mark.parametrize("approved", [True, False])
def test_a_step_is_approved_or_rejected_with_what_its_form_asks_for(
    page: Page, superuser: Any, workflow: Declare, approved: bool
) -> None:
    job = waiting(workflow(), APPROVAL)
    action = "approve_steps" if approved else "reject_steps"
    text = page.ask(Job, action, job.pk).content.decode()
    assert Live(text).alarms == []
    word = "Approve" if approved else "Reject"
    assert f"<h1>{word}: step approval of test.flow #{job.workflow_run_id}?</h1>" in text
    assert 'type="number" name="data_limit"' in text
    assert "data_approved" not in text
    given = {"data_limit": "70", "data_rate": "0.5", "data_note": "<b>fine", "reason": "by phone"}
    done = page.confirm(Job, action, job.pk, **given)
    assert message_of(done) == f"1 step was {'approved' if approved else 'rejected'}."
    assert data_of(job) == {
        "approved": approved,
        "limit": 70,
        "rate": 0.5,
        "note": "<b>fine",
        "by": superuser.get_username(),
        "reason": "by phone",
    }
    said = "approved" if approved else "rejected"
    assert LogEntry.objects.get().get_change_message() == f"{said}: approval: by phone"


def test_what_is_missing_or_of_another_type_is_asked_for_again(
    page: Page, workflow: Declare
) -> None:
    job = waiting(workflow(), APPROVAL)
    for limit, rate in (("many", "1"), ("1", "inf")):
        asked = page.confirm(Job, "approve_steps", job.pk, data_limit=limit, data_rate=rate)
        assert asked.status_code == 200
        assert asked.content.decode().count('class="errorlist"') == 1
    rejected = page.confirm(Job, "reject_steps", job.pk, data_limit="1", data_rate="1")
    assert "This field is required." in rejected.content.decode()  # a reason
    assert Job.objects.get(pk=job.pk).signals is None


def test_the_pages_of_run_and_job_offer_what_the_step_declares(
    page: Page, workflow: Declare
) -> None:
    asked = waiting(workflow("test.asked"), {"approved": bool})
    typed = waiting(workflow("test.typed"), {"kilos": float})
    plain = waiting(workflow("test.plain"))
    for job, expected in (
        (asked, {"approve_steps", "reject_steps"}),
        (typed, {"signal_jobs"}),
        (plain, {"signal_jobs"}),
    ):
        offered = {"approve_steps", "reject_steps", "signal_jobs"}
        for url in (change_url(WorkflowRun, job.workflow_run_id or 0), change_url(Job, job.pk)):
            with CaptureQueriesContext(connection) as queries:
                assert offered & set(buttons(page.text(url))) == expected
            asks = [one for one in queries.captured_queries if '[["approved"' in one["sql"]]
            assert len(asks) <= 1, "three buttons ask once"
    page.act(Job, "signal_jobs", typed.pk, data_kilos="1.5", reason="scale 2")
    assert data_of(typed)["kilos"] == 1.5
    page.act(Job, "signal_jobs", plain.pk, name="approval", value='{"ok": 1}')
    assert data_of(plain) == {"ok": 1}


def test_it_leads_back_to_the_run_from_which_it_was_asked(page: Page, workflow: Declare) -> None:
    job = waiting(workflow(), {"approved": bool})
    run = change_url(WorkflowRun, job.workflow_run_id or 0)
    form = re.search(r'id="approve_steps-\d+" hidden>.*?</form>', page.text(run), re.DOTALL)
    assert form is not None
    given = {"from_page": "1", "from_run": str(job.workflow_run_id)}
    assert dict(re.findall(r'name="(from_\w+)" value="(\d+)"', form[0])) == given
    asked = page.ask(Job, "approve_steps", job.pk, **given).content.decode()
    assert f'href="{run}"' in asked
    assert page.confirm(Job, "approve_steps", job.pk, **given).url == run


def test_jobs_that_wait_for_no_approval_or_for_several_are_left_alone(
    page: Page, workflow: Declare
) -> None:
    first = waiting(workflow("test.one"), {"approved": bool})
    other = waiting(workflow("test.two"), {"approved": bool, "note": str})
    plain = waiting(workflow("test.plain"))
    ready = add.enqueue(1)
    for ids in ((first.pk, other.pk), (first.pk, ready.pk), (plain.pk,), (ready.pk,)):
        refused = page.confirm(Job, "approve_steps", *ids)
        assert "This needs jobs that wait for one approval" in refused.content.decode()
    assert not Job.objects.filter(signals__isnull=False).exists()


def test_two_runs_of_one_workflow_are_approved_at_once(page: Page, workflow: Declare) -> None:
    first = waiting(flow := workflow(), {"approved": bool})
    second = flow.start()
    run_jobs()
    other = Job.objects.get(workflow_run=second.pk)
    assert page.act(Job, "approve_steps", first.pk, other.pk) == "2 steps were approved."


def test_a_permission_of_the_step_is_demanded(
    page_of: Callable[..., Page], workflow: Declare
) -> None:
    job = waiting(workflow(), {"approved": bool}, permission="django_jobs.pause_queue")
    olga = page_of("view_job", "signal_workflowrun")
    assert olga.confirm(Job, "approve_steps", job.pk).status_code == 403
    assert Job.objects.get(pk=job.pk).signals is None


@pytest.mark.parametrize(
    "fields",
    [
        '[["approved", "secret"]]',
        '["approved"]',
        '"x"',
        '[["a", {}]]',
        "[]",
        '[["n", 1e400]]',
        "{}",
    ],
)
def test_fields_by_hand_that_are_none_leave_the_json(
    page: Page, workflow: Declare, fields: str
) -> None:
    job = waiting(workflow())
    run_sql(
        "UPDATE django_jobs_job SET payload = jsonb_set(payload, '{fields}', %s::jsonb)"
        " WHERE id = %s",
        [fields, job.pk],
    )
    page.text(change_url(WorkflowRun, job.workflow_run_id or 0))
    assert 'name="value"' in page.ask(Job, "signal_jobs", job.pk).content.decode()


def states(text: str) -> list[str]:
    cells = re.findall(r'class="field-state">(.*?)</td>', text, re.DOTALL)
    return [words(cell).lstrip("▶◔… ") for cell in cells]


def test_runs_that_wait_for_a_person_say_so_and_are_filtered(page: Page, workflow: Declare) -> None:
    asked = waiting(workflow("test.asked"), {"approved": bool})
    waiting(workflow("test.plain"))
    all_runs = list_url(WorkflowRun)
    assert states(page.text(all_runs)) == ["running", "waits for a person"]
    for query in ("?waits=person", "?waits=person&status=running"):
        text = page.text(all_runs + query)
        assert states(text) == ["waits for a person"]
        assert f"#{asked.workflow_run_id}" in text
    assert states(page.text(f"{all_runs}?waits=person&status=failed")) == []
    run = page.text(change_url(WorkflowRun, asked.workflow_run_id or 0))
    assert "waits for a person" in run
    page.act(Job, "approve_steps", asked.pk)
    assert states(page.text(f"{all_runs}?waits=person")) == []


def test_the_overview_names_the_first_that_has_waited_for_a_day(
    page: Page, workflow: Declare
) -> None:
    first = waiting(workflow("test.asked"), {"approved": bool})
    waiting(workflow("test.plain"))
    other = waiting(workflow("test.other"), {"ok": bool})
    wait_since("23 hours")
    assert not of_people(page)
    wait_since("26 hours", first)
    ((found, link),) = of_people(page)
    assert "1 step waits for a person" in found
    assert f"approval of test.asked #{first.workflow_run_id} has waited for 1 d 2 h" in found
    wait_since("49 hours", other)
    ((found, link),) = of_people(page)
    assert "2 steps wait for a person, the first for 2 d 1 h" in found
    assert f"approval of test.other #{other.workflow_run_id}" in found
    assert link == f"{list_url(WorkflowRun)}?waits=person"


def wait_since(age: str, job: Job | None = None) -> None:
    run_sql(
        "UPDATE django_jobs_receipt SET made_at = now() - %s::interval"
        " WHERE %s::bigint IS NULL OR job_id = %s::bigint",
        [age, *(2 * [job and job.pk])],
    )


def of_people(page: Page) -> list[tuple[str, str]]:
    text = overview(page)
    found = zip(problems(text), links_of_problems(text), strict=True)
    return [(problem, link) for problem, link in found if "for a person" in problem]


def test_the_bar_of_a_failed_run_is_not_that_of_a_good_one(page: Page, workflow: Declare) -> None:
    job = waiting(workflow(), {"approved": bool})
    url = change_url(WorkflowRun, job.workflow_run_id or 0)
    assert "jobs-overall jobs-run-running" in page.text(url)
    run_sql("UPDATE django_jobs_workflowrun SET status = 'failed'")
    assert "jobs-overall jobs-run-failed" in page.text(url)
