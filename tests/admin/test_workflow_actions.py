"""The actions on runs of workflows and on their steps."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from pytest_django.fixtures import DjangoCaptureOnCommitCallbacks

from django_jobs.admin.workflow_actions import CANCEL_RUN, RETRY_RUN, SIGNAL
from django_jobs.domain.outcomes import Succeeded
from django_jobs.models import Job, WorkflowRun
from django_jobs.signals import worker_event
from tests.app.jobs import noop
from tests.factories import claim_ready, failure, heard, register_worker, settle_one
from tests.workflows import start_graph, states

from .walking import Page, change_url

pytestmark = pytest.mark.django_db


def end(run: WorkflowRun, name: str, *, well: bool = True) -> None:
    """Run the step that is ready, and let it succeed or fail."""
    (held,) = claim_ready(register_worker())
    assert held.id == id_of(run, name)
    settle_one(held, Succeeded() if well else failure(final=True))


def id_of(run: WorkflowRun, name: str) -> int:
    return int(Job.objects.get(workflow_run=run, step=name).pk)


def status_of(run: WorkflowRun) -> str:
    return WorkflowRun.objects.get(pk=run.pk).status


def logged() -> list[tuple[str, str]]:
    entries = LogEntry.objects.order_by("pk")
    return list(entries.values_list("object_repr", "change_message"))


def test_runs_are_cancelled(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    done = page.act(WorkflowRun, "cancel_workflow_runs", run.pk, reason="no longer needed")
    assert done == "1 run was cancelled."
    assert status_of(run) == "cancelled"
    assert logged() == [(f"graph #{run.pk}", "cancelled: no longer needed")]
    assert "no longer needed" in page.read(change_url(WorkflowRun, run.pk))
    assert "it is cancelled" in page.act(WorkflowRun, "cancel_workflow_runs", run.pk)


def test_a_run_with_a_running_step_is_asked_to_stop(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    claim_ready(register_worker())
    done = page.act(WorkflowRun, "cancel_workflow_runs", run.pk)
    assert done == "1 run is cancelled when its running steps have stopped."
    # Again, because the cancel of many steps may have been cut short.
    assert page.act(WorkflowRun, "cancel_workflow_runs", run.pk) == done


def test_a_failed_run_is_retried_from_its_failed_steps(page: Page) -> None:
    run = start_graph({"a": "", "b": "a", "c": "b"})
    end(run, "a")
    end(run, "b", well=False)
    assert status_of(run) == "failed"
    assert page.act(WorkflowRun, "retry_workflow_runs", run.pk) == "1 run was retried."
    assert states(run) == {"a": "succeeded", "b": "ready", "c": "waiting"}
    assert status_of(run) == "running"


def test_a_step_is_skipped_with_a_reason(page: Page) -> None:
    run = start_graph({"a": "", "b": "a", "c": "b"})
    end(run, "a")
    pk = id_of(run, "b")
    refused = page.confirm(Job, "skip_steps", pk)
    assert "This field is required." in refused.content.decode()
    done = page.act(Job, "skip_steps", pk, reason="done by hand")
    assert done == "1 step was skipped."
    assert states(run) == {"a": "succeeded", "b": "cancelled (passed)", "c": "ready"}
    assert logged() == [(f"app.noop #{pk}", "skipped: done by hand")]
    assert "done by hand" in page.read(change_url(WorkflowRun, run.pk))


def test_one_of_several_steps_with_a_name_is_skipped(page: Page) -> None:
    run = start_graph({"a": "", "b": ""})
    pk = id_of(run, "b")
    Job.objects.filter(pk=pk).update(step="a")
    assert page.act(Job, "skip_steps", pk, reason="done by hand") == "1 step was skipped."
    assert Job.objects.get(pk=pk).skipped == "passed"


def test_what_cannot_be_skipped_is_refused_with_the_reason(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    end(run, "a")
    plain, ended = noop.enqueue().pk, id_of(run, "a")
    done = page.act(Job, "skip_steps", plain, ended, reason="why not")
    assert f"#{plain}: it is not a step of a workflow" in done
    assert f"#{ended}: step 'a' is succeeded" in done
    assert not LogEntry.objects.exists()


def waiting(name: str) -> int:
    """A job that waits for a signal."""
    job = noop.using(delay=900).enqueue()
    Job.objects.filter(pk=job.pk).update(status="waiting", awaits=name)
    return int(job.pk)


def test_a_waiting_job_gets_its_signal_with_data(
    page: Page, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    run = start_graph({"a": ""})
    pk = id_of(run, "a")
    Job.objects.filter(pk=pk).update(status="waiting", awaits="approved")
    asked = page.ask(Job, "signal_jobs", pk)
    assert 'name="name" value="approved"' in asked.content.decode()
    with heard(worker_event) as events, django_capture_on_commit_callbacks(execute=True):
        done = page.act(
            Job, "signal_jobs", pk, name="approved", value='{"pin": "s3cret"}', reason="by phone"
        )
    assert done == "1 job got the signal."
    job = Job.objects.get(pk=pk)
    assert (job.status, job.signals) == ("ready", {"approved": {"pin": "s3cret"}})
    assert logged() == [(f"app.noop #{pk}", "signalled: approved: by phone")]
    by = LogEntry.objects.get().user.get_username()
    assert [(one["sender"], one["fields"]) for one in events] == [
        ("step_signalled", {"run": run.pk, "step": "a", "by": by, "reason": "by phone"})
    ]


def test_jobs_that_wait_for_different_signals_need_a_name(page: Page) -> None:
    text = page.ask(Job, "signal_jobs", waiting("one"), waiting("two")).content.decode()
    assert "2 jobs" in text
    assert 'value="one"' not in text


@pytest.mark.parametrize("data", ["{", "NaN"])
def test_data_that_is_not_json_is_refused(page: Page, data: str) -> None:
    pk = waiting("approved")
    asked = page.confirm(Job, "signal_jobs", pk, name="approved", value=data)
    assert "This is not JSON" in asked.content.decode()
    assert Job.objects.get(pk=pk).signals is None


def test_a_second_signal_and_data_that_cannot_be_stored_are_refused(page: Page) -> None:
    pk = waiting("approved")
    page.act(Job, "signal_jobs", pk, name="approved")
    assert "it has a signal of this name already" in page.act(
        Job, "signal_jobs", pk, name="approved"
    )
    assert f"#{pk}: " in page.act(Job, "signal_jobs", pk, name="other", value='"\\u0000"')
    assert Job.objects.get(pk=pk).signals == {"approved": None}


def test_the_page_of_a_run_has_buttons_for_its_steps(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    Job.objects.filter(pk=id_of(run, "b")).update(awaits="approved")
    text = page.text(change_url(WorkflowRun, run.pk))
    assert text.count('value="skip_steps"') == 2
    assert text.count('value="signal_jobs"') == 1
    end(run, "a", well=False)
    text = page.text(change_url(WorkflowRun, run.pk))
    assert text.count('value="skip_steps"') == 1
    assert 'value="signal_jobs"' not in text
    assert 'value="retry_workflow_runs"' in text


def test_the_page_of_a_run_offers_what_its_user_may_do_to_steps(
    page_of: Callable[..., Page],
) -> None:
    run = start_graph({"a": "", "b": "a"})
    Job.objects.filter(pk=id_of(run, "b")).update(awaits="approved")
    url = change_url(WorkflowRun, run.pk)
    text = page_of("view_job", "view_workflowrun", "skip_workflowstep").text(url)
    assert 'value="skip_steps"' in text
    for action in (CANCEL_RUN, RETRY_RUN, SIGNAL):
        assert f'value="{action.action}"' not in text
    without_jobs = page_of("view_workflowrun", "skip_workflowstep", name="otto").text(url)
    assert 'value="skip_steps"' not in without_jobs


def test_no_button_of_a_step_is_in_a_form_within_a_form(page: Page) -> None:
    run = start_graph({"a": "", "b": "a"})
    text = page.text(change_url(WorkflowRun, run.pk))
    (form,) = re.findall(r'<form[^>]* id="workflowrun_form".*?</form>', text, re.DOTALL)
    assert form.count("<form") == 1
    for name in "ab":
        target = f"skip_steps-{id_of(run, name)}"
        assert f'form="{target}"' in form
        assert f'id="{target}"' in text
