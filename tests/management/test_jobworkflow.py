"""``manage.py jobworkflow``."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_jobs.management import reports
from django_jobs.models import Job
from tests.factories import claim_ready, failure, register_worker, settle_one
from tests.lifecycle.test_opening import finish, reread
from tests.workflows import start_graph, states, step

pytestmark = pytest.mark.django_db


def output(*arguments: Any) -> str:
    out = StringIO()
    call_command("jobworkflow", *map(str, arguments), stdout=out, stderr=out)
    return out.getvalue()


def test_runs_are_listed_the_newest_first() -> None:
    assert output("list") == "There are no such runs.\n"
    first, second = start_graph({"a": "", "b": "a"}), start_graph({"a": ""})
    finish()
    text = output("list").splitlines()
    assert text[0].split() == list(reports.HEADS)
    assert [line.split()[:6] for line in text[1:]] == [
        [str(second.pk), "graph", "succeeded", "1", "of", "1"],
        [str(first.pk), "graph", "succeeded", "2", "of", "2"],
    ]
    assert len(json.loads(output("list", "graph", "--json", "--limit", 1))) == 1
    assert json.loads(output("list", "--status", "failed", "--json")) == []
    assert json.loads(output("list", "other", "--json")) == []


def test_a_run_is_shown_with_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    run = start_graph({"a": "", "b": "a", "sorry": "-a b"})
    finish({"a": failure(final=True)})
    text = output("show", run.pk)
    assert "failed" in text
    assert "skipped: a failed" in text
    assert "a (failed), b" in text
    shown = json.loads(output("show", run.pk, "--json"))
    assert [(one["step"], one["status"], one["after"]) for one in shown["steps"]] == [
        ("a", "dead", []),
        ("b", "cancelled", ["a"]),
        ("sorry", "cancelled", ["a (failed)", "b"]),
    ]
    monkeypatch.setattr(reports, "MOST_STEPS", 1)
    assert "... and 2 more steps" in output("show", run.pk)
    with pytest.raises(CommandError, match="there is no run 4711"):
        output("show", 4711)


def test_runs_are_cancelled_and_retried() -> None:
    run, other = start_graph({"a": "", "b": "a"}), start_graph({"a": ""})
    held = claim_ready(register_worker())
    assert output("cancel", run.pk, "--reason", "a mistake") == (
        f"run {run.pk}: its running steps are asked to stop.\n"
    )
    for one in held:
        settle_one(one, failure(final=True))
    assert reread(run).reason.endswith(": a mistake")
    assert output("retry", run.pk, other.pk).count("its failed steps start again") == 2
    assert states(run) == {"a": "ready", "b": "waiting"}
    assert output("cancel", run.pk) == f"run {run.pk}: cancelled.\n"
    with pytest.raises(CommandError, match="1 of 2 runs refused"):
        output("cancel", run.pk, other.pk)


def test_a_signal_for_a_step_that_does_not_wait_yet_says_so() -> None:
    run = start_graph({"a": "", "onboard": "a"})
    with pytest.raises(CommandError, match="step 'onboard' waits for no signal now"):
        output("signal", run.pk, "onboard")
    assert output("signal", run.pk, "onboard", "--name", "confirmed") == (
        f"run {run.pk}: step 'onboard' has its signal; it does not wait for it yet.\n"
    )


def test_a_handler_gets_the_signal_that_it_waits_for() -> None:
    run = start_graph({"onboard": ""})
    Job.objects.filter(step="onboard").update(status="waiting", awaits="confirmed")
    assert output("signal", run.pk, "onboard", "--data", "7") == (
        f"run {run.pk}: step 'onboard' has its signal.\n"
    )
    assert step(run, "onboard").signals == {"confirmed": 7}


def test_a_step_is_skipped_and_signalled() -> None:
    run = start_graph({"a": "", "approval": "a"})
    assert output("skip", run.pk, "a", "--reason", "done") == (
        f"run {run.pk}: step 'a' is skipped.\n"
    )
    Job.objects.filter(step="approval").update(status="waiting", awaits="approval")
    assert output("signal", run.pk, "approval", "--data", '{"ok": true}') == (
        f"run {run.pk}: step 'approval' has its signal.\n"
    )
    assert step(run, "approval").signals == {"approval": {"ok": True}}
    assert step(run, "approval").status == "ready"
    with pytest.raises(CommandError, match="--data is not JSON"):
        output("signal", run.pk, "approval", "--data", "yes")
    with pytest.raises(CommandError, match="1 of 1 run refused"):
        output("signal", run.pk, "approval")
